"""Models that ship inside the package, by name."""

from pathlib import Path

from paged.names import unknown_name

_CHECKPOINTS = Path(__file__).parent / "checkpoints"


def builtin_models() -> tuple[str, ...]:
    """Names of the checkpoints inside the package."""
    return tuple(sorted(file.parent.name for file in _CHECKPOINTS.glob("*/config.json")))


def resolve_model(model: str | Path) -> Path:
    """The folder that a model's name or path stands for.

    A built-in name comes first: write "./tiny-gqa" for a folder of your own called that.

    Raises:
        ValueError: neither a built-in name nor a folder with a config.json.
    """
    if isinstance(model, str) and model in builtin_models():
        return _CHECKPOINTS / model
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise unknown_name(
            "model",
            str(model),
            builtin_models(),
            expected="a folder with a config.json, or one of the built-in models: {}",
        )
    return folder
