"""Between a Hugging Face `config.json` and a `ModelConfig`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paged.models.config import ModelConfig
from paged.models.hf_architecture import architecture_name
from paged.models.hf_keys import Keys
from paged.models.hf_rope import read_rope, write_rope

Windows = tuple[int | None, ...]

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _no_windows(keys: Keys, num_layers: int) -> Windows:
    return (None,) * num_layers


def _same_window(keys: Keys, num_layers: int) -> Windows:
    """Mistral's rule: every layer slides, unless the window is null."""
    window = keys.require("sliding_window")
    return (None if window is None else keys.count("sliding_window"),) * num_layers


def _windows_by_layer(keys: Keys, num_layers: int) -> Windows:
    """Qwen's rule: `layer_types` where written, else layers from `max_window_layers` on slide."""
    first, window = keys.get("max_window_layers"), keys.get("sliding_window")
    types = keys.get("layer_types")
    if not keys.flag("use_sliding_window"):
        window = None
    elif keys.require("sliding_window") is not None and types is None:
        first = keys.integer("max_window_layers")
        types = [_SLIDING if i >= first else _FULL for i in range(num_layers)]
    if window is not None:
        window = keys.count("sliding_window")
    types = [_FULL] * num_layers if types is None else types
    if not isinstance(types, list):
        raise ValueError(f"layer_types: got {types!r}, expected a list of {_FULL}, {_SLIDING}")
    if len(types) != num_layers:
        raise ValueError(f"layer_types: got {len(types)} entries, expected {num_layers}")
    for layer_type in types:
        if layer_type not in (_FULL, _SLIDING):
            raise ValueError(f"layer_types: got {layer_type!r}, supported are {_FULL}, {_SLIDING}")
    return tuple(window if layer_type == _SLIDING else None for layer_type in types)


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How one Hugging Face class differs from the others.

    A bias is always there (True), never (False), or as the config's key of that name says. Where
    the classes have different defaults for a key none is guessed: the key must be written out.
    """

    model_type: str
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    windows: Callable[[Keys, int], Windows] = _no_windows
    kv_heads_default_to_heads: bool = False
    head_dim_defaults_to_quotient: bool = True


_ARCHITECTURES = {
    "LlamaForCausalLM": _Architecture(
        model_type="llama",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        kv_heads_default_to_heads=True,
    ),
    "MistralForCausalLM": _Architecture(model_type="mistral", windows=_same_window),
    "Qwen2ForCausalLM": _Architecture(model_type="qwen2", qkv_bias=True, windows=_windows_by_layer),
    "Qwen3ForCausalLM": _Architecture(
        model_type="qwen3",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        windows=_windows_by_layer,
        head_dim_defaults_to_quotient=False,
    ),
}

ARCHITECTURES = {name: own.model_type for name, own in _ARCHITECTURES.items()}
"""Hugging Face classes of this family, and their model_type."""


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
    if not isinstance(values, Mapping):
        raise ValueError(f"config: got {values!r}, expected a JSON object")
    keys = Keys(values)
    name = architecture_name(keys, ARCHITECTURES)
    architecture = _ARCHITECTURES[name]
    if keys.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act: got {keys.get('hidden_act')!r}, supported is 'silu'")

    def bias(rule: bool | str) -> bool:
        return keys.flag(rule) if isinstance(rule, str) else rule

    num_layers, num_heads = keys.count("num_hidden_layers"), keys.count("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    quotient = hidden_size // num_heads if architecture.head_dim_defaults_to_quotient else None
    kv_heads = num_heads if architecture.kv_heads_default_to_heads else None
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
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6, low=0),
        rope=read_rope(keys),
        windows=architecture.windows(keys, num_layers),
        qkv_bias=bias(architecture.qkv_bias),
        output_bias=bias(architecture.output_bias),
        mlp_bias=bias(architecture.mlp_bias),
        qk_norm=architecture.qk_norm,
        tie_word_embeddings=keys.flag("tie_word_embeddings"),
        bos_token_id=keys.token_id("bos_token_id"),
        eos_token_ids=keys.token_ids("eos_token_id"),
    )
    keys.refuse_unread(ignore_keys)
    return config


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
        "model_type": architecture.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        **write_rope(config.rope),
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": dtype,
    }
    window = max((w for w in config.windows if w is not None), default=None)
    if architecture.windows is _same_window:
        values["sliding_window"] = window
    elif architecture.windows is _windows_by_layer:
        values["sliding_window"] = window
        values["use_sliding_window"] = window is not None
        values["layer_types"] = [_FULL if w is None else _SLIDING for w in config.windows]
    for rule, present in (
        (architecture.qkv_bias, config.qkv_bias),
        (architecture.output_bias, config.output_bias),
        (architecture.mlp_bias, config.mlp_bias),
    ):
        if isinstance(rule, str):
            values[rule] = values.get(rule, False) or present
    # What the class cannot say, such as a Mistral with one full layer, would come back different.
    if config_from_hf(values) != config:
        raise ValueError(
            f"architecture: {config.architecture} cannot express {config}; as written it would be "
            f"{config_from_hf(values)}"
        )
    return values
