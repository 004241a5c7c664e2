"""Between a Hugging Face `config.json` and a `ModelConfig`.

Every key is either read, known to change no arithmetic, or refused: a key that is silently
ignored is a model that silently computes something else.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paged.models.config import ModelConfig
from paged.models.rope import RopeConfig

_HARMLESS = frozenset(
    ["architectures", "attention_dropout", "attn_implementation", "bos_token_id", "dtype", "eos_token_id", "hidden_act", "initializer_range", "max_position_embeddings", "model_type", "pad_token_id", "pretraining_tp", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "prefix", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "top_k", "top_p", "torchscript", "typical_p", "use_bfloat16"]
)
"""Keys about training, generation or bookkeeping. A key that begins with `_` is one too."""

_NEUTRAL = {"partial_rotary_factor": 1.0}
"""Keys that would matter, but not at this value. So is any key at null or false."""

_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""Which keys each rope type takes, all of them required."""


class _Keys:
    """A config's keys, remembering which were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The key's value; `default` where it is missing or null."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """A required integer, or one with a default."""
        value = self.get(key, default)
        if value is None:
            raise ValueError(f"{key}: missing from the config")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{key}: got {value!r}, expected an integer")
        return value

    def number(self, key: str, default: float) -> float:
        """A number with a default."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{key}: got {value!r}, expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean with a default."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key}: got {value!r}, expected true or false")
        return value

    def unread(self) -> dict[str, Any]:
        """Keys that nothing asked for."""
        return {k: v for k, v in self._values.items() if k not in self._read}


Windows = tuple[int | None, ...]


def _no_windows(keys: _Keys, num_layers: int) -> Windows:
    return (None,) * num_layers


def _same_window(keys: _Keys, num_layers: int) -> Windows:
    return (keys.get("sliding_window"),) * num_layers


def _windows_by_layer(keys: _Keys, num_layers: int) -> Windows:
    """Qwen's rule: `layer_types` where written, else layers from `max_window_layers` on slide."""
    window = keys.get("sliding_window")
    if not keys.flag("use_sliding_window"):
        window = None
    first = keys.integer("max_window_layers", num_layers)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    types = keys.get("layer_types", default)
    if len(types) != num_layers:
        raise ValueError(f"layer_types: got {len(types)} entries, expected {num_layers}")
    for layer_type in types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise ValueError(
                f"layer_types: got {layer_type!r}, supported are full_attention, sliding_attention"
            )
    return tuple(window if t == "sliding_attention" else None for t in types)


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How one Hugging Face class differs from plain Llama.

    A bias is always there (True), never (False), or as the config's key of that name says.
    """

    model_type: str
    qkv_bias: bool | str
    output_bias: bool | str
    mlp_bias: bool | str
    qk_norm: bool
    windows: Callable[[_Keys, int], Windows]
    # A default that differs between classes is not guessed: such a key must be written out.
    heads_default: bool = False
    head_dim_default: bool = True


_ARCHITECTURES = {
    "LlamaForCausalLM": _Architecture(
        model_type="llama",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        qk_norm=False,
        windows=_no_windows,
        heads_default=True,
    ),
    "MistralForCausalLM": _Architecture(
        model_type="mistral",
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=_same_window,
    ),
    "Qwen2ForCausalLM": _Architecture(
        model_type="qwen2",
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=_windows_by_layer,
    ),
    "Qwen3ForCausalLM": _Architecture(
        model_type="qwen3",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=False,
        qk_norm=True,
        windows=_windows_by_layer,
        head_dim_default=False,
    ),
}

ARCHITECTURES = tuple(_ARCHITECTURES)
"""Hugging Face classes that can be loaded."""


def _architecture_name(values: Mapping[str, Any]) -> str:
    names = values.get("architectures") or []
    if not names:
        names = [n for n, a in _ARCHITECTURES.items() if a.model_type == values.get("model_type")]
    if len(names) != 1 or names[0] not in _ARCHITECTURES:
        raise ValueError(
            f"architectures: got {values.get('architectures')!r} with model_type "
            f"{values.get('model_type')!r}, supported are {', '.join(ARCHITECTURES)}"
        )
    return names[0]


def _read_rope(keys: _Keys) -> RopeConfig:
    """From `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before it)."""
    field = "rope_parameters" if keys.get("rope_parameters") is not None else "rope_scaling"
    scaling = keys.get(field, {})
    if not isinstance(scaling, Mapping) or any(isinstance(v, Mapping) for v in scaling.values()):
        raise ValueError(f"{field}: got {scaling!r}, expected one object of numbers for all layers")
    if field == "rope_parameters" and keys.get("rope_scaling") is not None:
        raise ValueError("rope_scaling: given beside rope_parameters, expected one of them")
    inner = _Keys(scaling)
    outer_theta = keys.number("rope_theta", 10000.0)
    theta = inner.number("rope_theta", outer_theta)
    if keys.get("rope_theta") is not None and theta != outer_theta:
        raise ValueError(f"rope_theta: got {outer_theta}, but {field} has {theta}")

    old_name = inner.get("type")
    rope_type = inner.get("rope_type", old_name or ("default" if not scaling else None))
    if rope_type is None and set(scaling) == {"rope_theta"}:
        rope_type = "default"
    if rope_type not in _ROPE_KEYS:
        raise ValueError(
            f"{field}.rope_type: got {rope_type!r}, supported are {', '.join(_ROPE_KEYS)}"
        )
    arguments = {}
    for key in _ROPE_KEYS[rope_type]:
        if inner.get(key) is None:
            raise ValueError(f"{field}.{key}: missing, rope_type {rope_type!r} needs it")
        arguments[key] = inner.number(key, 0.0)
    _refuse_unread(inner, field + ".", ())
    if "original_max_position_embeddings" in arguments:
        arguments["original_max_position_embeddings"] = int(
            arguments["original_max_position_embeddings"]
        )
    return RopeConfig(theta=theta, rope_type=rope_type, **arguments)


def _refuse_unread(keys: _Keys, prefix: str, ignore: Collection[str]) -> None:
    refused = {
        k: v
        for k, v in keys.unread().items()
        if k not in _HARMLESS
        and k not in ignore
        and not k.startswith("_")
        and v is not None
        and v is not False
        and not (k in _NEUTRAL and v == _NEUTRAL[k])
    }
    if refused:
        listed = ", ".join(f"{prefix}{k} = {v!r}" for k, v in sorted(refused.items()))
        raise ValueError(
            f"config keys that may change the arithmetic and are not implemented: {listed}; "
            "supported without them (ignore_keys names those known not to matter)"
        )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def config_from_hf(values: Mapping[str, Any], *, ignore_keys: Collection[str] = ()) -> ModelConfig:
    """The model that a Hugging Face `config.json` describes.

    Args:
        values: the parsed file, as transformers 4 or 5 writes it.
        ignore_keys: keys to pass over that would otherwise be refused as unknown.

    Raises:
        ValueError: an architecture, rope type or activation that is not implemented, a value out
            of range, or an unknown key that is not null or false; the key, its value and what is
            supported are named.
    """
    keys = _Keys(values)
    name = _architecture_name(values)
    architecture = _ARCHITECTURES[name]
    activation = keys.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act: got {activation!r}, supported is silu")

    def bias(rule: bool | str) -> bool:
        return keys.flag(rule) if isinstance(rule, str) else rule

    num_layers = keys.integer("num_hidden_layers")
    num_heads, hidden_size = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    eos = keys.get("eos_token_id")
    config = ModelConfig(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.integer(
            "num_key_value_heads", num_heads if architecture.heads_default else None
        ),
        head_dim=keys.integer(
            "head_dim", hidden_size // num_heads if architecture.head_dim_default else None
        ),
        max_position_embeddings=keys.integer("max_position_embeddings", 2048),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=_read_rope(keys),
        windows=architecture.windows(keys, num_layers),
        qkv_bias=bias(architecture.qkv_bias),
        output_bias=bias(architecture.output_bias),
        mlp_bias=bias(architecture.mlp_bias),
        qk_norm=architecture.qk_norm,
        tie_word_embeddings=keys.flag("tie_word_embeddings"),
        bos_token_id=keys.get("bos_token_id"),
        eos_token_ids=_token_ids(eos),
    )
    _refuse_unread(keys, "", ignore_keys)
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
        # The older spelling of rope: transformers 5 still reads it, 4 reads no other.
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": dtype,
    }
    windows = set(config.windows) - {None}
    if architecture.windows is _same_window:
        values["sliding_window"] = config.windows[0]
    elif architecture.windows is _windows_by_layer:
        values["use_sliding_window"] = bool(windows)
        values["sliding_window"] = max(windows, default=None)
        values["layer_types"] = [
            "full_attention" if w is None else "sliding_attention" for w in config.windows
        ]
    for rule, value in (
        (architecture.qkv_bias, config.qkv_bias),
        (architecture.output_bias, config.output_bias),
        (architecture.mlp_bias, config.mlp_bias),
    ):
        if isinstance(rule, str):
            values[rule] = value
    if config_from_hf(values) != config:
        raise ValueError(
            f"architecture: {config.architecture} cannot express this config, it would be read "
            f"back as {config_from_hf(values)}"
        )
    return values


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.rope_type == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.rope_type}
    scaling.update({key: getattr(rope, key) for key in _ROPE_KEYS[rope.rope_type]})
    return scaling
