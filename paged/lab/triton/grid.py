"""Which shapes are compiled: the one place where they are listed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

DTYPES = ("bfloat16", "float16", "float8_e4m3fn")
HEAD_DIMS = (64, 96, 128, 256)
GROUPS = (1, 4, 7, 8, 16)
BLOCK_SIZES = (16, 64)
OTHER_LAYOUTS = ("flashinfer", "flashinfer_hnd", "packed", "pallas")
LATENT_DTYPES = ("bfloat16", "float8_e4m3fn")
LATENT_HEADS = (128, 16)
LATENT_DIM = 512 + 64

KERNELS = ("decode", "prefill", "reduce", "write")


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape. Defaults are the shape around which the others vary.

    Attributes:
        kernel: one of `KERNELS`.
        layout: by name; "mla" is a cache of latents.
        dtype: storage type of the cache. Queries are float16 where it is, and bfloat16 elsewhere.
        head_dim: width of a key.
        group: query heads per KV head; all of them for a latent. 1 for a write, which has none.
        block_size: tokens per block.
        window: whether queries see a window only.
        soft_cap: whether logits are capped.
        split: whether the decode's keys are cut into parts, so that a reduction follows.
    """

    kernel: str
    layout: str = "flash_attn"
    dtype: str = "bfloat16"
    head_dim: int = 128
    group: int = 4
    block_size: int = 16
    window: bool = False
    soft_cap: bool = False
    split: bool = False

    @property
    def is_latent(self) -> bool:
        """Whether the cache has latents."""
        return self.layout == "mla"

    @property
    def name(self) -> str:
        """The kernel as rows call it: "mla_" before it for latents, and behind it what is on."""
        parts = [("mla_" if self.is_latent else "") + self.kernel]
        parts += [word for word in ("window", "soft_cap", "split") if getattr(self, word)]
        return "+".join(parts)

    @property
    def label(self) -> str:
        """For messages."""
        return (
            f"{self.name}, {self.layout}, {self.dtype}, head_dim {self.head_dim}, "
            f"group {self.group}, blocks of {self.block_size}"
        )


def default_cases() -> tuple[Case, ...]:
    """The representative ones: one axis at a time around the default shape."""
    decode, prefill = Case("decode"), Case("prefill")
    latent = _latent("decode")
    reduce, write = Case("reduce"), Case("write", group=1)
    fp8 = "float8_e4m3fn"
    return (
        *(replace(decode, dtype=dtype) for dtype in DTYPES),
        *(replace(decode, head_dim=head_dim) for head_dim in HEAD_DIMS if head_dim != 128),
        *(replace(decode, group=group) for group in GROUPS if group != 4),
        replace(decode, block_size=64),
        replace(decode, block_size=64, dtype=fp8),
        replace(decode, head_dim=256, dtype=fp8),
        replace(decode, window=True, soft_cap=True),
        replace(decode, split=True),
        *(replace(decode, layout=layout) for layout in ("flashinfer_hnd", "packed")),
        prefill,
        replace(prefill, dtype=fp8),
        replace(prefill, head_dim=256),
        replace(prefill, window=True, soft_cap=True),
        reduce,
        write,
        replace(write, dtype=fp8),
        latent,
        replace(latent, group=16),
        replace(latent, block_size=64, dtype=fp8),
        _latent("prefill"),
    )


def full_cases() -> tuple[Case, ...]:
    """The whole grid, the default cases first."""
    return tuple(dict.fromkeys((*default_cases(), *_whole())))


def chosen_cases(kernels: str, *, full: bool) -> tuple[Case, ...]:
    """The cases of some kernels, by name with commas; "all" is every one.

    Raises:
        ValueError: a name that is no kernel.
    """
    wanted = [part.strip() for part in kernels.split(",")]
    known = (*KERNELS, *(f"mla_{kernel}" for kernel in KERNELS), "all")
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"kernel: got {unknown[0]!r}, expected some of {', '.join(known)}")
    cases = full_cases() if full else default_cases()
    return tuple(c for c in cases if "all" in wanted or c.name.split("+")[0] in wanted)


def _whole() -> Iterator[Case]:
    for kernel in ("decode", "prefill"):
        # Window and cap together, or neither; each by itself at the default shape only.
        yield from (replace(Case(kernel), **one) for one in ({"window": True}, {"soft_cap": True}))
        for dtype, dim, group, block, limited in product(
            DTYPES, HEAD_DIMS, GROUPS, BLOCK_SIZES, (False, True)
        ):
            yield Case(
                kernel, dtype=dtype, head_dim=dim, group=group, block_size=block,
                window=limited, soft_cap=limited,
            )  # fmt: skip
        yield from (Case(kernel, layout=layout) for layout in OTHER_LAYOUTS)
        for dtype, heads, block in product(LATENT_DTYPES, LATENT_HEADS, BLOCK_SIZES):
            yield _latent(kernel, dtype=dtype, group=heads, block_size=block)
    for dtype, dim in product(DTYPES, HEAD_DIMS):
        yield Case("decode", dtype=dtype, head_dim=dim, split=True)
        yield Case("reduce", dtype=dtype, head_dim=dim)
    yield from _writes()
    for dtype, heads in product(LATENT_DTYPES, LATENT_HEADS):
        yield _latent("decode", dtype=dtype, group=heads, split=True)
        yield _latent("reduce", dtype=dtype, group=heads)


def _writes() -> Iterable[Case]:
    for dtype, dim in product(DTYPES, HEAD_DIMS):
        yield Case("write", dtype=dtype, head_dim=dim, group=1)
    for layout in OTHER_LAYOUTS:
        yield Case("write", layout=layout, group=1)
    for dtype in LATENT_DTYPES:
        yield _latent("write", dtype=dtype, group=1)


def _latent(
    kernel: str,
    *,
    dtype: str = "bfloat16",
    group: int = LATENT_HEADS[0],
    block_size: int = 16,
    split: bool = False,
) -> Case:
    return Case(kernel, "mla", dtype, LATENT_DIM, group, block_size, split=split)
