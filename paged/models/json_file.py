"""Reading the JSON files of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any


def read_object(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ValueError: no JSON, or JSON of another kind; the file's path leads the message.
        OSError: a file that cannot be read.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: got no JSON ({error}), expected a JSON object") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file}: got {_short(values)}, expected a JSON object")
    return values


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
