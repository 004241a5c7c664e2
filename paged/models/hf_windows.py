"""Which layers have a window, as Hugging Face configs say it: one rule for each way of saying."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paged.models.hf_keys import Keys

Windows = tuple[int | None, ...]

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How a class says it.

    Attributes:
        read: each layer's window, from a config and the number of layers.
        write: the keys, from the layers' windows.
    """

    read: Callable[[Keys, int], Windows]
    write: Callable[[Windows], dict[str, Any]]


def _read_none(keys: Keys, num_layers: int) -> Windows:
    return (None,) * num_layers


def _read_same(keys: Keys, num_layers: int) -> Windows:
    window = keys.require("sliding_window")
    return (None if window is None else keys.count("sliding_window"),) * num_layers


def _read_qwen(keys: Keys, num_layers: int) -> Windows:
    first, window = keys.get("max_window_layers"), keys.get("sliding_window")
    types = keys.get("layer_types")
    if not keys.flag("use_sliding_window"):
        window = None
    elif keys.require("sliding_window") is not None and types is None:
        first = keys.integer("max_window_layers")
        types = [_SLIDING if i >= first else _FULL for i in range(num_layers)]
    if window is not None:
        window = keys.count("sliding_window")
    return _by_type([_FULL] * num_layers if types is None else types, num_layers, window)


def _by_type(types: Any, num_layers: int, window: int | None) -> Windows:
    if not isinstance(types, list):
        raise ValueError(f"layer_types: got {types!r}, expected a list of {_FULL}, {_SLIDING}")
    if len(types) != num_layers:
        raise ValueError(f"layer_types: got {len(types)} entries, expected {num_layers}")
    for layer_type in types:
        if layer_type not in (_FULL, _SLIDING):
            raise ValueError(f"layer_types: got {layer_type!r}, supported are {_FULL}, {_SLIDING}")
    return tuple(window if layer_type == _SLIDING else None for layer_type in types)


def _width(windows: Windows) -> int | None:
    return max((window for window in windows if window is not None), default=None)


def _types(windows: Windows) -> list[str]:
    return [_FULL if window is None else _SLIDING for window in windows]


def _write_qwen(windows: Windows) -> dict[str, Any]:
    return {
        "sliding_window": _width(windows),
        "use_sliding_window": _width(windows) is not None,
        "layer_types": _types(windows),
    }


NONE = WindowRule(_read_none, lambda windows: {})
"""Every layer sees everything."""

SAME = WindowRule(_read_same, lambda windows: {"sliding_window": _width(windows)})
"""Mistral's: every layer slides, unless the window is null."""

QWEN = WindowRule(_read_qwen, _write_qwen)
"""`layer_types` where written, else layers from `max_window_layers` on slide."""


def hybrid(period: int) -> WindowRule:
    """`layer_types` where written, else all but the last of every `period` layers slide.

    Older configs write that number as `sliding_window_pattern`.
    """

    def read(keys: Keys, num_layers: int) -> Windows:
        every = keys.count("sliding_window_pattern", period)
        pattern = [_FULL if (i + 1) % every == 0 else _SLIDING for i in range(num_layers)]
        types = keys.get("layer_types", pattern)
        window = keys.require("sliding_window")
        if window is not None or _SLIDING in types:
            window = keys.count("sliding_window")
        return _by_type(types, num_layers, window)

    def write(windows: Windows) -> dict[str, Any]:
        return {"sliding_window": _width(windows), "layer_types": _types(windows)}

    return WindowRule(read, write)
