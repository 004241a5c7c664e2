"""What is timed, as data."""

from dataclasses import dataclass, replace

LAYOUTS = ("flash_attn", "flashinfer", "flashinfer_hnd", "packed", "pallas")
BLOCK_SIZES = (16, 64)


@dataclass(frozen=True, slots=True)
class Heads:
    """Of one layer on one device.

    Attributes:
        name: of the model.
        query: query heads.
        kv: KV heads.
        dim: width of a key.
        rank: width of a latent's value, 0 where there are keys and values.
    """

    name: str
    query: int
    kv: int
    dim: int
    rank: int = 0

    @property
    def value_dim(self) -> int:
        return self.rank or self.dim


LLAMA_8B = Heads("llama-3-8b", 32, 8, 128)
LLAMA_70B_TP8 = Heads("llama-3-70b-tp8", 8, 1, 128)
DEEPSEEK = Heads("deepseek-v3", 128, 1, 576, rank=512)


@dataclass(frozen=True, slots=True)
class Ours:
    """A call of the backend.

    Attributes:
        layout: of the cache.
        block_size: of the cache.
    """

    layout: str = "flash_attn"
    block_size: int = 16

    @property
    def name(self) -> str:
        return f"{self.layout}/{self.block_size}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Variants of one call that are timed in turns.

    Attributes:
        kind: "decode", "prefill", "write" or "flex".
        seqs: sequences.
        length: tokens of each.
        heads: of the layer.
        dtype: of the cache.
        ours: calls of the backend.
        peers: names of `benchmarks.gpu.peers.PEERS`.
    """

    kind: str
    seqs: int
    length: int
    heads: Heads
    dtype: str = "bfloat16"
    ours: tuple[Ours, ...] = (Ours(),)
    peers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        size = f"{self.seqs}x{_tokens(self.length)}"
        return f"{self.kind} {size} {self.heads.name} {_SHORT[self.dtype]}"

    def shrunk(self) -> "Comparison":
        """The same under the same name, so small that an interpreter runs it."""
        heads = replace(self.heads, query=4, kv=min(self.heads.kv, 2), dim=32)
        if self.heads.rank:
            heads = replace(heads, dim=48, rank=32)
        # Two of each, so that the layouts are compared and both block sizes are met.
        ours = self.ours if len(self.ours) < 4 else (self.ours[0], self.ours[-1])
        return replace(self, seqs=min(self.seqs, 2), length=24, heads=heads, ours=ours)


_SHORT = {"bfloat16": "bf16", "float8_e4m3fn": "fp8"}
_DENSE = ("sdpa", "sdpa_flash", "sdpa_cudnn")
_EVERY_LAYOUT = tuple(Ours(layout, size) for layout in LAYOUTS for size in BLOCK_SIZES)
_DECODES = ((64, 8192), (8, 32768), (1, 131072), (256, 1024))


def _comparisons() -> tuple[Comparison, ...]:
    every_layout = Comparison("decode", 64, 8192, LLAMA_8B, ours=_EVERY_LAYOUT, peers=_DENSE)
    latents = (Ours("mla", 64), Ours("mla", 16))
    first = (
        every_layout,
        Comparison("decode", 1, 131072, LLAMA_8B, peers=_DENSE),
        Comparison("decode", 64, 4096, DEEPSEEK, ours=latents),
        Comparison("prefill", 1, 8192, LLAMA_8B, peers=_DENSE),
        Comparison("write", 1, 8192, LLAMA_8B, ours=tuple(Ours(layout) for layout in LAYOUTS)),
        replace(every_layout, dtype="float8_e4m3fn", peers=()),
    )
    decodes = [
        Comparison("decode", seqs, length, heads, peers=_DENSE)
        for heads in (LLAMA_8B, LLAMA_70B_TP8)
        for seqs, length in _DECODES
    ]
    pages = (Ours(), Ours(block_size=128))
    flex = Comparison("flex", 64, 8192, LLAMA_8B, ours=pages, peers=("flex",))
    in_fp8 = [replace(decode, dtype="float8_e4m3fn", peers=()) for decode in decodes]
    # A name stands for its first comparison.
    named: dict[str, Comparison] = {}
    for comparison in (*first, *decodes, flex, *in_fp8):
        named.setdefault(comparison.name, comparison)
    return tuple(named.values())


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


COMPARISONS = _comparisons()
"""In the order in which they run: those with a target first."""
