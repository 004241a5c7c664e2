"""Which Hugging Face class a config.json is of, and whether that can say what a model is."""

from collections.abc import Callable, Mapping
from typing import Any

from paged.models.hf_keys import Keys


def architecture_name(keys: Keys, known: Mapping[str, str]) -> str:
    """The class that a config names, or that its model_type implies.

    Args:
        keys: the config.
        known: the model_type of each class that can be loaded.

    Raises:
        ValueError: another class, several or none; it lists those known.
    """
    names, model_type = keys.get("architectures", []), keys.get("model_type")
    if not names:
        names = [name for name, own in known.items() if own == model_type]
    # A list first: what is written may be anything, and a lookup wants a hashable name.
    if not (isinstance(names, list) and len(names) == 1 and names[0] in tuple(known)):
        raise ValueError(
            f"architectures: got {keys.get('architectures')!r} with model_type {model_type!r}, "
            f"supported are {', '.join(known)}"
        )
    return names[0]


def refuse_changed(config: Any, read: Callable[[Any], Any], values: Mapping[str, Any]) -> None:
    """Refuses to write a config that would come back different.

    Args:
        config: the model; it names its `architecture`.
        read: from what is written.
        values: what would be written.

    Raises:
        ValueError: it names the fields that the class cannot express, their values and what would
            be read.
    """
    try:
        back = read(values)
    except ValueError as error:
        raise ValueError(
            f"architecture: {config.architecture} cannot express it: {error}"
        ) from error
    changed = [
        f"{name} {getattr(config, name)!r} (it would be {getattr(back, name)!r})"
        for name in type(config).__slots__
        if getattr(config, name) != getattr(back, name)
    ]
    if changed:
        raise ValueError(f"architecture: {config.architecture} cannot express {', '.join(changed)}")
