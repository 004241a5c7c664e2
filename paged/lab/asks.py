"""What is asked in one run: every combination of layouts and block sizes of one problem."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paged.backends import Backend
from paged.lab.problem import Problem
from paged.layouts import Layout, get_layout
from paged.spec import AttentionSpec

# DeepSeek-V2 and V3: the latent and its rotary part. arXiv:2405.04434, section 2.1.
_KV_LORA_RANK = 512
_QK_ROPE_HEAD_DIM = 64
_LATENT_HEADS = 128


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything of a problem but its layout and its block size.

    Attributes:
        num_heads: query heads; None is 32, and 128 for a latent cache.
        num_kv_heads: KV heads; a latent cache has 1.
        head_dim: width of a key; a latent cache has 512 + 64.
        window: see `AttentionSpec`.
        soft_cap: see `AttentionSpec`.
        has_sinks: see `AttentionSpec`.
        num_seqs: see `Problem`.
        kv_tokens: see `Problem`.
        query_len: see `Problem`.
        cache_dtype: see `Problem`.
        query_dtype: see `Problem`.
    """

    num_heads: int | None = None
    num_kv_heads: int = 8
    head_dim: int = 128
    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    num_seqs: int = 32
    kv_tokens: int = 4096
    query_len: int = 1
    cache_dtype: str = "bfloat16"
    query_dtype: str = "bfloat16"

    def spec(self, layout: Layout) -> AttentionSpec:
        """The attention that a cache of this layout is for."""
        plain = AttentionSpec(
            num_heads=self.num_heads or 32,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            window=self.window,
            soft_cap=self.soft_cap,
            has_sinks=self.has_sinks,
        )
        if not layout.is_latent:
            return plain
        width = _KV_LORA_RANK + _QK_ROPE_HEAD_DIM
        return replace(
            plain,
            num_heads=self.num_heads or _LATENT_HEADS,
            num_kv_heads=1,
            head_dim=width,
            scale=width**-0.5,
            kv_lora_rank=_KV_LORA_RANK,
            qk_rope_head_dim=_QK_ROPE_HEAD_DIM,
        )

    def problem(self, layout: Layout, block_size: int) -> Problem:
        """The problem on one layout."""
        return Problem(
            spec=self.spec(layout),
            layout=layout,
            block_size=block_size,
            num_seqs=self.num_seqs,
            kv_tokens=self.kv_tokens,
            query_len=self.query_len,
            cache_dtype=self.cache_dtype,
            query_dtype=self.query_dtype,
        )


def chosen_layouts(backend: Backend, names: str) -> tuple[Layout, ...]:
    """Layouts by name, separated by commas; "auto" is the backend's first, "all" all of them.

    Raises:
        ValueError: no layout of that name.
    """
    if names == "auto":
        return backend.layouts[:1]
    if names == "all":
        return tuple(backend.layouts)
    own = {layout.name: layout for layout in backend.layouts}
    return tuple(own.get(name) or get_layout(name) for name in split(names))


def chosen_block_sizes(text: str) -> tuple[int, ...]:
    """Block sizes, separated by commas.

    Raises:
        ValueError: what is no number.
    """
    sizes = split(text)
    if bad := [size for size in sizes if not size.isdecimal()]:
        raise ValueError(f"block_size: got {bad[0]!r}, expected numbers separated by commas")
    return tuple(int(size) for size in sizes)


def asks(
    backend: Backend, layouts: Sequence[Layout], block_sizes: Sequence[int], sizes: Sizes
) -> list[tuple[Backend, Problem]]:
    """Every combination."""
    return [
        (backend, sizes.problem(layout, block_size))
        for layout in layouts
        for block_size in block_sizes
    ]


def split(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
