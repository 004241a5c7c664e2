"""A backend under test: called as users call it, and watched for what it must not do."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np

from paged.backends.api import check_layouts
from paged.conformance.arrays import ARRAYS, differing, given, stand_in, to_numpy
from paged.conformance.problem import Problem
from paged.conformance.setup import Setup
from paged.conformance.verdict import Refused, Violation
from paged.layouts import KVCache, Layout, convert
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec


@functools.cache
def quick_options() -> dict[str, Any]:
    """Compiler options for programs that run once, where compiling is nearly all of the time.

    A batch of five sequences compiles in 0.3 s instead of 2.3 s. jax 0.10.2, two cores, 2026-11-30.
    """
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    older_emitters = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=older_emitters).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        # XLA refuses options that it does not know; the newer one has one kind of emitters only.
        return options
    return options | older_emitters


class Subject:
    """One backend.

    Optional attributes of the backend that are looked at: `capabilities` (or `batch_invariant`),
    `arrays` (its library, see `paged.conformance.arrays`), `device` (for torch),
    `traceable = False` where it may not be called under `jax.jit`, and `watching()`, a context
    that gives a list: by its end what an interpreter saw that no result shows, such as a race of
    copies, one line each.

    Args:
        backend: anything with the `Backend` protocol.
        target: platform that is asked for; by default the backend's own.
        compiler_options: for `jax.jit`, where compiling takes longer than running.
        explains: whether a wrong result is tried again under milder conditions, to name the rule
            that is really broken.

    Raises:
        ValueError: the backend's `arrays` are of no library known.
        TypeError: its `layouts` are no `Layout`s.
    """

    def __init__(
        self,
        backend: Any,
        *,
        target: str | None = None,
        compiler_options: dict[str, Any] | None = None,
        explains: bool = True,
    ) -> None:
        check_layouts(backend)
        self.backend = backend
        self.explains = explains
        self.arrays = getattr(backend, "arrays", "jax")
        if self.arrays not in ARRAYS:
            raise ValueError(f"arrays: got {self.arrays!r}, expected one of {', '.join(ARRAYS)}")
        self.device = getattr(backend, "device", None)
        self.target = target or _own_target(backend)
        self._jit = self.arrays == "jax" and getattr(backend, "traceable", True)
        if self._jit:
            self._write = jax.jit(
                lambda *args: backend.write(*args), compiler_options=compiler_options
            )
            self._attend = jax.jit(
                lambda query, cache, metadata, spec, sinks: backend.attend(
                    query, cache, metadata, spec, sinks=sinks
                ),
                static_argnums=3,
                compiler_options=compiler_options,
            )
            # Operation by operation a conversion is some three programs, each compiled in full.
            self._convert = jax.jit(
                convert,
                static_argnums=(1, 2),
                static_argnames="spec",
                compiler_options=compiler_options,
            )
        else:
            self._write, self._attend = backend.write, self._attend_directly
            self._convert = convert

    @property
    def name(self) -> str:
        """The backend's name."""
        return str(self.backend.name)

    def claims(self, word: str) -> bool:
        """Whether a capability is declared; what is not declared at all counts as not claimed."""
        capabilities = getattr(self.backend, "capabilities", None)
        default = getattr(self.backend, word, False)
        return bool(getattr(capabilities, word, default))

    def denies(self, word: str) -> bool:
        """Whether a capability is declared as absent."""
        capabilities = getattr(self.backend, "capabilities", None)
        return not getattr(capabilities, word, True)

    def takes(self, dtype: str) -> bool:
        """Whether queries of a type are served in the plainest form, on any layout."""
        for layout in self.backend.layouts:
            plainest = Setup(sequences=()).spec(layout)
            if not self.reasons(plainest, layout, dtype=dtype):
                return True
        return False

    def reasons(
        self,
        spec: AttentionSpec,
        layout: Layout,
        *,
        cache_spec: KVCacheSpec | None = None,
        dtype: str | None = None,
    ) -> list[str]:
        """What the backend says against an ask.

        Raises:
            Violation: it answers with something else than a list of reasons.
        """
        reasons = served(
            "unsupported",
            spec,
            lambda: self.backend.unsupported(
                spec, layout, self.target, cache_spec=cache_spec, query_dtype=dtype
            ),
        )
        if not isinstance(reasons, list) or not all(
            isinstance(reason, str) and reason for reason in reasons
        ):
            raise Violation(
                "claim", f"unsupported() gave {reasons!r}, expected a list of reasons in words"
            )
        return reasons

    def require_claim(self, problem: Problem) -> None:
        """Goes on where the backend claims the problem; tests the refusal where it does not.

        Raises:
            Refused: the ask is not claimed, and the call refuses it.
            Violation: the ask is not claimed, but the call takes it, or fails in another way.
        """
        layout = problem.cache.layout
        cache_spec = problem.setup.cache_spec(layout, problem.dtype)
        reasons = self.reasons(problem.spec, layout, cache_spec=cache_spec, dtype=problem.dtype)
        scales = (problem.cache.k_scale, problem.cache.v_scale)
        if self.denies("per_head_scales") and any(s is not None and s.ndim for s in scales):
            reasons = [*reasons, "no per-head scales"]
        if reasons:
            self.expect_refusal(problem, f"unsupported() says: {'; '.join(reasons)}")

    def expect_refusal(self, problem: Problem, why: str) -> None:
        """Calls attend with shapes alone and wants a refusal; always raises."""
        query, cache, metadata, sinks = self.stand_ins(problem)
        expect_refusal(
            lambda: self._attend_directly(query, cache, metadata, problem.spec, sinks), why
        )

    def stand_ins(self, problem: Problem) -> tuple[Any, KVCache, AttentionMetadata, Any]:
        """Query, cache, metadata and sinks without numbers."""
        return moved(problem, lambda array: stand_in(array, self.arrays))

    def _given(self, problem: Problem) -> tuple[Any, KVCache, AttentionMetadata, Any]:
        query, cache, metadata, sinks = moved(problem, self.give)
        if problem.setup.strided:
            query = self._fused(problem)[:, : query.shape[1]]
            wide = np.concatenate([problem.metadata.block_table] * 2, axis=1)
            width = problem.metadata.block_table.shape[1]
            metadata = replace(metadata, block_table=self.give(wide)[:, :width])
        return query, cache, metadata, sinks

    def _fused(self, problem: Problem) -> Any:
        """Queries, keys and values of each token in one array, along the head axis."""
        parts = [problem.query, problem.key, problem.value]
        return self.give(np.concatenate([part for part in parts if part is not None], axis=1))

    def give(self, array: np.ndarray) -> Any:
        """A copy for the backend, in its library."""
        return given(array, self.arrays, self.device)

    def converted(
        self, pool: np.ndarray, src: Layout, dst: Layout, spec: KVCacheSpec
    ) -> np.ndarray:
        """A pool in another layout, by `paged.layouts.convert` in the backend's library."""
        return to_numpy(self._convert(self.give(pool), src, dst, spec=spec))

    def write(self, problem: Problem, *, eager: bool = False) -> np.ndarray:
        """The pool after `write`.

        Raises:
            Violation: the call fails, changes an input, or returns another kind of cache.
        """
        _, cache, metadata, _ = self._given(problem)
        key, value = self.give(problem.key), _maybe(self.give, problem.value)
        if problem.setup.strided:
            heads, kv_heads = problem.spec.num_heads, problem.spec.num_kv_heads
            fused = self._fused(problem)
            key = fused[:, heads : heads + kv_heads]
            value = None if value is None else fused[:, heads + kv_heads :]
        call = self.backend.write if eager else self._write
        result = self._watched(
            "write", problem.spec, lambda: call(cache, key, value, metadata.slot_mapping)
        )
        before = [
            ("key", key, problem.key),
            ("value", value, problem.value),
            ("slot_mapping", metadata.slot_mapping, problem.metadata.slot_mapping),
            ("k_scale", cache.k_scale, problem.cache.k_scale),
            ("v_scale", cache.v_scale, problem.cache.v_scale),
        ]
        _require_unchanged("write", before)
        if not isinstance(result, KVCache):
            raise Violation("output", f"write gave {type(result).__name__}, expected a KVCache")
        pool = to_numpy(result.data)
        expected = problem.cache.data
        if (
            result.layout != cache.layout
            or pool.shape != expected.shape
            or pool.dtype != expected.dtype
        ):
            raise Violation(
                "output",
                f"write gave {pool.dtype}{pool.shape} in layout {result.layout.name}, expected "
                f"{expected.dtype}{expected.shape} in layout {cache.layout.name}",
            )
        after = [
            ("k_scale of the result", result.k_scale, problem.cache.k_scale),
            ("v_scale of the result", result.v_scale, problem.cache.v_scale),
        ]
        _require_unchanged("write", after)
        return pool

    def attend(
        self, problem: Problem, *, eager: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Output and lse over the problem's pool as it is.

        Raises:
            Violation: the call fails, changes an input, or returns another shape or dtype.
        """
        query, cache, metadata, sinks = self._given(problem)
        call = self._attend_directly if eager else self._attend
        result = self._watched(
            "attend", problem.spec, lambda: call(query, cache, metadata, problem.spec, sinks)
        )
        before = [
            ("query", query, problem.query),
            ("cache", cache.data, problem.cache.data),
            ("k_scale", cache.k_scale, problem.cache.k_scale),
            ("v_scale", cache.v_scale, problem.cache.v_scale),
            ("sinks", sinks, problem.sinks),
            *_metadata_fields(metadata, problem.metadata),
        ]
        _require_unchanged("attend", before)
        try:
            out, lse = result
        except (TypeError, ValueError) as error:
            raise Violation("output", f"attend gave no pair (out, lse): {error}") from error
        spec = problem.spec
        rows = (problem.metadata.num_tokens, spec.num_heads)
        out = _require_array("out", out, (*rows, spec.value_dim), problem.dtype)
        if lse is None:
            if self.claims("lse"):
                raise Violation("8", "attend gave no lse, though it is claimed")
            return out, None
        return out, _require_array("lse", lse, rows, "float32")

    def _watched(self, what: str, spec: AttentionSpec, call: Callable[[], Any]) -> Any:
        """What a call gives; see `served`.

        Raises:
            Violation: it fails, or an interpreter saw something amiss.
        """
        watching = getattr(self.backend, "watching", contextlib.nullcontext)
        with watching() as seen:
            result = served(what, spec, call)
        if seen:
            raise Violation("copies", f"{what}: {seen[0]}")
        return result

    def _attend_directly(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, spec: Any, sinks: Any
    ) -> Any:
        return self.backend.attend(query, cache, metadata, spec, sinks=sinks)


def moved(
    problem: Problem, move: Callable[[np.ndarray], Any]
) -> tuple[Any, KVCache, AttentionMetadata, Any]:
    """Query, cache, metadata and sinks, each array put through a function."""
    cache = problem.cache
    scales = _maybe(move, cache.k_scale), _maybe(move, cache.v_scale)
    elsewhere = KVCache(move(cache.data), cache.layout, *scales)
    metadata = problem.metadata.map(move)
    return move(problem.query), elsewhere, metadata, _maybe(move, problem.sinks)


def expect_refusal(call: Callable[[], Any], why: str) -> None:
    """Makes a call that must be refused; always raises.

    Raises:
        Refused: it was, with a reason.
        Violation: it was taken, failed in another way, or gave no reason.
    """
    try:
        call()
    except ValueError as error:
        if not str(error).strip():
            raise Violation("claim", f"refused without a reason ({why})") from error
        raise Refused(str(error)) from error
    except Exception as error:
        raise Violation(
            "claim",
            f"{type(error).__name__}: {_first_line(error)}, expected UnsupportedError or "
            f"ValueError before an array is touched ({why})",
        ) from error
    raise Violation("claim", f"served what it must refuse ({why})")


def served(what: str, spec: AttentionSpec, call: Callable[[], Any]) -> Any:
    """The result of a call that the backend claims.

    Raises:
        Violation: it raised.
    """
    try:
        return jax.block_until_ready(call())
    except Exception as error:
        raise Violation(
            "claim",
            f"{what} raised {type(error).__name__}: {_first_line(error)}, though unsupported() "
            f"gave no reason against {spec}",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0]


def _own_target(backend: Any) -> str:
    if backend.platform != "any":
        return backend.platform
    platform = jax.default_backend()
    return "cuda" if platform == "gpu" else platform


def _maybe(function: Callable[[np.ndarray], Any], array: np.ndarray | None) -> Any:
    return None if array is None else function(array)


def _metadata_fields(
    found: AttentionMetadata, original: AttentionMetadata
) -> Iterator[tuple[str, Any, np.ndarray]]:
    for field in fields(AttentionMetadata):
        value, expected = getattr(found, field.name), getattr(original, field.name)
        if field.metadata.get("static"):
            value, expected = np.array(value), np.array(expected)
        yield f"metadata.{field.name}", value, expected


def _require_unchanged(call: str, watched: list[tuple[str, Any, np.ndarray | None]]) -> None:
    """Compares what was given with the problem it was made from, bit by bit."""
    for name, found, original in watched:
        if original is None:
            if found is not None:
                raise Violation("inputs", f"{call} changed {name}: got an array, expected None")
            continue
        array = to_numpy(found) if found is not None else None
        if array is None or array.shape != original.shape or array.dtype != original.dtype:
            raise Violation("inputs", f"{call} changed {name}: its shape or dtype is another")
        differs = differing(array, original)
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            raise Violation(
                "inputs",
                f"{call} changed {name}{list(index)}: got {np.atleast_1d(array)[index]}, expected "
                f"{np.atleast_1d(original)[index]}",
            )


def _require_array(name: str, array: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    found = to_numpy(array)
    if found.shape != shape or found.dtype.name != dtype:
        raise Violation(
            "output", f"{name} is {found.dtype.name}{found.shape}, expected {dtype}{shape}"
        )
    return found
