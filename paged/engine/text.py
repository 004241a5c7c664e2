"""Token ids to text, piece by piece: whole characters only, and no part of a stop string."""

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"

# A character of UTF-8 has at most 4 bytes, so at most 3 tokens, and 3 replacement characters, wait
# for the rest of one. Until then replacement characters mean nothing: for a byte-fallback tokenizer
# one missing byte turns the whole characters before it into replacements too.
_MAX_INCOMPLETE = 3


class Decoder(Protocol):
    """What turns ids into text; `paged.models.Tokenizer` does."""

    def decode(self, ids: Sequence[int]) -> str:
        """The ids' text, U+FFFD for bytes that are no whole character."""
        ...


class Detokenizer:
    """Text of a growing list of tokens, given out as it becomes certain.

    Tokens may hold parts of a character, and some tokenizers drop a space at the start of a text.
    So a token is decoded behind the tokens that came before it, from the last place at which the
    text was whole, and only what it adds is given out. The pieces add up to the text of all tokens.

    Args:
        decoder: turns ids into text.
        context: ids before the first one, whose text is not given out: the prompt.
    """

    def __init__(self, decoder: Decoder, context: Sequence[int] = ()) -> None:
        self._decoder = decoder
        self._ids = list(context)
        # Of _ids[:_end] the text is given out; _ids is cut at a place where the text was whole.
        self._end = len(self._ids)
        self._incomplete = 0
        # A character that the context began is given out whole.
        text = decoder.decode(self._ids) if self._ids else ""
        self._given = len(text.rstrip(_REPLACEMENT))

    def add(self, token: int) -> str:
        """The text that becomes certain with a token; often "" within a character."""
        self._ids.append(token)
        text = self._decoder.decode(self._ids)
        whole = text.rstrip(_REPLACEMENT)
        self._incomplete = 0 if len(whole) == len(text) else self._incomplete + 1
        certain = len(whole)
        if self._incomplete > _MAX_INCOMPLETE:
            certain = max(certain, len(text) - _MAX_INCOMPLETE)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if piece and not self._incomplete:
            self._cut()
        return piece

    def finish(self) -> str:
        """What is left, incomplete characters as U+FFFD."""
        piece = self._decoder.decode(self._ids)[self._given :] if self._ids else ""
        self._given += len(piece)
        return piece

    def _cut(self) -> None:
        """Forget what lies before the last whole piece, which stays as context."""
        self._ids = self._ids[self._end :]
        self._end = len(self._ids)
        self._given = len(self._decoder.decode(self._ids))


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may become one.

    Args:
        stop: the strings; none passes all text on at once.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def add(self, piece: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string has come."""
        text = self._held + piece
        starts = [start for start in (text.find(stop) for stop in self._stop) if start >= 0]
        if starts:
            self._held = ""
            return text[: min(starts)], True
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
