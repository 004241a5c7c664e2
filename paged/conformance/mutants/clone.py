"""A backend with one fault in it, beside the real one.

The modules of the backend are executed once more from their source, with one edit, as modules
that only they themselves know: nothing in `sys.modules` changes, so that the real backend and any
number of faulty ones may run at the same time, in several threads too. Functions compiled by
`jax.jit` or `triton.jit` belong to their module and are compiled anew for each clone.
"""

import builtins
import importlib.util
import linecache
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from paged.conformance.mutants.mutant import Mutant

# Where a write and a gather happen. Backends reach them through the layout of their cache.
_LAYOUTS = ("paged.layouts.layout", "paged.layouts.arrays")


def clone(backend: type, mutant: Mutant | None = None) -> Any:
    """An instance of a private copy of a backend's class, with a mutant's edit in it.

    All modules of the package that defines the class are private to the copy, and the mutant's
    module, which the backend must import by name if it lies elsewhere. A mutant of the layouts
    reaches the backend through its cache: the backend is given one whose layout is of the faulty
    class, and what it returns has the real one again.

    Raises:
        StaleMutantError: the mutant does not fit its module.
        ImportError: a private module is imported in a form that is not redirected.
    """
    of_layouts = mutant is not None and mutant.module in _LAYOUTS
    copy, modules = _private_class(backend, mutant, _LAYOUTS if of_layouts else ())
    if of_layouts:
        copy = _over_layouts(copy, modules.load("paged.layouts.layout").Layout)
    # A kernel for hardware is tried by its interpreter, as the suite tries it.
    faulty = getattr(copy(), "interpreted", copy)()
    modules.require_loaded(backend)
    return faulty


def clone_class(original: type, mutant: Mutant) -> Any:
    """A private copy of a class, with a mutant's edit in its package, to be called like the class.

    Raises:
        StaleMutantError: the mutant does not fit its module.
        ImportError: a private module is imported in a form that is not redirected, or never.
    """
    copy, modules = _private_class(original, mutant)
    modules.require_loaded(original)
    return copy


def _private_class(
    original: type, mutant: Mutant | None, others: Sequence[str] = ()
) -> "tuple[Any, _PrivateModules]":
    names = {*_package_of(original), *others}
    if mutant is not None:
        names.add(mutant.module)
    modules = _PrivateModules(names, mutant)
    copy: Any = modules.load(original.__module__)
    for part in original.__qualname__.split("."):
        copy = getattr(copy, part)
    return copy, modules


class _PrivateModules:
    """Modules that are executed from source and known to each other only."""

    def __init__(self, names: set[str], mutant: Mutant | None) -> None:
        self._names = names
        self._mutant = mutant
        self._loaded: dict[str, ModuleType] = {}

    def require_loaded(self, original: type) -> None:
        """A mutant in a module that was never executed would prove nothing."""
        if self._mutant is not None and self._mutant.module not in self._loaded:
            name = self._mutant.name
            raise ImportError(f"mutant {name!r}: {original.__name__} never imports its module")

    def load(self, name: str) -> ModuleType:
        if name in self._loaded:
            return self._loaded[name]
        source = source_of(name)
        title = "clone"
        if self._mutant is not None:
            title = self._mutant.name
            if self._mutant.module == name:
                source = self._mutant.applied(source)
        module = ModuleType(name)
        filename = f"<{title}: {name}>"
        # Tracebacks show the faulty line, and compilers that read a function's source find it.
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module.__file__ = filename
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._loaded[name] = module
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` as the private modules see it."""
        if level:
            raise ImportError(f"{name}: a relative import is not redirected to a clone")
        if not fromlist:
            if name in self._names:
                raise ImportError(
                    f"import {name}: not redirected to a clone, write from ... import"
                )
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        own = [item for item in fromlist if f"{name}.{item}" in self._names]
        # A package that only leads to its modules is not executed: it may be under way itself.
        if name in self._names and len(own) < len(fromlist):
            module = self.load(name)
        else:
            module = builtins.__import__(name, globals, locals, fromlist, level)
        if not own:
            return module
        # `from package import module`: what is asked for, without touching the package.
        seen = ModuleType(name)
        seen.__dict__.update({item: getattr(module, item) for item in fromlist if item not in own})
        seen.__dict__.update({item: self.load(f"{name}.{item}") for item in own})
        return seen


def source_of(module: str) -> str:
    """The source of a module as it stands.

    Raises:
        ImportError: no module of that name, or one without source.
    """
    spec = importlib.util.find_spec(module)
    # A loader may have no way to its source (pytest's has none), but there is a file.
    get_source = getattr(spec and spec.loader, "get_source", None)
    source = None if get_source is None else get_source(module)
    if source is None and spec is not None and spec.has_location and spec.origin:
        source = Path(spec.origin).read_text(encoding="utf-8")
    if source is None:
        raise ImportError(f"{module}: no source to be found")
    return source


def _package_of(backend: type) -> list[str]:
    """The names of all modules of the package that defines a class."""
    spec = importlib.util.find_spec(backend.__module__)
    package = backend.__module__
    if spec is not None and spec.submodule_search_locations is None:
        # A class of a plain module: that module alone, or its package where it has one.
        package = package.rpartition(".")[0] or package
    spec = importlib.util.find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    if folders is None:
        return [backend.__module__]
    below = pkgutil.walk_packages(list(folders), f"{package}.")
    return [package, *(info.name for info in below)]


def _fields(layout: Any) -> dict[str, Any]:
    return {field.name: getattr(layout, field.name) for field in fields(layout)}


def _over_layouts(backend: Any, layout_class: type) -> Any:
    """The backend's class, given caches whose layout is of another class."""

    def swapped(cache: Any) -> Any:
        return replace(cache, layout=layout_class(**_fields(cache.layout)))

    class OverLayouts(backend):
        def _write(self, cache: Any, *rest: Any) -> Any:
            return replace(super()._write(swapped(cache), *rest), layout=cache.layout)

        def _attend(self, query: Any, cache: Any, *rest: Any) -> Any:
            return super()._attend(query, swapped(cache), *rest)

    return OverLayouts
