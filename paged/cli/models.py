"""A model's name on the command line, for what needs no weights."""

from pathlib import Path

from paged.capacity import ModelCache, preset_names, read_model
from paged.names import unknown_name


def model_cache(model: str) -> ModelCache:
    """The cache of a preset, a config.json, a Hugging Face folder or a built-in model.

    Raises:
        ValueError: none of them.
    """
    if model in preset_names() or Path(model).expanduser().exists():
        return read_model(model)
    # Only here: the models' package brings flax, and a preset should answer at once.
    from paged.models.builtin import builtin_models, resolve_model

    if model not in builtin_models():
        raise unknown_name(
            "model",
            model,
            (*preset_names(), *builtin_models()),
            expected="a config.json, a folder with one, or one of {}",
        )
    return read_model(resolve_model(model))
