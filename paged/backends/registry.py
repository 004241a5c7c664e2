"""Which backends there are, and which of them serves an ask."""

import functools
import importlib
import importlib.metadata
import inspect
from dataclasses import dataclass, field
from typing import Any

import jax

from paged.backends.api import AttentionOutput, Backend, UnsupportedError, check_layouts
from paged.layouts import KVCache, Layout, get_layout
from paged.metadata import AttentionMetadata
from paged.names import unknown_name
from paged.spec import AttentionSpec, KVCacheSpec

ENTRY_POINT_GROUP = "paged.backends"
"""Third parties list `name = "package.module:Class"` under this group."""

_BUILTIN = {
    "pallas_tpu": "paged.backends.pallas_tpu:PallasTpuBackend",
    "triton_jax": "paged.backends.triton.on_jax:TritonJaxBackend",
    "triton": "paged.backends.triton.on_torch:TritonBackend",
    "cpu": "paged.backends.cpu.backend:CpuBackend",
    "xla": "paged.backends.xla:XlaBackend",
    "reference": "paged.backends.reference:ReferenceBackend",
}
"""In order of priority: "auto" takes the first that can serve. Imported when first asked for."""

_TAKEN = {
    "jax": ("jax", "numpy"),
    "torch": ("torch",),
    "numpy": ("jax", "numpy"),
}
"""By library: what backends for its arrays call theirs. The reference's numpy serves JAX too."""

TARGETS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that a call may be compiled for."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A backend that is listed but could not be imported.

    Attributes:
        name: what it is listed as.
        reason: what is missing.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """A backend chosen for a spec, a layout and a target, with its two calls bound to them.

    Attributes:
        backend: the one chosen.
        spec: the attention it was chosen for.
        layout: the layout its cache has.
        target: the platform it was chosen for.
        passed_over: backends of higher priority, with the reasons against each.
    """

    backend: Backend
    spec: AttentionSpec
    layout: Layout
    target: str
    passed_over: dict[str, list[str]] = field(default_factory=dict)

    @property
    def operation_cost(self) -> float:
        """What an operation of the backend's attention over many queries costs.

        In operations of XLA's plain matrix product on the same target; a backend that was
        measured says it by an attribute of that name. A model that can attend in more than one
        way weighs them by it.
        """
        return getattr(self.backend, "operation_cost", 1.0)

    def allocate(
        self, num_blocks: int, block_size: int, *, dtype: str = "float32", **arrays: Any
    ) -> KVCache:
        """A zero-filled cache for this spec; `arrays` as for `KVCache.allocate`.

        It lies where the backend wants it, which one over several devices says by a method
        `cache_sharding`, unless `sharding` is given. One over another library than JAX says by a
        method `allocate(cache_spec, layout, num_blocks, **arrays)` how a cache is made.

        Raises:
            UnsupportedError: the backend does not serve such blocks or such a type.
            TypeError: a spec or a layout is given again.
            ValueError: as `KVCache.allocate`.
        """
        if again := [name for name in ("spec", "cache_spec", "layout") if name in arrays]:
            raise TypeError(
                f"{again[0]}: got {arrays[again[0]]!r}, expected none here: spec and layout are "
                "those resolved, only block_size and dtype are added"
            )
        cache_spec = KVCacheSpec.of(self.spec, block_size=block_size, dtype=dtype)
        reasons = self.backend.unsupported(
            self.spec, self.layout, self.target, cache_spec=cache_spec
        )
        if reasons:
            raise UnsupportedError(f"backend {self.backend.name}: {'; '.join(reasons)}")
        if (own := getattr(self.backend, "allocate", None)) is not None:
            return own(cache_spec, self.layout, num_blocks, **arrays)
        if (where := getattr(self.backend, "cache_sharding", None)) is not None:
            arrays.setdefault("sharding", where(self.layout))
        return KVCache.allocate(cache_spec, self.layout, num_blocks, **arrays)

    def write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        """See `Backend.write`.

        Raises:
            ValueError: rows of other heads than the spec's, which a layout that pads could hold.
        """
        expected = (self.spec.num_kv_heads, self.spec.head_dim)
        for name, rows in (("key", key), ("value", value)):
            shape = tuple(getattr(rows, "shape", ()))
            if rows is not None and shape[1:] != expected:
                raise ValueError(
                    f"{name}: got shape {shape}, expected (tokens, {expected[0]}, {expected[1]}) "
                    "(tokens, num_kv_heads, head_dim)"
                )
        return self.backend.write(cache, key, value, slot_mapping)

    def attend(
        self, query: Any, cache: KVCache, metadata: AttentionMetadata, *, sinks: Any = None
    ) -> AttentionOutput:
        """See `Backend.attend`."""
        return self.backend.attend(query, cache, metadata, self.spec, sinks=sinks)


def backend_names() -> tuple[str, ...]:
    """Every listed backend, by priority: this project's, then third parties' by name."""
    return (*_BUILTIN, *(name for name in sorted(_third_party()) if name not in _BUILTIN))


@functools.cache
def load_backend(name: str) -> Backend | Unavailable:
    """The backend of that name, imported when first asked for.

    Raises:
        ValueError: no backend of that name is listed.
        TypeError: what is listed under the name is no backend.
    """
    third_party = _third_party()
    if name in _BUILTIN:
        where = _BUILTIN[name]
    elif name in third_party:
        where = third_party[name]
    else:
        raise unknown_name("backend", name, backend_names())
    return import_backend(where, name)


def import_backend(where: str, name: str | None = None) -> Backend | Unavailable:
    """The backend at "package.module:Class", listed or not.

    Raises:
        ValueError: `where` is not of that form, names nothing, or names a class of which no
            instance can be made without arguments; the class's own error is the cause.
        TypeError: what it names is no backend.
    """
    module_name, _, attribute = where.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"backend: got {where!r}, expected package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        return Unavailable(name or where, f"needs {error.name}, which is not installed")
    if not hasattr(module, attribute):
        raise ValueError(f"backend: {module_name} has no {attribute!r}")
    found = getattr(module, attribute)
    return _checked(_made(found, where) if inspect.isclass(found) else found, where)


def _made(backend: type, where: str) -> Any:
    try:
        return backend()
    except Exception as error:
        # Whatever somebody else's constructor raises: which class that was is told with it.
        raise ValueError(
            f"backend: {where} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error


def _checked(candidate: Any, where: str | None = None) -> Backend:
    # A class has the members of its instances, and would fail at the first call.
    if inspect.isclass(candidate):
        raise TypeError(f"backend: got the class {candidate.__name__}, expected an instance of it")
    if not isinstance(candidate, Backend):
        missing = [member for member in _MEMBERS if not hasattr(candidate, member)]
        raise TypeError(
            f"backend: {where or repr(candidate)} is no backend, it lacks {', '.join(missing)}"
        )
    check_layouts(candidate, where)
    return candidate


_MEMBERS = ("name", "platform", "layouts", "unsupported", "write", "attend")


def resolve(
    spec: AttentionSpec,
    *,
    layout: str | Layout = "auto",
    target: str | None = None,
    backend: str | Backend = "auto",
    cache_spec: KVCacheSpec | None = None,
    query_dtype: str | None = None,
    arrays: str = "jax",
) -> Resolution:
    """Finds a backend that serves a spec on a layout and a platform.

    Args:
        spec: the attention asked for.
        layout: a name, a `Layout`, or "auto" for the backend's preferred one.
        target: platform to compile for, one of `TARGETS`; JAX's default device by default.
        backend: a name or an instance, which is strict; "auto" takes the first by priority that
            gives no reason against.
        cache_spec: block size and storage type, where they are known already.
        query_dtype: dtype of the queries, where it is known already.
        arrays: library of the arrays that will be given, "jax", "torch" or "numpy"; "auto" passes
            over backends that take another's, and a named one is taken at its word.

    Raises:
        UnsupportedError: the named backend cannot serve, with its reasons; or, for "auto", none
            can, with the reasons of each.
        ValueError: an unknown name, no spec, or a `cache_spec` of other heads or widths.
        TypeError: an object that is no backend.
    """
    target = target or default_target()
    if target not in TARGETS:
        raise ValueError(f"target: got {target!r}, expected one of {', '.join(TARGETS)}")
    if not isinstance(arrays, str) or arrays not in _TAKEN:
        raise ValueError(f"arrays: got {arrays!r}, expected one of {', '.join(_TAKEN)}")
    wanted = None if isinstance(layout, str) and layout == "auto" else get_layout(layout)
    if not isinstance(spec, AttentionSpec):
        raise ValueError(f"spec: got {spec!r}, expected an AttentionSpec")
    if cache_spec is not None:
        if not isinstance(cache_spec, KVCacheSpec):
            raise ValueError(f"cache_spec: got {cache_spec!r}, expected a KVCacheSpec or None")
        for name in ("num_kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim"):
            got, expected = getattr(cache_spec, name), getattr(spec, name)
            if got != expected:
                raise ValueError(f"cache_spec.{name}: got {got}, expected {expected} as in spec")
    passed_over: dict[str, list[str]] = {}
    is_auto = isinstance(backend, str) and backend == "auto"
    candidates = backend_names() if is_auto else (backend,)
    for candidate in candidates:
        loaded = load_backend(candidate) if isinstance(candidate, str) else _checked(candidate)
        if isinstance(loaded, Unavailable):
            passed_over[loaded.name] = [loaded.reason]
            continue
        own = getattr(loaded, "arrays", "jax")
        if is_auto and own not in _TAKEN[arrays]:
            passed_over[loaded.name] = [f"takes {own} arrays, not {arrays}"]
            continue
        # Of its own layouts those of the spec's kind: reasons against the others help nobody.
        fitting = tuple(own for own in loaded.layouts if own.is_latent == spec.is_latent)
        tried = (fitting or loaded.layouts) if wanted is None else (wanted,)
        reasons: list[str] = []
        for choice in tried:
            against = loaded.unsupported(
                spec, choice, target, cache_spec=cache_spec, query_dtype=query_dtype
            )
            if not against:
                return Resolution(loaded, spec, choice, target, passed_over)
            reasons += [reason for reason in against if reason not in reasons]
        passed_over[loaded.name] = reasons
    listed = " | ".join(f"{name}: {'; '.join(why)}" for name, why in passed_over.items())
    asked = "any layout" if wanted is None else f"layout {wanted.name}"
    raise UnsupportedError(f"backend: none serves {asked} on {target} ({listed})")


def default_target() -> str:
    """The target that JAX's default device is."""
    platform = jax.default_backend()
    return "cuda" if platform == "gpu" else platform


def _third_party() -> dict[str, str]:
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point.value for point in found}
