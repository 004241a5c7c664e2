"""Rotary embedding as Hugging Face configs spell it, in both of their spellings.

transformers 5 writes one object `rope_parameters`; before it there were `rope_theta` and
`rope_scaling`, whose type was called `type` at first and `rope_type` later.
"""

from collections.abc import Mapping
from typing import Any

from paged.models.hf_keys import Keys
from paged.models.rope import RopeConfig

DEFAULT_THETA = 10000.0
"""The base where a class says nothing else and a config says none."""

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = ("factor", "original_max_position_embeddings")
_ARGUMENTS = {"default": (), "linear": ("factor",), "llama3": _LLAMA3, "yarn": _YARN}
"""What each rope type must come with."""

_YARN_NUMBERS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
"""What yarn may come with, beside the flag `truncate`."""


def read_rope(keys: Keys, theta: float | None = DEFAULT_THETA) -> RopeConfig:
    """The rotary embedding of a config, one for all layers.

    Args:
        keys: the config.
        theta: the base where it names none; None if it must.

    Raises:
        ValueError: a type that is not implemented, an argument that is missing or unknown, or two
            spellings that disagree; the key, its value and what is supported are named.
    """
    new, old = keys.get("rope_parameters"), keys.get("rope_scaling")
    if new is not None and old is not None:
        raise ValueError(f"rope_scaling: got {old!r} beside rope_parameters, expected one of them")
    field = "rope_scaling" if new is None else "rope_parameters"
    values = new if new is not None else {} if old is None or old is False else old
    return _read_object(values, field, keys, theta)


def read_ropes(keys: Keys) -> tuple[RopeConfig, RopeConfig | None]:
    """The rotary embeddings of layers that see everything and of those with a window.

    The newer spelling has an object for each kind of layer in `rope_parameters`; in the older one
    a scaling is of the first alone, and the second has a base, `rope_local_base_freq`. The second
    is None where it is the same as the first. Raises as `read_rope`; no base is guessed.
    """
    new = keys.get("rope_parameters")
    if isinstance(new, Mapping) and set(new) == {"full_attention", "sliding_attention"}:
        full, sliding = (
            _read_object(
                values, f"rope_parameters.{kind}", Keys({}, f"rope_parameters.{kind}."), None
            )
            for kind, values in sorted(new.items())
        )
    else:
        full = read_rope(keys, None)
        sliding = RopeConfig(theta=keys.number("rope_local_base_freq"))
    return full, None if sliding == full else sliding


def _read_object(
    values: Mapping[str, Any], field: str, outer: Keys, theta: float | None
) -> RopeConfig:
    if not isinstance(values, Mapping) or any(isinstance(v, Mapping) for v in values.values()):
        raise ValueError(f"{field}: got {values!r}, expected one object of plain values")
    inner = Keys(values, f"{field}.")
    default = theta if "rope_theta" in inner else outer.number("rope_theta", theta)
    base = inner.number("rope_theta", default)
    if outer.number("rope_theta", base) != base:
        raise ValueError(f"rope_theta: got {outer.get('rope_theta')}, but {field} has {base}")
    # Only an object that says nothing but the base may leave its type out.
    plain = "default" if set(values) <= {"rope_theta"} else None
    rope_type = inner.get("rope_type", inner.get("type", plain))
    if not isinstance(rope_type, str) or rope_type not in _ARGUMENTS:
        raise ValueError(
            f"{field}.rope_type: got {rope_type!r}, supported are {', '.join(_ARGUMENTS)}"
        )
    arguments: dict[str, Any] = {
        name: inner.integer(name) if name.startswith("original_max") else inner.number(name)
        for name in _ARGUMENTS[rope_type]
    }
    if rope_type == "yarn":
        arguments |= {n: inner.number(n) for n in _YARN_NUMBERS if inner.get(n) is not None}
        arguments["truncate"] = inner.get("truncate") is None or inner.flag("truncate")
    inner.refuse_unread()
    return RopeConfig(theta=base, rope_type=rope_type, **arguments)


def write_rope(rope: RopeConfig) -> dict[str, Any]:
    """The config keys, in the older spelling: transformers 5 still reads it, 4 reads no other."""
    scaling = {name: getattr(rope, name) for name in _ARGUMENTS[rope.rope_type]}
    if rope.rope_type == "yarn":
        own = {name: getattr(rope, name) for name in _YARN_NUMBERS}
        scaling |= {name: value for name, value in own.items() if value}
        scaling["truncate"] = rope.truncate
    return {
        "rope_theta": rope.theta,
        "rope_scaling": {"rope_type": rope.rope_type, **scaling} if scaling else None,
    }


def write_ropes(full: RopeConfig, sliding: RopeConfig | None) -> dict[str, Any]:
    """The config keys for `read_ropes`, in the older spelling wherever that can say it."""
    sliding = sliding or full
    if sliding.rope_type == "default":
        return {**write_rope(full), "rope_local_base_freq": sliding.theta}
    kinds = {"full_attention": full, "sliding_attention": sliding}
    written = {kind: write_rope(rope) for kind, rope in kinds.items()}
    return {
        "rope_parameters": {
            kind: {
                "rope_type": "default",
                **(keys["rope_scaling"] or {}),
                "rope_theta": keys["rope_theta"],
            }
            for kind, keys in written.items()
        }
    }
