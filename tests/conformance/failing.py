"""Backends and a block manager with a fault each: what the reports are tested with."""

import functools
from dataclasses import replace

from paged.backends.reference import ReferenceBackend
from paged.blocks import KVCacheManager
from paged.conformance import run_conformance
from paged.conformance.run import of_backend

MARKUP = "<script>alert('&')</script>"


class WindowOffByOne(ReferenceBackend):
    """A name that must be escaped, a window that is one key too long, no sinks."""

    name = f"faulty {MARKUP}"
    capabilities = replace(ReferenceBackend.capabilities, sinks=False)

    def _attend(self, query, cache, metadata, spec, sinks):
        if spec.window is not None:
            spec = replace(spec, window=spec.window + 1)
        return super()._attend(query, cache, metadata, spec, sinks)


class NamesItsLayouts(ReferenceBackend):
    """Says by name what it has to say by `Layout`."""

    layouts = ("flashinfer",)


class NeedsADevice(ReferenceBackend):
    """Cannot be made without an argument."""

    def __init__(self, device):
        self.device = device


class LosesABlock(KVCacheManager):
    """Counts one free block too few."""

    @property
    def num_free_blocks(self):
        return super().num_free_blocks - 1


@functools.cache
def failing_run():
    cases = ["batch/mixed", "window/decode", "window/1", "sinks/mixed", "lengths/long", "mla/5*"]
    report = run_conformance(WindowOffByOne(), cases=cases, layouts=["flashinfer", "packed"])
    return of_backend(report, "my_pkg.my_mod:WindowOffByOne", seconds=1.5)
