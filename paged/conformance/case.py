"""`Case`: one thing that has broken real systems, as data."""

from dataclasses import dataclass
from typing import Literal

from paged.conformance.setup import Setup


@dataclass(frozen=True, slots=True)
class Case:
    """A case: data only; `check` names the procedure in `paged.conformance.checks`.

    Attributes:
        name: "group/what"; with a seed it reproduces a failure.
        exposes: the fault that it brings to light.
        items: which kinds of fault of docs/conformance.md (1 to 25) it belongs to.
        rules: keys of `RULES`; the first is named where nothing says better what broke.
        setup: the problem.
        check: the procedure.
        dtypes: query dtypes it runs in; None for those asked for.
        one_dtype: runs in one dtype, the first that the backend claims, unless dtypes are asked
            for: what it exposes does not depend on the type.
        only: "kv" or "latent" where it makes sense for one kind of layout.
        large: too large for the default run.
        source: public report of the fault, where one is known.
    """

    name: str
    exposes: str
    items: tuple[int, ...]
    rules: tuple[str, ...]
    setup: Setup
    check: str = "attend"
    dtypes: tuple[str, ...] | None = None
    one_dtype: bool = False
    only: Literal["kv", "latent"] | None = None
    large: bool = False
    source: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Capability words that the case asks for."""
        setup = self.setup
        asks = {
            "window": setup.window is not None,
            "soft_cap": setup.soft_cap is not None,
            "sinks": setup.sinks is not None,
            "lse": self.check == "merge",
            "quantised KV": setup.k_scale is not None or setup.v_scale is not None,
            "per_head_scales": isinstance(setup.k_scale, tuple) or isinstance(setup.v_scale, tuple),
        }
        return tuple(word for word, asked in asks.items() if asked)
