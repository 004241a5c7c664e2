"""From a case to the launch that the backend would make: plans for shapes, without arrays."""

from dataclasses import dataclass

from paged.backends.triton.plan import ABSENT, Launch, Plan
from paged.backends.triton.planning import CacheShape, Device, Step, plan_attend, plan_write
from paged.dtypes import is_quantized
from paged.lab.triton.grid import Case
from paged.lab.triton.targets import GpuTarget
from paged.layouts import get_layout, kv_strides
from paged.spec import AttentionSpec, KVCacheSpec

KV_HEADS = 8
"""KV heads of all cases but latents, which have one."""

_WINDOW = 1024
_SOFT_CAP = 30.0
_VALUE_DIM = 512
_ROPE_DIM = 64
_MANY, _FEW = 1024, 4
"""Sequences whose decodes fill a GPU, and whose decodes are split; a prefill has few too."""
_KV_TOKENS = 8192
_QUERIES = 1024

_TRITON_TYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "int8": "i8",
    # The kernels take float8 as its bits.
    "float8_e4m3fn": "u8",
    "float8_e5m2": "u8",
}


@dataclass(frozen=True, slots=True)
class TypedLaunch:
    """A launch, and the types of what it takes.

    Attributes:
        launch: of the plan.
        types: of its arrays and scalars in order, in triton's words.
        aligned: indices of those that triton specialises for being divisible by 16: as of every
            array, whose memory is aligned so, and of scalars that are.
    """

    launch: Launch
    types: tuple[str, ...]
    aligned: tuple[int, ...]


def launch_of(case: Case, target: GpuTarget) -> TypedLaunch:
    """The launch of a case's kernel.

    Raises:
        ValueError: the layout cannot hold such a cache.
        LookupError: a plan for this step has no launch of this kernel.
    """
    plan = _plan_of_write if case.kernel == "write" else _plan_of_attend
    found = [launch for launch in plan(case, target).launches if launch.kernel == case.kernel]
    if not found:
        raise LookupError(f"no {case.kernel} in the plan of {case.label}")
    launch = found[0]
    kinds = _array_types(case)
    types = (
        *(f"*{kinds[name]}" for name in launch.inputs),
        *("i32" for _ in launch.scalars),
        *(f"*{kinds[name]}" for name in launch.outputs),
    )
    first_scalar = len(launch.inputs)
    aligned = tuple(
        index
        for index, kind in enumerate(types)
        if kind.startswith("*") or launch.scalars[index - first_scalar] % 16 == 0
    )
    return TypedLaunch(launch, types, aligned)


def _plan_of_attend(case: Case, target: GpuTarget) -> Plan:
    spec = _spec(case)
    is_prefill = case.kernel == "prefill"
    num_seqs = _FEW if is_prefill or case.split or case.kernel == "reduce" else _MANY
    num_queries = _QUERIES if is_prefill else 1
    step = Step(
        num_seqs=num_seqs,
        num_tokens=num_seqs * num_queries,
        max_query_len=num_queries,
        max_seq_len=_KV_TOKENS,
        query_dtype=_query_dtype(case),
        query_strides=(spec.num_heads * spec.head_dim, spec.head_dim, 1),
        table_strides=(_KV_TOKENS // case.block_size, 1),
    )
    cache = _cache(case, num_blocks=num_seqs * _KV_TOKENS // case.block_size + 1)
    return plan_attend(spec, cache, step, _device(target), batch_invariant=False)


def _plan_of_write(case: Case, target: GpuTarget) -> Plan:
    spec = _spec(case)
    strides = (spec.num_kv_heads * spec.head_dim, spec.head_dim, 1)
    return plan_write(
        _cache(case, num_blocks=_MANY * _KV_TOKENS // case.block_size + 1),
        _device(target),
        num_tokens=_MANY,
        num_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        key_strides=strides,
        value_strides=strides,
    )


def _spec(case: Case) -> AttentionSpec:
    kv_heads = 1 if case.is_latent else KV_HEADS
    return AttentionSpec(
        num_heads=kv_heads * case.group,
        num_kv_heads=kv_heads,
        head_dim=case.head_dim,
        scale=case.head_dim**-0.5,
        window=_WINDOW if case.window else None,
        soft_cap=_SOFT_CAP if case.soft_cap else None,
        kv_lora_rank=_VALUE_DIM if case.is_latent else None,
        qk_rope_head_dim=_ROPE_DIM if case.is_latent else None,
    )


def _cache(case: Case, *, num_blocks: int) -> CacheShape:
    layout = get_layout(case.layout)
    kept = KVCacheSpec.of(_spec(case), block_size=case.block_size, dtype=case.dtype)
    scale = "one" if is_quantized(case.dtype) else "none"
    return CacheShape(
        dtype=case.dtype,
        block_size=case.block_size,
        num_blocks=num_blocks,
        strides=kv_strides(layout, layout.shape(num_blocks, kept)),
        k_scale=scale,
        v_scale="none" if case.is_latent else scale,
    )


def _device(target: GpuTarget) -> Device:
    return Device(
        num_sms=target.num_sms,
        native_float8=target.native_float8,
        shared_bytes=target.shared_limit,
        is_rocm=target.platform == "hip",
    )


def _query_dtype(case: Case) -> str:
    return "float16" if case.dtype == "float16" else "bfloat16"


def _array_types(case: Case) -> dict[str, str]:
    query = _TRITON_TYPES[_query_dtype(case)]
    indices = ("block_table", "seq_lens", "query_start_loc", "slot_mapping", ABSENT)
    floats = ("k_scale", "v_scale", "sinks", "lse", "part_out", "part_lse")
    return {
        "cache": _TRITON_TYPES[case.dtype],
        **dict.fromkeys(("query", "key", "value", "out"), query),
        **dict.fromkeys(indices, "i32"),
        **dict.fromkeys(floats, "fp32"),
    }
