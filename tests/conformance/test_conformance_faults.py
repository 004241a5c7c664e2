"""Backends with one fault each: the verdict names the rule that it breaks."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from paged.backends import AttentionOutput, Capabilities
from paged.backends.reference import ReferenceBackend
from paged.backends.xla import XlaBackend
from paged.conformance import run_conformance
from paged.layouts import get_layout

CASES = ["batch/mixed", "batch/decode_only", "batch/eager", "window/8", "sinks/mixed"]


class WritesOneWrongSlot(ReferenceBackend):
    """Right values, and one more slot."""

    def _write(self, cache, key, value, slot_mapping):
        new = super()._write(cache, key, value, slot_mapping)
        keys, _ = new.layout.views(new.data)
        free = np.argwhere(np.isnan(keys[1:, :, 0, 0].astype(np.float32)))[0]
        keys[free[0] + 1, free[1]] = 0
        return new


class WritesTheNullBlock(ReferenceBackend):
    def _write(self, cache, key, value, slot_mapping):
        new = super()._write(cache, key, value, slot_mapping)
        new.layout.views(new.data)[0][0, 0] = 0
        return new


class WrapsMinusOne(ReferenceBackend):
    def _write(self, cache, key, value, slot_mapping):
        last = cache.num_blocks * cache.block_size - 1
        slots = np.where(slot_mapping < 0, last, slot_mapping).astype(np.int32)
        return super()._write(cache, key, value, slots)


class Base2Lse(XlaBackend):
    def _attend(self, *args):
        out, lse = super()._attend(*args)
        return AttentionOutput(out, lse / jnp.log(2.0))


class MutatesNumpyMetadata(ReferenceBackend):
    def _attend(self, query, cache, metadata, spec, sinks):
        result = super()._attend(query, cache, metadata, spec, sinks)
        metadata.seq_lens[0] += 1
        return result


class MutatesJaxMetadata(XlaBackend):
    def _attend(self, query, cache, metadata, spec, sinks):
        result = super()._attend(query, cache, metadata, spec, sinks)
        object.__setattr__(metadata, "seq_lens", metadata.seq_lens + 1)
        return result


class IdentityTablesOnly(XlaBackend):
    """Takes a sequence's blocks for neighbours."""

    def _attend(self, query, cache, metadata, spec, sinks):
        table = metadata.block_table
        in_order = table[:, :1] + jnp.arange(table.shape[1], dtype=table.dtype)[None]
        return super()._attend(query, cache, replace(metadata, block_table=in_order), spec, sinks)


class RaisesForItsClaim(ReferenceBackend):
    def _attend(self, query, cache, metadata, spec, sinks):
        if spec.window is not None:
            raise NotImplementedError("window")
        return super()._attend(query, cache, metadata, spec, sinks)


class ServesWhatItRefuses(ReferenceBackend):
    """Says that it knows no window, and ignores it."""

    capabilities = Capabilities(window=False)

    def _refuse(self, reasons):
        pass


class RefusesTooLate(ReferenceBackend):
    """Reads the queries before it looks at what was asked."""

    capabilities = Capabilities(sinks=False)

    def attend(self, query, cache, metadata, spec, *, sinks=None):
        if np.isnan(np.asarray(query, np.float32)).all():
            raise ValueError("nothing to do")
        return super().attend(query, cache, metadata, spec, sinks=sinks)


class ReadsUnownedMemory(ReferenceBackend):
    """Adds zero times the null block."""

    def _attend(self, query, cache, metadata, spec, sinks):
        out, lse = super()._attend(query, cache, metadata, spec, sinks)
        values = cache.layout.views(cache.data)[1]
        is_query = np.arange(len(out)) < metadata.query_start_loc[-1]
        return AttentionOutput(
            np.where(is_query[:, None, None], out + 0 * values[0].sum(), out), lse
        )


FAULTS = {
    WritesOneWrongSlot: "rule 7 (a backend writes no slot that slot_mapping does not name)",
    WritesTheNullBlock: "rule 5 (block 0 is the null block",
    WrapsMinusOne: "rule 4 (slot -1 writes nothing",
    Base2Lse: "rule 8 (lse is the natural logarithm",
    MutatesNumpyMetadata: "rule inputs (inputs are read only: metadata",
    MutatesJaxMetadata: "rule inputs (inputs are read only: metadata",
    IdentityTablesOnly: "rule 13 (a result depends neither on which physical blocks",
    RaisesForItsClaim: "rule claim (what a backend claims it serves",
    ServesWhatItRefuses: "rule claim (what a backend claims it serves",
    RefusesTooLate: "rule claim (what a backend claims it serves",
    ReadsUnownedMemory: "rule 6 (memory that a sequence does not own",
}


@pytest.mark.parametrize(
    ("backend", "message"), FAULTS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_fault_is_named_by_its_rule(backend, message):
    report = run_conformance(backend(), cases=CASES, layouts=["flashinfer"], dtypes=["float32"])
    assert not report.ok
    assert any(message in result.reason for result in report.failures), [
        result.reason for result in report.failures
    ]
    found = json.loads(report.to_json())
    assert found["summary"]["failed"] == len(report.failures)
    assert set(found["cases"][0]) == {
        "name",
        "layout",
        "dtype",
        "status",
        "reason",
        "max_error",
        "seed",
    }


def test_a_failure_has_its_place():
    report = run_conformance(
        IdentityTablesOnly(), cases="batch/decode_only", layouts=["packed"], dtypes=["float32"]
    )
    (failure,) = report.failures
    assert failure.max_error is None or failure.max_error > 0
    assert failure.where.token is not None
    assert failure.where.block >= 1
    assert f"token {failure.where.token}" in failure.reason
    assert "block" in failure.reason


class Changed(ReferenceBackend):
    """Attends with a spec that is not the one asked for."""

    def __init__(self, change):
        self.change = change

    def _attend(self, query, cache, metadata, spec, sinks):
        spec, sinks = self.change(spec, sinks)
        return super()._attend(query, cache, metadata, spec, sinks)


def windowed(by):
    return lambda spec, sinks: (
        replace(spec, window=None if by is None else spec.window + by) if spec.window else spec,
        sinks,
    )


SMALL_FAULTS = {
    "window ignored": ("window/*", windowed(None)),
    "window one too long": ("window/*", windowed(1)),
    "scale * 0.9": ("batch/mixed", lambda spec, s: (replace(spec, scale=spec.scale * 0.9), s)),
    "scale * 1.01": ("batch/mixed", lambda spec, s: (replace(spec, scale=spec.scale * 1.01), s)),
    "cap ignored": ("soft_cap/*", lambda spec, s: (replace(spec, soft_cap=None), s)),
    "sinks ignored": ("sinks/*", lambda spec, s: (replace(spec, has_sinks=False), None)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["pallas", "mla"])
@pytest.mark.parametrize("fault", SMALL_FAULTS)
def test_what_wide_tolerances_let_pass(fault, layout, dtype):
    cases, change = SMALL_FAULTS[fault]
    report = run_conformance(Changed(change), cases=cases, layouts=[layout], dtypes=[dtype])
    assert report.failures


class OnlyWhatItClaims(ReferenceBackend):
    """A modest backend: everything beyond its claims is refused."""

    layouts = (get_layout("packed"),)
    capabilities = Capabilities(
        window=False,
        soft_cap=False,
        sinks=False,
        lse=False,
        per_head_scales=False,
        query_dtypes=("bfloat16",),
        cache_dtypes=("bfloat16", "int8"),
        head_dims=(64, 128),
        group_sizes=(1, 2, 4),
        block_sizes=(16, 32),
    )

    def _attend(self, *args):
        return super()._attend(*args)._replace(lse=None)


def test_refusals_are_right_for_what_is_not_claimed():
    report = run_conformance(OnlyWhatItClaims())
    assert report.ok, report.failures[0].reason
    status = {(result.name, result.dtype): result.status for result in report.results}
    assert status["batch/mixed", "bfloat16"] == "passed"
    assert status["batch/mixed", "float32"] == "refused"
    assert status["heads/group_2", "bfloat16"] == "passed"
    assert status["heads/group_5", "bfloat16"] == "refused"
    assert status["window/8", "bfloat16"] == "refused"
    assert status["quantised/int8", "bfloat16"] == "passed"
    assert status["quantised/int8_per_head", "bfloat16"] == "refused"
    assert status["block_size/5", "bfloat16"] == "refused"
    assert status["lse/split_small", "bfloat16"] == "not_run"
    assert all(result.reason for result in report.results if result.status != "passed")


class OnTorch(ReferenceBackend):
    arrays = "torch"


def test_a_backend_may_work_on_torch_tensors():
    pytest.importorskip("torch")
    cases = ["batch/strided", "quantised/float8_e4m3fn*", "window/8", "refuse/*", "layouts/*"]
    report = run_conformance(OnTorch(), cases=cases, layouts=["packed"])
    assert report.ok, report.failures[0].reason
    assert report.summary["passed"] >= 9


def test_progress_is_told_after_each_result():
    seen = []
    report = run_conformance(
        ReferenceBackend(),
        cases=["batch/mixed", "lengths/long"],
        layouts=["packed"],
        on_result=lambda result, done, total: seen.append((result.name, done, total)),
    )
    assert [done for _, done, _ in seen] == [1, 2, 3, 4]
    assert {total for _, _, total in seen} == {4}
    assert report.summary == {"passed": 2, "failed": 0, "refused": 0, "not_run": 2}
