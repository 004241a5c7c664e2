"""The engine serves layers that differ, each by whichever backend takes it."""

import jax
import pytest
from flax import nnx

from paged.backends import UnsupportedError, load_backend, registry
from paged.backends.xla import XlaBackend
from paged.engine import LLM, SamplingParams
from paged.engine.resolving import names, resolve_layers
from paged.models import ExpertsConfig, ModelConfig, RopeConfig, Transformer
from paged.spec import AttentionSpec
from tests.engine.paged_steps import dense_greedy

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
GEMMA = {
    "activation": "gelu_pytorch_tanh",
    "norm_offset": 1.0,
    "post_norms": True,
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 12,
}
HYBRIDS = {
    "Gemma2ForCausalLM": {**GEMMA, "soft_cap": 4.0, "final_soft_cap": 30.0},
    "Gemma3ForCausalLM": {**GEMMA, "qk_norm": True, "window_rope": RopeConfig(1e3)},
    "GptOssForCausalLM": {
        "qkv_bias": True,
        "output_bias": True,
        "has_sinks": True,
        "experts": ExpertsConfig(4, 2, swiglu_limit=2.0),
    },
}


class NoWindows(XlaBackend):
    """Serves what `xla` serves, but for windows."""

    name = "no_windows"

    def unsupported(self, spec, layout, target, **known):
        reasons = super().unsupported(spec, layout, target, **known)
        return [*reasons, f"window {spec.window}: none here"] if spec.window else reasons


@pytest.fixture
def no_windows(monkeypatch):
    """Lists that backend before all others."""
    listed = {"no_windows": f"{__name__}:NoWindows", **registry._BUILTIN}
    load_backend.cache_clear()
    monkeypatch.setattr(registry, "_BUILTIN", listed)
    yield
    load_backend.cache_clear()


def hybrid(architecture):
    config = ModelConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        architecture=architecture,
        windows=(5, None),
        max_position_embeddings=128,
        **HYBRIDS[architecture],
    )

    @nnx.jit
    def build():
        model = Transformer(config, rngs=nnx.Rngs(3))
        for place, (_, parameter) in enumerate(nnx.to_flat_state(nnx.state(model))):
            # Biases and sinks are 0 at first, and would not show.
            if parameter[...].ndim == 1:
                noise = jax.random.normal(jax.random.key(place), parameter.shape)
                parameter[...] = parameter[...] + 0.3 * noise
        model.embedding.weight[...] = model.embedding.weight[...] * 50
        return model

    return build()


@pytest.fixture(scope="module", params=HYBRIDS)
def model(request):
    return hybrid(request.param)


def test_greedy_tokens_equal_a_dense_recomputation(model, prompts):
    prompts = [prompts[0] * 9, prompts[8]]
    # Prompts run in chunks beside decodes.
    llm = LLM(model, max_num_batched_tokens=16, num_blocks=40)
    outputs = llm.generate(prompts, GREEDY)
    expected = dense_greedy(model, prompts, 12)
    assert [list(output.token_ids) for output in outputs] == expected
    # A model that says the same whatever it is told would prove little.
    assert len({tuple(own) for own in expected}) == len(expected)


def test_layers_may_have_different_backends_and_give_the_same_tokens(no_windows, prompts):
    model = hybrid("Gemma2ForCausalLM")
    options = {"block_size": 32, "num_blocks": 4}
    mixed, alone = LLM(model, **options), LLM(model, backend="xla", **options)
    chosen = [resolution.backend.name for resolution in mixed.resolutions]
    assert chosen[1] == "no_windows" != chosen[0]
    # What was chosen and why is there to see.
    assert mixed.resolutions[0].passed_over["no_windows"] == ["window 5: none here"]
    assert {resolution.backend.name for resolution in alone.resolutions} == {"xla"}
    tokens = [[o.token_ids for o in llm.generate(prompts[8:10], GREEDY)] for llm in (mixed, alone)]
    assert tokens[0] == tokens[1]
    assert names(mixed.resolutions)["backend"] == f"{chosen[0]}, no_windows"


def test_a_named_backend_must_serve_every_layer(no_windows):
    specs = [AttentionSpec(4, 2, 8, scale=0.5, window=window) for window in (None, 5, 5, 7)]
    options = {"layout": "auto", "block_size": 4, "dtype": "float32"}
    message = r"no_windows: window 5: none here\), as layers 1, 2 of 4 ask"
    for backend in ("no_windows", NoWindows()):
        with pytest.raises(UnsupportedError, match=message):
            resolve_layers(specs, backend=backend, **options)
    found = resolve_layers(specs, backend="auto", **options)
    # Layers that ask the same share one.
    assert found[1] is found[2]
    assert found[0].backend.name == "no_windows"
