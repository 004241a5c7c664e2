"""Between a Hugging Face `config.json` and a `ModelConfig`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from paged.models import hf_windows
from paged.models.config import ARCHITECTURES, ExpertsConfig, ModelConfig
from paged.models.hf_architecture import architecture_name, refuse_changed
from paged.models.hf_keys import Keys
from paged.models.hf_rope import DEFAULT_THETA, read_rope, read_ropes, write_rope, write_ropes


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How one Hugging Face class differs from the others.

    A bias is always there (True), never (False), or as the config's key of that name says. Where
    the classes have different defaults for a key none is guessed: the key must be written out.
    """

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    windows: hf_windows.WindowRule = hf_windows.NONE
    has_window_rope: bool = False
    has_experts: bool = False
    activation_key: str = "hidden_act"
    kv_heads_default_to_heads: bool = False
    head_dim_defaults_to_quotient: bool = True
    # None: must be written out.
    rms_norm_eps: float | None = 1e-6
    rope_theta: float | None = DEFAULT_THETA
    is_tied_by_default: bool = False
    # Fields of a `ModelConfig` that all models of the class have in common.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Numbers by the key that must be written out for them, if only as null.
    numbers: Mapping[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()

    @property
    def activation(self) -> str:
        """What `activation_key` must say."""
        return self.fixed.get("activation", "silu")


_GEMMA: dict[str, Any] = {
    "qkv_bias": "attention_bias",
    "output_bias": "attention_bias",
    "activation_key": "hidden_activation",
    "head_dim_defaults_to_quotient": False,
    "is_tied_by_default": True,
    # Which cache transformers would make.
    "harmless": ("cache_implementation",),
}
_GEMMA_FIXED = {
    "activation": "gelu_pytorch_tanh",
    "norm_offset": 1.0,
    "post_norms": True,
    "scale_embedding": True,
}
_GEMMA_NUMBERS = {
    "query_pre_attn_scalar": "query_pre_attn_scalar",
    "final_soft_cap": "final_logit_softcapping",
}

_ARCHITECTURES = {
    "LlamaForCausalLM": _Architecture(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        kv_heads_default_to_heads=True,
    ),
    "MistralForCausalLM": _Architecture(windows=hf_windows.SAME),
    "Qwen2ForCausalLM": _Architecture(qkv_bias=True, windows=hf_windows.QWEN),
    "Qwen3ForCausalLM": _Architecture(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows=hf_windows.QWEN,
        head_dim_defaults_to_quotient=False,
        fixed={"qk_norm": True},
    ),
    "Gemma2ForCausalLM": _Architecture(
        **_GEMMA,
        windows=hf_windows.hybrid(2),
        fixed=_GEMMA_FIXED,
        numbers={**_GEMMA_NUMBERS, "soft_cap": "attn_logit_softcapping"},
    ),
    "Gemma3ForCausalLM": _Architecture(
        **_GEMMA,
        windows=hf_windows.hybrid(6),
        has_window_rope=True,
        rope_theta=None,
        fixed={**_GEMMA_FIXED, "qk_norm": True},
        numbers=_GEMMA_NUMBERS,
    ),
    "GptOssForCausalLM": _Architecture(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows=hf_windows.hybrid(2),
        has_experts=True,
        head_dim_defaults_to_quotient=False,
        rms_norm_eps=None,
        rope_theta=None,
        fixed={"has_sinks": True},
        # Yarn's own key has the context's length; the other is of training.
        harmless=("initial_context_length", "router_aux_loss_coef"),
    ),
}


def config_from_hf(values: Mapping[str, Any], *, ignore_keys: Collection[str] = ()) -> ModelConfig:
    """The model that a Hugging Face `config.json` describes.

    Args:
        values: the parsed file, as transformers 4 or 5 writes it.
        ignore_keys: keys to pass over that would otherwise be refused as unknown.

    Raises:
        ValueError: an architecture, rope type or activation that is not implemented, a value
            missing or out of range, or an unknown key that is not null or false. The key, its
            value and what is supported are named.
    """
    keys = Keys(values)
    name = architecture_name(keys, ARCHITECTURES)
    architecture = _ARCHITECTURES[name]
    # Gemma's published configs say it twice.
    for key in dict.fromkeys((architecture.activation_key, "hidden_act")):
        if keys.get(key, architecture.activation) != architecture.activation:
            raise ValueError(
                f"{key}: got {keys.get(key)!r}, supported is {architecture.activation!r}"
            )
    for key in architecture.harmless:
        keys.get(key)

    def bias(rule: bool | str) -> bool:
        return keys.flag(rule) if isinstance(rule, str) else rule

    num_layers, num_heads = keys.num_layers(), keys.count("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    quotient = hidden_size // num_heads if architecture.head_dim_defaults_to_quotient else None
    kv_heads = num_heads if architecture.kv_heads_default_to_heads else None
    if architecture.has_window_rope:
        rope, window_rope = read_ropes(keys)
    else:
        rope, window_rope = read_rope(keys, architecture.rope_theta), None
    config = ModelConfig(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.count("num_key_value_heads", kv_heads),
        head_dim=keys.integer("head_dim", quotient),
        max_position_embeddings=keys.integer("max_position_embeddings", 2048),
        rms_norm_eps=keys.number("rms_norm_eps", architecture.rms_norm_eps, low=0),
        rope=rope,
        window_rope=window_rope,
        windows=architecture.windows.read(keys, num_layers),
        qkv_bias=bias(architecture.qkv_bias),
        output_bias=bias(architecture.output_bias),
        mlp_bias=bias(architecture.mlp_bias),
        experts=_read_experts(keys) if architecture.has_experts else None,
        tie_word_embeddings=keys.flag("tie_word_embeddings", architecture.is_tied_by_default),
        bos_token_id=keys.token_id("bos_token_id"),
        eos_token_ids=keys.token_ids("eos_token_id"),
        **{field: _read_number(keys, key) for field, key in architecture.numbers.items()},
        **architecture.fixed,
    )
    keys.refuse_unread(ignore_keys)
    return config


def _read_number(keys: Keys, key: str) -> Any:
    """A positive number as it is written, integers as such, or None for null."""
    if keys.require(key) is not None and keys.number(key) <= 0:
        raise ValueError(f"{key}: got {keys.get(key)!r}, expected a positive number or null")
    return keys.get(key)


def _read_experts(keys: Keys) -> ExpertsConfig:
    chosen = keys.count("num_experts_per_tok")
    if keys.count("experts_per_token", chosen) != chosen:
        raise ValueError(
            f"experts_per_token: got {keys.get('experts_per_token')}, but num_experts_per_tok is "
            f"{chosen}"
        )
    return ExpertsConfig(
        num_experts=keys.count("num_local_experts"),
        experts_per_token=chosen,
        swiglu_alpha=keys.number("swiglu_alpha", 1.702),
        swiglu_limit=keys.number("swiglu_limit", 7.0),
    )


def config_to_hf(config: ModelConfig, *, dtype: str) -> dict[str, Any]:
    """A `config.json` that transformers, 4 or 5, and `config_from_hf` read back.

    Args:
        config: the model.
        dtype: the weights' type by name, such as "bfloat16".

    Raises:
        ValueError: the config says something that its Hugging Face class cannot express.
    """
    architecture = _ARCHITECTURES[config.architecture]
    values: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": ARCHITECTURES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        architecture.activation_key: architecture.activation,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        **(
            write_ropes(config.rope, config.window_rope)
            if architecture.has_window_rope
            else write_rope(config.rope)
        ),
        **architecture.windows.write(config.windows),
        **{key: getattr(config, field) for field, key in architecture.numbers.items()},
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": dtype,
    }
    if config.experts is not None and architecture.has_experts:
        values["num_local_experts"] = config.experts.num_experts
        values["num_experts_per_tok"] = config.experts.experts_per_token
        values["swiglu_alpha"] = config.experts.swiglu_alpha
        values["swiglu_limit"] = config.experts.swiglu_limit
    for rule, present in (
        (architecture.qkv_bias, config.qkv_bias),
        (architecture.output_bias, config.output_bias),
        (architecture.mlp_bias, config.mlp_bias),
    ):
        if isinstance(rule, str):
            values[rule] = values.get(rule, False) or present
    # What the class cannot say, such as a Mistral with one full layer, would come back different.
    refuse_changed(config, config_from_hf, values)
    return values
