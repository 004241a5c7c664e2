"""A backend with a fault, and a run of it: what the reports are tested with."""

import functools
from dataclasses import replace

from paged.backends.reference import ReferenceBackend
from paged.conformance import run_conformance
from paged.conformance.run import Run

MARKUP = "<script>alert('&')</script>"


class WindowOffByOne(ReferenceBackend):
    """A name that must be escaped, a window that is one key too long, no sinks."""

    name = f"faulty {MARKUP}"
    capabilities = replace(ReferenceBackend.capabilities, sinks=False)

    def _attend(self, query, cache, metadata, spec, sinks):
        if spec.window is not None:
            spec = replace(spec, window=spec.window + 1)
        return super()._attend(query, cache, metadata, spec, sinks)


@functools.cache
def failing_run():
    cases = ["batch/mixed", "window/decode", "window/1", "sinks/mixed", "lengths/long", "mla/5*"]
    report = run_conformance(WindowOffByOne(), cases=cases, layouts=["flashinfer", "packed"])
    return Run(report, asked="my_pkg.my_mod:WindowOffByOne", seconds=1.5)
