"""Asks that no backend may serve: shapes, dtypes and arguments that contradict the spec."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paged.conformance.arrays import stand_in
from paged.conformance.case import Case
from paged.conformance.problem import Problem, build
from paged.conformance.subject import Subject, expect_refusal
from paged.conformance.verdict import NotRun, Refused, Violation
from paged.layouts import KVCache, Layout
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec


@dataclass(frozen=True, slots=True)
class Ask:
    """The arguments of the two calls, as arrays without numbers."""

    query: Any
    key: Any
    value: Any
    cache: KVCache
    metadata: AttentionMetadata
    spec: AttentionSpec
    sinks: Any


def refusal(subject: Subject, case: Case, layout: Layout, dtype: str, seed: int) -> None:
    """Makes the ask that the case is named after; always raises."""
    what = case.name.partition("/")[2]
    problem = build(case.setup, layout, dtype, seed, case.name)
    if what == "other_platform":
        _other_platform(subject, problem)
    subject.require_claim(problem)

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return stand_in(np.empty(shape, dtype), subject.arrays)

    query, cache, metadata, sinks = subject.stand_ins(problem)
    key, value = (
        None if rows is None else stand_in(rows, subject.arrays)
        for rows in (problem.key, problem.value)
    )
    ask = Ask(query, key, value, cache, metadata, problem.spec, sinks)
    call, change = WRONG_ASKS[what]
    wrong = change(ask, empty)
    if what == "layout_kind" and not subject.reasons(wrong.spec, layout):
        # `resolve` goes by these reasons: a refusal in the call comes too late for it.
        raise Violation("claim", f"unsupported() gives no reason against {case.exposes}")
    if call == "write":
        expect_refusal(
            lambda: subject.backend.write(
                wrong.cache, wrong.key, wrong.value, wrong.metadata.slot_mapping
            ),
            case.exposes,
        )
    expect_refusal(
        lambda: subject.backend.attend(
            wrong.query, wrong.cache, wrong.metadata, wrong.spec, sinks=wrong.sinks
        ),
        case.exposes,
    )


def _other_platform(subject: Subject, problem: Problem) -> None:
    if subject.backend.platform == "any":
        raise NotRun("the backend runs on any platform")
    other = next(name for name in ("tpu", "cuda") if name != subject.backend.platform)
    reasons = subject.backend.unsupported(problem.spec, problem.cache.layout, other)
    if not reasons:
        raise Violation("claim", f"unsupported() gives no reason against target {other}")
    raise Refused("; ".join(reasons))


Empty = Callable[[tuple[int, ...], str], Any]
Change = Callable[[Ask, Empty], Ask]


def _query(dtype: str | None = None, *, heads: int = 0, dim: int = 0, tokens: int = 0) -> Change:
    def change(ask: Ask, empty: Empty) -> Ask:
        shape = ask.query.shape
        wrong = (shape[0] + tokens, shape[1] + heads, shape[2] + dim)
        return replace(ask, query=empty(wrong, dtype or _name(ask.query)))

    return change


def _field(name: str, dtype: str = "int32", *, longer: int = 0) -> Change:
    def change(ask: Ask, empty: Empty) -> Ask:
        array = getattr(ask.metadata, name)
        shape = (array.shape[0] + longer, *array.shape[1:])
        metadata = replace(ask.metadata, **{name: empty(shape, dtype)})
        return replace(ask, metadata=metadata)

    return change


def _sinks(ask: Ask, empty: Empty) -> Ask:
    return replace(ask, sinks=empty((ask.spec.num_heads,), "float32"))


def _no_sinks(ask: Ask, empty: Empty) -> Ask:
    return replace(ask, spec=replace(ask.spec, has_sinks=True), sinks=None)


def _scale_of_floats(ask: Ask, empty: Empty) -> Ask:
    return replace(ask, cache=replace(ask.cache, k_scale=empty((), "float32")))


def _scale_shape(ask: Ask, empty: Empty) -> Ask:
    data = empty(tuple(ask.cache.data.shape), "int8")
    scale = empty((ask.spec.num_kv_heads + 1,), "float32")
    return replace(ask, cache=replace(ask.cache, data=data, k_scale=scale))


def _heads_of_cache(ask: Ask, empty: Empty) -> Ask:
    """A spec with twice the KV heads that the cache has."""
    spec = ask.spec
    if spec.is_latent:
        raise NotRun("a latent cache has one head")
    doubled = replace(spec, num_heads=2 * spec.num_heads, num_kv_heads=2 * spec.num_kv_heads)
    shape = ask.query.shape
    query = empty((shape[0], doubled.num_heads, shape[2]), _name(ask.query))
    return replace(ask, spec=doubled, query=query)


def _other_kind(ask: Ask, empty: Empty) -> Ask:
    """A latent spec for keys and values, or the other way round."""
    spec, shape = ask.spec, ask.query.shape
    query = empty((shape[0], spec.num_heads, spec.head_dim), _name(ask.query))
    if spec.is_latent:
        kind = replace(spec, kv_lora_rank=None, qk_rope_head_dim=None)
    else:
        rope = spec.head_dim // 4
        kind = replace(
            spec, num_kv_heads=1, kv_lora_rank=spec.head_dim - rope, qk_rope_head_dim=rope
        )
    return replace(ask, spec=kind, query=query)


def _cache_dtype(ask: Ask, empty: Empty) -> Ask:
    """A cache of a type that none may be stored in."""
    data = empty(tuple(ask.cache.data.shape), "int32")
    return replace(ask, cache=replace(ask.cache, data=data, k_scale=None, v_scale=None))


def _key_dtype(ask: Ask, empty: Empty) -> Ask:
    return replace(ask, key=empty(tuple(ask.key.shape), "int32"))


def _key_heads(ask: Ask, empty: Empty) -> Ask:
    tokens, heads, dim = ask.key.shape
    return replace(ask, key=empty((tokens, heads + 1, dim), _name(ask.key)))


def _value_presence(ask: Ask, empty: Empty) -> Ask:
    """No value for keys and values, or one for latents."""
    value = None if ask.value is not None else empty(tuple(ask.key.shape), _name(ask.key))
    return replace(ask, value=value)


def _name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


WRONG_ASKS: dict[str, tuple[str, Change]] = {
    "query_dtype": ("attend", _query("int32")),
    "query_heads": ("attend", _query(heads=1)),
    "query_dim": ("attend", _query(dim=1)),
    "query_tokens": ("attend", _query(tokens=1)),
    "table_dtype": ("attend", _field("block_table", "int64")),
    "lens_length": ("attend", _field("seq_lens", longer=1)),
    "starts_length": ("attend", _field("query_start_loc", longer=1)),
    "sinks_unasked": ("attend", _sinks),
    "sinks_missing": ("attend", _no_sinks),
    "scale_of_floats": ("attend", _scale_of_floats),
    "scale_shape": ("attend", _scale_shape),
    "cache_heads": ("attend", _heads_of_cache),
    "layout_kind": ("attend", _other_kind),
    "cache_dtype": ("write", _cache_dtype),
    "slots_dtype": ("write", _field("slot_mapping", "int64")),
    "slots_length": ("write", _field("slot_mapping", longer=1)),
    "key_dtype": ("write", _key_dtype),
    "key_heads": ("write", _key_heads),
    "value_presence": ("write", _value_presence),
}
"""By the second part of a case's name: which call, and how its arguments are made wrong."""
