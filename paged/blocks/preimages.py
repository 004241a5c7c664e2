"""What each digest was made of, for a hash function that is not trusted.

A tree: each entry names its parent and what was hashed with it. It stays while something is
pinned to it: an entry below it, a cached block, or a request whose chain ends there. So whoever
holds on to an entry knows that all above it stay as they were compared, and a sequence whose
chain is found here entry by entry is the very sequence that was cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paged.blocks.errors import expect_equal


@dataclass(slots=True)
class _Entry:
    parent: bytes
    content: bytes
    pins: int = 0


class Preimages:
    """Entries by digest; the first to come keeps a digest as long as it is pinned."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[bytes, bytes, bytes]]:
        """(digest, parent, content) of each entry."""
        return [(digest, entry.parent, entry.content) for digest, entry in self._entries.items()]

    def restore(self, items: Sequence[tuple[bytes, bytes, bytes]], pinned: Sequence[bytes]) -> None:
        """Take over entries that were saved, and what is pinned."""
        self._entries = {digest: _Entry(parent, content) for digest, parent, content in items}
        for digest in [*pinned, *(parent for _, parent, _ in items)]:
            self.pin(digest)

    def num_known(self, root: bytes, digests: Sequence[bytes], contents: Sequence[bytes]) -> int:
        """How many leading blocks of a chain stand here with just these contents."""
        parent = root
        for index, (digest, content) in enumerate(zip(digests, contents, strict=True)):
            entry = self._entries.get(digest)
            if entry is None or entry.content != content or entry.parent != parent:
                return index
            parent = digest
        return len(digests)

    def enter(self, parent: bytes, digest: bytes, content: bytes) -> bool:
        """Note what a digest was made of; False where it stands for something else.

        The entry of the parent must be pinned, and the new one is to be pinned next.
        """
        entry = self._entries.get(digest)
        if entry is not None:
            return entry.content == content and entry.parent == parent
        self._entries[digest] = _Entry(parent, content)
        self.pin(parent)
        return True

    def pin(self, digest: bytes) -> None:
        """Hold on to an entry; a root, which has none, needs no holding."""
        entry = self._entries.get(digest)
        if entry is not None:
            entry.pins += 1

    def unpin(self, digest: bytes) -> None:
        """Let go of an entry. Where nobody else holds it, it goes, and lets go of its parent."""
        entry = self._entries.get(digest)
        while entry is not None:
            entry.pins -= 1
            if entry.pins:
                return
            del self._entries[digest]
            digest = entry.parent
            entry = self._entries.get(digest)

    def check_integrity(self, pinned: Sequence[bytes]) -> None:
        """Pins are those of entries below, of cached blocks and of requests.

        Args:
            pinned: the digests of cached blocks and of requests' ends, once for each.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        expected = dict.fromkeys(self._entries, 0)
        for digest in [*pinned, *(entry.parent for entry in self._entries.values())]:
            if digest in expected:
                expected[digest] += 1
        for digest, entry in self._entries.items():
            what = f"pins of the preimage of {digest.hex()}"
            expect_equal(what, entry.pins, expected[digest])
            expect_equal(f"whether {what} are any", entry.pins > 0, True)
