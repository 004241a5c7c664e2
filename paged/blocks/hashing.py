"""The hash chain: a digest for each full block of a sequence, of all that came before it.

    digest[i] = hash(digest[i - 1] + tokens of block i + keys of block i)

digest[-1], the root, is the keys that hold for the whole sequence. Equal digests mean equal
sequences: by sha256 nobody can make it otherwise; any other function is not trusted, and what was
hashed is compared (see `preimages`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int32

from paged.blocks import checks
from paged.blocks.keys import MAX_DIGEST_SIZE, CacheKeys

HashFunction = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Hasher:
    """Digests of blocks.

    Attributes:
        name: of the function; "custom" for one that was given.
        function: bytes to a digest of constant length.
        is_trusted: whether equal digests may be taken for equal contents.
        unit: tokens that one digest covers.
        digest_size: bytes of a digest.
        keeps_contents: whether what was hashed is wanted later.
    """

    name: str
    function: HashFunction
    is_trusted: bool
    unit: int
    digest_size: int
    keeps_contents: bool

    @classmethod
    def of(cls, hash: str | HashFunction, unit: int, *, keeps_contents: bool = False) -> "Hasher":
        """The hasher that a manager's `hash` argument asks for.

        Raises:
            ValueError: neither a known name nor a function.
            ImportError: xxhash is asked for and not installed.
        """
        if hash == "sha256":
            return cls("sha256", _sha256, True, unit, 32, keeps_contents)
        if hash == "xxhash":
            # Only those who ask for it need it.
            import xxhash  # pyright: ignore[reportMissingImports]

            return cls("xxhash", xxhash.xxh3_128_digest, False, unit, 16, True)
        if not callable(hash):
            raise ValueError(f"hash: got {hash!r}, expected 'sha256', 'xxhash' or a function")
        digest = hash(b"")
        if not isinstance(digest, bytes) or not 1 <= len(digest) <= MAX_DIGEST_SIZE:
            raise ValueError(
                f"hash: got a function that gives {digest!r}, expected 1 to {MAX_DIGEST_SIZE} bytes"
            )
        size = len(digest)
        return cls("custom", _OfOneLength(hash, size), False, unit, size, True)

    def chain(
        self, parent: bytes, tokens: Int32[np.ndarray, " tokens"], start: int, keys: CacheKeys
    ) -> tuple[list[bytes], list[bytes]]:
        """Digests of the full blocks of `tokens`, and what of each was hashed beside its parent.

        Args:
            parent: digest of the block before, or the root.
            tokens: from position `start` on.
            start: a multiple of the unit.
            keys: of the sequence.

        Raises:
            ValueError: a digest of another length than the function's first.
        """
        function = self.function
        if tokens.size == self.unit and not keys.images:
            # One block at a time is how sequences grow.
            content = tokens.tobytes()
            return [function(parent + content)], [content]
        contents, digests = self._contents(tokens, start, keys), []
        for content in contents:
            parent = function(parent + content)
            digests.append(parent)
        return digests, contents

    def _contents(
        self, tokens: Int32[np.ndarray, " tokens"], start: int, keys: CacheKeys
    ) -> list[bytes]:
        data = tokens.tobytes()
        width = 4 * self.unit
        # Of blocks that are not full nothing is hashed.
        ends = range(width, len(data) + 1, width)
        contents = [data[end - width : end] for end in ends]
        if keys.images:
            for index in range(len(contents)):
                first = start + index * self.unit
                contents[index] += keys.of_block(first, first + self.unit)
        return contents


@dataclass(frozen=True, slots=True)
class _OfOneLength:
    """A function that was given, held to what the index relies on."""

    function: HashFunction
    size: int

    def __call__(self, data: bytes) -> bytes:
        digest = self.function(data)
        if not isinstance(digest, bytes) or len(digest) != self.size:
            raise ValueError(
                f"hash: got a function that gives {digest!r}, expected {self.size} bytes, as at "
                "first"
            )
        return digest


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence of known tokens and its hash chain: made once, asked about as often as wanted.

    Attributes:
        token_ids: [tokens] int32, read-only.
        keys: what else decides what its blocks hold.
        hasher: what hashed it; None without prefix caching.
        root: what the chain starts from.
        digests: one for each full block of the hash's unit.
        contents: what of each was hashed beside its parent; empty where nobody will ask.
    """

    token_ids: Int32[np.ndarray, " tokens"]
    keys: CacheKeys
    hasher: Hasher | None = field(repr=False)
    root: bytes = field(repr=False)
    digests: tuple[bytes, ...] = field(repr=False)
    contents: tuple[bytes, ...] = field(repr=False)

    def __len__(self) -> int:
        return self.token_ids.size

    @classmethod
    def make(cls, hasher: Hasher | None, token_ids: Any, keys: CacheKeys) -> "Prompt":
        """Hash a prompt; without a hasher it only carries its tokens."""
        tokens = checks.token_ids("token_ids", token_ids)
        if tokens.size == 0:
            raise ValueError("token_ids: got none, expected at least one token")
        return cls(tokens[:0], keys, hasher, keys.of_root(), (), ()).followed_by(tokens)

    def followed_by(self, token_ids: Any) -> "Prompt":
        """This sequence and more tokens; what is hashed of it stays.

        A request that lost its blocks comes back with all its tokens as its prompt.

        Raises:
            ValueError: no integers from 0 to 2**31 - 1.
        """
        more = checks.token_ids("token_ids", token_ids)
        tokens = np.concatenate([self.token_ids, more])
        tokens.flags.writeable = False
        digests, contents = self.digests, self.contents
        if self.hasher is not None:
            start = len(digests) * self.hasher.unit
            parent = digests[-1] if digests else self.root
            new, hashed = self.hasher.chain(parent, tokens[start:], start, self.keys)
            digests += tuple(new)
            if self.hasher.keeps_contents:
                contents += tuple(hashed)
        return Prompt(tokens, self.keys, self.hasher, self.root, digests, contents)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
