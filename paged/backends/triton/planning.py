"""From the shapes of a call to its launch plan."""

from dataclasses import dataclass, replace
from functools import lru_cache

from paged.backends.triton.form import AttendForm, WriteForm
from paged.backends.triton.plan import ABSENT, Buffer, Launch, Plan
from paged.backends.triton.splitting import LEAST_PART, fixed_split, split_count
from paged.backends.triton.tiles import Tiles, decode_tiles, power_of_two, prefill_tiles
from paged.dtypes import is_quantized, storage_dtype
from paged.layouts import KVStrides
from paged.spec import AttentionSpec

_LEAST_WIDTH = 16
"""Entries that every target's matrix product needs along the axis that is summed."""

_WRITE_ENTRIES = 2048
"""Entries of a key that one program of a write takes: 8 or 16 for each thread of four warps."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a plan needs to know of a device.

    Attributes:
        num_sms: multiprocessors.
        native_float8: whether it converts float8_e4m3fn by itself.
        shared_bytes: shared memory that a program may have.
        is_rocm: whether it is AMD's.
        interpreted: whether triton's interpreter stands in for it.
        least_part: fewest tokens of a part of a split decode.
    """

    num_sms: int
    native_float8: bool
    shared_bytes: int
    is_rocm: bool = False
    interpreted: bool = False
    least_part: int = LEAST_PART


INTERPRETED = Device(
    num_sms=32, native_float8=False, shared_bytes=1 << 18, interpreted=True, least_part=16
)
"""The interpreter: small enough that short sequences are split in some steps, in others not."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A cache as addresses.

    Attributes:
        dtype: storage type by name.
        block_size: tokens per block.
        num_blocks: physical blocks.
        strides: of keys and values.
        is_latent: whether it has latents.
        k_scale: "none", "one" or "heads".
        v_scale: likewise.
    """

    dtype: str
    block_size: int
    num_blocks: int
    strides: KVStrides
    is_latent: bool = False
    k_scale: str = "none"
    v_scale: str = "none"

    @property
    def storage(self) -> str:
        """See `AttendForm.storage`."""
        return self.dtype if is_quantized(self.dtype) else "numbers"


@dataclass(frozen=True, slots=True)
class Step:
    """Shapes of a step.

    Attributes:
        num_seqs: S.
        num_tokens: T.
        max_query_len: bound of the query lengths.
        max_seq_len: bound of the sequence lengths.
        query_dtype: by name.
        query_strides: of `[T, num_heads, head_dim]`, in elements.
        table_strides: of `[S, B]`.
    """

    num_seqs: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    query_dtype: str
    query_strides: tuple[int, int, int]
    table_strides: tuple[int, int]


@lru_cache(maxsize=1024)
def plan_attend(
    spec: AttentionSpec, cache: CacheShape, step: Step, device: Device, *, batch_invariant: bool
) -> Plan:
    """The plan of `attend`.

    A step of decodes runs one kernel over parts of the keys and, where there are several parts,
    their reduction. Any other step runs tiles of queries for the sequences with more than one,
    and the same decode for the rest.
    """
    rows = (step.num_tokens, spec.num_heads)
    buffers = [
        Buffer("out", (*rows, spec.value_dim), step.query_dtype, 0.0),
        Buffer("lse", rows, "float32", float("-inf")),
    ]
    if not step.num_seqs or not step.num_tokens:
        return Plan(tuple(buffers), (), ("out", "lse"))
    common = _common_form(spec, cache, step, device)
    itemsize = 4 if common.in_float32 else 2
    sizes = {
        "group": spec.group_size,
        "width": common.dim_pad,
        "itemsize": itemsize,
        "is_latent": spec.is_latent,
        "is_quantized": cache.storage != "numbers",
        "shared_bytes": device.shared_bytes,
    }
    launches: list[Launch] = []
    if step.max_query_len > 1:
        launches.append(_prefill(common, step, spec, prefill_tiles(**sizes)))
    tiles = decode_tiles(**sizes)
    more, decodes = _decode(common, step, spec, tiles, device, batch_invariant)
    return Plan((*buffers, *more), (*launches, *decodes), ("out", "lse"))


@lru_cache(maxsize=1024)
def plan_write(
    cache: CacheShape,
    device: Device,
    *,
    num_tokens: int,
    num_heads: int,
    head_dim: int,
    key_strides: tuple[int, int, int],
    value_strides: tuple[int, int, int],
) -> Plan:
    """The plan of `write`."""
    dim_pad = power_of_two(head_dim)
    heads = min(power_of_two(num_heads), max(1, _WRITE_ENTRIES // dim_pad))
    form = WriteForm(
        num_heads=num_heads,
        head_dim=head_dim,
        heads_per_tile=heads,
        dim_pad=dim_pad,
        block_size=cache.block_size,
        block=cache.strides.block,
        slot=cache.strides.slot,
        head=cache.strides.head,
        dim=cache.strides.dim,
        to_value=cache.strides.to_value,
        key_token=key_strides[0],
        key_head=key_strides[1],
        key_dim=key_strides[2],
        value_token=value_strides[0],
        value_head=value_strides[1],
        value_dim=value_strides[2],
        is_latent=cache.is_latent,
        storage=cache.storage,
        k_scale=cache.k_scale,
        v_scale=cache.v_scale,
        interpreted=device.interpreted,
    )
    launch = Launch(
        "write",
        (num_tokens, -(-num_heads // heads), 1),
        (
            *("key", _present("value", not cache.is_latent), "slot_mapping"),
            *(*_scales(cache.k_scale, cache.v_scale), "cache"),
        ),
        (cache.num_blocks * cache.block_size,),
        ("cache",),
        ("cache",),
        form,
        warps=4,
        stages=1,
    )
    return Plan((), (launch,) if num_tokens else (), ("cache",))


def _common_form(spec: AttentionSpec, cache: CacheShape, step: Step, device: Device) -> AttendForm:
    """What all kernels of a step have in common; sizes of tiles and parts are still to be set."""
    is_mixed = cache.storage == "numbers" and cache.dtype != step.query_dtype
    in_float32 = is_mixed or storage_dtype(step.query_dtype).itemsize == 4
    move = "gcn" if device.is_rocm else "ptx"
    width = spec.value_dim if spec.is_latent else spec.head_dim
    rest = spec.head_dim - spec.value_dim
    return AttendForm(
        num_heads=spec.num_heads,
        group=spec.group_size,
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        dim_pad=max(power_of_two(width), _LEAST_WIDTH),
        rope_pad=max(power_of_two(rest), _LEAST_WIDTH) if rest else 0,
        tile_queries=0,
        tile_heads=0,
        tile_tokens=0,
        block_size=cache.block_size,
        block=cache.strides.block,
        slot=cache.strides.slot,
        head=cache.strides.head,
        dim=cache.strides.dim,
        to_value=cache.strides.to_value,
        query_token=step.query_strides[0],
        query_head=step.query_strides[1],
        query_dim=step.query_strides[2],
        table_row=step.table_strides[0],
        table_entry=step.table_strides[1],
        scale=float(spec.scale),
        soft_cap=None if spec.soft_cap is None else float(spec.soft_cap),
        window=spec.window,
        has_sinks=spec.has_sinks,
        is_latent=spec.is_latent,
        storage=cache.storage,
        native_float8=device.native_float8,
        move="" if device.interpreted or in_float32 or cache.storage == "numbers" else move,
        in_float32=in_float32,
        k_scale=cache.k_scale,
        # A value is part of its key, and has the scale of it.
        v_scale=cache.k_scale if spec.is_latent else cache.v_scale,
        splits=1,
        split_steps=0,
        skips_decodes=False,
        interpreted=device.interpreted,
    )


def _tiled(form: AttendForm, tiles: Tiles) -> AttendForm:
    return replace(
        form, tile_queries=tiles.queries, tile_heads=tiles.heads, tile_tokens=tiles.tokens
    )


def _prefill(common: AttendForm, step: Step, spec: AttentionSpec, tiles: Tiles) -> Launch:
    form = replace(_tiled(common, tiles), skips_decodes=True)
    return Launch(
        "prefill",
        (
            step.num_tokens // tiles.queries + step.num_seqs,
            spec.num_kv_heads * form.head_tiles,
            1,
        ),
        (*_attend_inputs(form), "out", "lse"),
        (step.num_seqs,),
        ("out", "lse"),
        ("out", "lse"),
        form,
        tiles.warps,
        tiles.stages,
    )


def _decode(
    common: AttendForm,
    step: Step,
    spec: AttentionSpec,
    tiles: Tiles,
    device: Device,
    batch_invariant: bool,
) -> tuple[list[Buffer], list[Launch]]:
    form = _tiled(common, tiles)
    head_tiles = spec.num_kv_heads * form.head_tiles
    if batch_invariant:
        parts, steps = fixed_split(max_seq_len=step.max_seq_len, step_tokens=tiles.tokens)
    else:
        steps = 0
        parts = split_count(
            num_seqs=step.num_seqs,
            head_tiles=head_tiles,
            max_seq_len=min(step.max_seq_len, spec.window or step.max_seq_len),
            num_sms=device.num_sms,
            step_tokens=tiles.tokens,
            least_part=device.least_part,
        )
    form = replace(form, splits=parts, split_steps=steps)
    grid = (step.num_seqs, head_tiles, parts)
    sizes = {"form": form, "warps": tiles.warps, "stages": tiles.stages}
    if parts == 1:
        results = ("out", "lse")
        inputs = (*_attend_inputs(form), *results)
        return [], [Launch("decode", grid, inputs, (), results, results, **sizes)]
    rows = (parts, step.num_seqs, spec.num_heads)
    buffers = [
        Buffer("part_out", (*rows, spec.value_dim), "float32"),
        Buffer("part_lse", rows, "float32"),
    ]
    decode = Launch(
        "decode",
        grid,
        (*_attend_inputs(form), ABSENT, ABSENT),
        (),
        ("part_out", "part_lse"),
        (),
        **sizes,
    )
    reduce = Launch(
        "reduce",
        (step.num_seqs, spec.num_heads, 1),
        (
            *("part_out", "part_lse", "seq_lens", "query_start_loc"),
            *(_present("v_scale", form.v_scale != "none"), _present("sinks", form.has_sinks)),
            *("out", "lse"),
        ),
        (),
        ("out", "lse"),
        ("out", "lse"),
        form,
        warps=4,
        stages=2,
    )
    return buffers, [decode, reduce]


def _attend_inputs(form: AttendForm) -> tuple[str, ...]:
    return (
        *("query", "cache", "block_table", "seq_lens", "query_start_loc"),
        *_scales(form.k_scale, form.v_scale),
        _present("sinks", form.has_sinks),
    )


def _scales(k_scale: str, v_scale: str) -> tuple[str, str]:
    return _present("k_scale", k_scale != "none"), _present("v_scale", v_scale != "none")


def _present(name: str, is_there: bool) -> str:
    return name if is_there else ABSENT
