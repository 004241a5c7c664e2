"""What beside its tokens decides what a block holds: adapter, tenant and images.

Each key is written with a tag and its length, so that no two sets of keys read alike: an adapter
called "x" is not a salt called "x", and ("ab", "c") is not ("a", "bc").
"""

from dataclasses import dataclass
from typing import Any

from paged.blocks import checks

MAX_DIGEST_SIZE = 32
"""Bytes of a digest; a root is longer, so that none is the other."""

_ROOT = b"paged.blocks: the root of a chain of digests"
_ADAPTER = b"A"
_SALT = b"S"
_IMAGE = b"I"


@dataclass(frozen=True, slots=True)
class Image:
    """Tokens that stand for an image, or for any other input that is not text.

    Attributes:
        digest: of the input: equal digests mean equal inputs.
        start: position of its first token.
        length: its tokens.
    """

    digest: bytes
    start: int
    length: int

    def __post_init__(self) -> None:
        if not isinstance(self.digest, bytes):
            raise ValueError(f"digest: got {self.digest!r}, expected bytes")
        checks.integer("start", self.start, at_least=0)
        checks.integer("length", self.length, at_least=1)


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """Whose blocks these are. Blocks are shared only where all of it is equal.

    Attributes:
        adapter: name of the adapter (LoRA) that computes them; None for the plain model.
        salt: secret of the tenant; requests with different salts share nothing.
        images: where images stand among the tokens.
    """

    adapter: str | None = None
    salt: str | None = None
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        for name in ("adapter", "salt"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name}: got {value!r}, expected a string or None")

    def of_root(self) -> bytes:
        """The keys that hold for all blocks."""
        parts = [_ROOT]
        if self.adapter is not None:
            parts.append(_tagged(_ADAPTER, self.adapter.encode()))
        if self.salt is not None:
            parts.append(_tagged(_SALT, self.salt.encode()))
        return b"".join(parts)

    def of_block(self, start: int, end: int) -> bytes:
        """The keys of the block that holds positions start .. end - 1; none of most blocks."""
        return b"".join(
            _tagged(_IMAGE, (image.start - start).to_bytes(8, "big", signed=True) + image.digest)
            for image in self.images
            if image.start < end and start < image.start + image.length
        )

    def as_json(self) -> dict[str, Any]:
        """For a snapshot."""
        images = [[image.digest.hex(), image.start, image.length] for image in self.images]
        return {"adapter": self.adapter, "salt": self.salt, "images": images}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> "CacheKeys":
        """From what `as_json` made."""
        images = tuple(Image(bytes.fromhex(hexed), *place) for hexed, *place in form["images"])
        return cls(form["adapter"], form["salt"], images)


def _tagged(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "big") + value
