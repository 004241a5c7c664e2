"""Which Hugging Face class a config.json is of."""

from collections.abc import Mapping

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
