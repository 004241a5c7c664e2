"""Text to token ids and back, from a Hugging Face `tokenizer.json`."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from paged.models.builtin import resolve_model
from paged.models.hf_keys import Keys
from paged.models.json_file import read_object


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
        """Token ids of a text, with the start token if tokenizer.json says to add one.

        Raises:
            ValueError: a text that is no Unicode, with the place of the first lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text[{error.start}]: got the lone surrogate {text[error.start]!a}, expected "
                "Unicode text"
            ) from None
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no whole character yet become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a built-in model or of a Hugging Face folder.

    Start and end ids come from generation_config.json, and where that is silent from config.json:
    chat models add their end-of-turn token in the former only.

    Raises:
        ValueError: no such model, see `resolve_model`, or a file that does not hold what it should,
            by its path.
        FileNotFoundError: the folder has no tokenizer.json.
    """
    folder = resolve_model(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: not there; only tokenizer.json is read")
    bos: int | None = None
    eos: tuple[int, ...] = ()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            keys = Keys(read_object(folder / name))
            try:
                bos = keys.token_id("bos_token_id", bos)
                eos = keys.token_ids("eos_token_id", eos)
            except ValueError as error:
                raise ValueError(f"{folder / name}: {error}") from error
    return Tokenizer(_read_backend(file), bos_token_id=bos, eos_token_ids=eos)


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(
            f"{file}: got no tokenizer ({error}), expected a Hugging Face tokenizer.json"
        ) from error
