"""Text to token ids and back, from a Hugging Face `tokenizer.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from paged.models.builtin import resolve_model


class Tokenizer:
    """A `tokenizers.Tokenizer` and the ids that start and end a text.

    Attributes:
        backend: the wrapped `tokenizers.Tokenizer`.
        bos_token_id: token that starts a text, if the model has one.
        eos_token_ids: tokens that end a text; may be empty.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self.backend.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the start token if tokenizer.json says to add one."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no whole character yet become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a built-in model or of a Hugging Face folder.

    Start and end ids come from generation_config.json, and where that is silent from config.json:
    chat models add their end-of-turn token in the former only.

    Raises:
        ValueError: no such model, see `resolve_model`.
        FileNotFoundError: the folder has no tokenizer.json.
    """
    folder = resolve_model(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: not there; only tokenizer.json is read")
    ids: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text())
            ids.update({k: v for k, v in values.items() if v is not None})
    eos = ids.get("eos_token_id", [])
    return Tokenizer(
        tokenizers.Tokenizer.from_file(str(file)),
        bos_token_id=ids.get("bos_token_id"),
        eos_token_ids=eos if isinstance(eos, list) else [eos],
    )
