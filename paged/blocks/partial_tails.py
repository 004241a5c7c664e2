"""Cached blocks whose first tokens are a prompt's next ones, to be copied instead of recomputed.

The tokens of a block follow its parent's digest, so the candidates are the blocks cached under the
same parent. Only blocks without keys of their own take part.
"""

import numpy as np
from jaxtyping import Int32


class PartialTails:
    """Tokens of the blocks in the index, by the digest of the block before them."""

    __slots__ = ("_block_size", "_entries", "_fresh", "_under")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: dict[int, tuple[bytes, Int32[np.ndarray, " tokens"]]] = {}
        self._under: dict[bytes, list[int]] = {}
        self._fresh: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    def as_json(self) -> list[list[str | int]]:
        """(parent, content, block) of each entry, in hexadecimal."""
        return [[p.hex(), t.tobytes().hex(), block] for block, (p, t) in self._entries.items()]

    def add(self, parent: bytes, content: bytes, block: int) -> None:
        """A full block entered the index."""
        if len(content) == 4 * self._block_size:
            self._entries[block] = (parent, np.frombuffer(content, np.int32))
            self._under.setdefault(parent, []).append(block)
            self._fresh.add(block)

    def discard(self, block: int) -> None:
        """A block left the index."""
        entry = self._entries.pop(block, None)
        if entry is None:
            return
        self._fresh.discard(block)
        siblings = self._under[entry[0]]
        siblings.remove(block)
        if not siblings:
            del self._under[entry[0]]

    def clear(self) -> None:
        """All blocks left the index."""
        self._entries.clear()
        self._under.clear()
        self._fresh.clear()

    def settle(self) -> None:
        """What was added until now is written before the next copies are."""
        self._fresh.clear()

    def find(self, parent: bytes, tokens: Int32[np.ndarray, " tokens"]) -> tuple[int, int]:
        """The block with the most leading tokens in common, and how many; (0, 0) for none.

        A block whose tokens are only written by the coming step is no source of a copy before it.
        """
        best, most = 0, 0
        for block in self._under.get(parent, ()):
            if block in self._fresh:
                continue
            held = self._entries[block][1]
            size = min(held.size, tokens.size)
            differs = (held[:size] != tokens[:size]).nonzero()[0]
            same = int(differs[0]) if differs.size else size
            if same > most:
                best, most = block, same
        return best, most
