"""What becomes of a logit: scale, soft cap, sinks, and the scales of a quantised cache."""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_mutant = partial(Mutant, module="paged.backends.xla.attend")

_SCALE = "query.astype(jnp.float32) * spec.scale"
_CAP = "logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)"
_K_SCALE = "split = split * _by_kv_head(cache.k_scale)"
_V_SCALE = "scale = cache.k_scale if spec.is_latent else cache.v_scale"
_SINK = "logit = sinks.astype(jnp.float32).reshape(spec.num_kv_heads, spec.group_size)"
_SINK_TOTAL = "total = state.total * kept + jnp.where(has_keys, jnp.exp(logit - origin), 0.0)"
_WITH_SINKS = "return _State(state.out * kept[..., None], peak, total)"
_LOGITS = 'logits = jnp.einsum("ghrd,ghkd->ghrk", scaled, keys, precision=lax.Precision.HIGHEST)'

MUTANTS: tuple[Mutant, ...] = (
    _mutant("scale * 0.9", "scale", before=_SCALE, after=f"{_SCALE} * 0.9"),
    _mutant("scale * 1.01", "scale", before=_SCALE, after=f"{_SCALE} * 1.01"),
    _mutant("scale * 1.001", "scale", before=_SCALE, after=f"{_SCALE} * 1.001"),
    _mutant("scale left out", "scale", before=_SCALE, after="query.astype(jnp.float32)"),
    _mutant(
        "scale of the head dim instead of one's own",
        "scale",
        before=_SCALE,
        after="query.astype(jnp.float32) * spec.head_dim**-0.5",
    ),
    _mutant(
        "soft cap of the magnitude",
        "soft_cap",
        before="logits / spec.soft_cap",
        after="jnp.abs(logits) / spec.soft_cap",
    ),
    _mutant("soft cap ignored", "soft_cap", before=_CAP, after="logits = logits"),
    _mutant(
        "soft cap by 1 - 2 / (exp + 1), without digits near 0",
        "soft_cap",
        before="jnp.tanh(logits / spec.soft_cap)",
        after="(1.0 - 2.0 / (jnp.exp(2.0 * (logits / spec.soft_cap)) + 1.0))",
    ),
    _mutant(
        "soft cap * 1.02",
        "soft_cap",
        before=_CAP,
        after="logits = 1.02 * spec.soft_cap * jnp.tanh(logits / (1.02 * spec.soft_cap))",
    ),
    _mutant(
        "soft cap without its factor",
        "soft_cap",
        before=_CAP,
        after="logits = jnp.tanh(logits / spec.soft_cap)",
    ),
    _mutant(
        "soft cap by clipping",
        "soft_cap",
        before=_CAP,
        after="logits = jnp.clip(logits, -spec.soft_cap, spec.soft_cap)",
    ),
    _mutant(
        "soft cap after the mask",
        "soft_cap",
        before=_CAP,
        after="logits = spec.soft_cap * jnp.tanh(jnp.where(mask, logits, -jnp.inf) / spec.soft_cap)"
        "; mask = jnp.ones_like(mask)",
    ),
    _mutant(
        "soft cap before the scale",
        "soft_cap",
        before=_CAP,
        after="logits = spec.scale * spec.soft_cap * jnp.tanh(logits / spec.scale / spec.soft_cap)",
    ),
    _mutant("sinks ignored", "sinks", before="if sinks is not None:", after="if False:"),
    _mutant(
        "sink added to the numerator",
        "sinks",
        before=_WITH_SINKS,
        after="return _State(state.out * kept[..., None] + jnp.exp(logit - origin)[..., None], "
        "peak, total)",
    ),
    _mutant(
        "sink in the lse only",
        "sinks",
        before=_WITH_SINKS,
        after="return _State(state.out * (total / (state.total + (state.total == 0)))[..., None], "
        "peak, total)",
    ),
    _mutant(
        "sink left out of the lse",
        "sinks",
        before=_WITH_SINKS,
        after="return _State(state.out * (kept * state.total / jnp.where(has_keys, total, 1.0))"
        "[..., None], state.peak, state.total)",
    ),
    _mutant(
        "sinks in reverse", "sinks", before=_SINK, after=_SINK.replace("sinks.", "sinks[::-1].")
    ),
    _mutant(
        "sinks dealt out in turn",
        "sinks",
        before=_SINK,
        after="logit = sinks.astype(jnp.float32).reshape(spec.group_size, spec.num_kv_heads).T",
    ),
    _mutant("sinks times the scale", "sinks", before=_SINK, after=f"{_SINK} * spec.scale"),
    _mutant(
        "sink counted twice",
        "sinks",
        before=_SINK_TOTAL,
        after=_SINK_TOTAL.replace("jnp.exp(logit - origin)", "2 * jnp.exp(logit - origin)"),
    ),
    _mutant(
        "sum not rescaled for the sink",
        "sinks",
        before=_SINK_TOTAL,
        after=_SINK_TOTAL.replace("state.total * kept", "state.total"),
    ),
    _mutant(
        "output not rescaled for the sink",
        "sinks",
        before=_WITH_SINKS,
        after="return _State(state.out, peak, total)",
    ),
    _mutant(
        "sinks repeated in the wrong order",
        "sinks",
        before="logit = jnp.repeat(logit, rows, axis=1)[None]",
        after="logit = jnp.tile(logit, (1, rows))[None]",
    ),
    _mutant("K scale left out", "quantised", before=_K_SCALE, after="split = split"),
    _mutant(
        "K scale applied twice",
        "quantised",
        before=_K_SCALE,
        after=f"{_K_SCALE} * _by_kv_head(cache.k_scale)",
    ),
    _mutant(
        "V scale used for K",
        "quantised",
        before=_K_SCALE,
        after="split = split * _by_kv_head(cache.v_scale)",
    ),
    _mutant("K scale used for V", "quantised", before=_V_SCALE, after="scale = cache.k_scale"),
    _mutant("V scale left out", "quantised", before=_V_SCALE, after="scale = None"),
    _mutant(
        "V scale applied twice",
        "quantised",
        before="out = out * _by_kv_head(scale)",
        after="out = out * _by_kv_head(scale) * _by_kv_head(scale)",
    ),
    _mutant(
        "scale of the first head for all heads",
        "quantised",
        before="scale[None, :, None, None, None] if scale.ndim",
        after="scale[0] if scale.ndim",
        likely=("quantised/int8_per_head", "quantised/*per_head"),
    ),
    _mutant(
        "scales of the heads in reverse",
        "quantised",
        before="scale[None, :, None, None, None] if scale.ndim",
        after="scale[None, ::-1, None, None, None] if scale.ndim",
        likely=("quantised/int8_per_head", "quantised/*per_head"),
    ),
    _mutant(
        "scale of a latent's values left out",
        "latent",
        before=_V_SCALE,
        after="scale = cache.v_scale",
        layout="mla",
        likely=("quantised/int8", "quantised/*"),
    ),
    _mutant(
        "rotary part of a latent left out of the logits",
        "latent",
        before=_LOGITS,
        after='logits = jnp.einsum("ghrd,ghkd->ghrk", scaled[..., : spec.value_dim], '
        "keys[..., : spec.value_dim], precision=lax.Precision.HIGHEST)",
        layout="mla",
    ),
    _mutant(
        "rotary part of a latent counted twice",
        "latent",
        before=_LOGITS,
        after='logits = jnp.einsum("ghrd,ghkd->ghrk", scaled, keys * jnp.where(jnp.arange('
        "spec.head_dim)[None, None, None] < spec.value_dim, 1.0, 2.0), "
        "precision=lax.Precision.HIGHEST)",
        layout="mla",
    ),
)
