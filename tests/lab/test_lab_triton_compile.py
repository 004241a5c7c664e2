"""The Triton kernels through triton's compiler, for GPUs that are not here."""

import importlib.util
from pathlib import Path

import pytest

from paged.lab.triton.baseline import compared, read_triton_baseline, triton_versions, worse
from paged.lab.triton.grid import Case, chosen_cases, default_cases
from paged.lab.triton.run import compile_cases
from paged.lab.triton.targets import GPU_TARGETS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
BASELINE = Path(__file__).parents[2] / "benchmarks" / "triton_baseline.json"


@pytest.fixture(scope="module")
def baseline():
    known = read_triton_baseline(BASELINE)
    if known.versions != triton_versions():
        pytest.skip(f"the baseline is of {known.versions}, installed is {triton_versions()}")
    return known


@pytest.fixture(scope="module")
def decodes():
    """The representative decodes for sm_90; a minute. An interpreter asked for changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        return compile_cases(GPU_TARGETS["sm_90"], chosen_cases("decode", full=False))


def assert_decodes_are_sound(found):
    for one in found:
        label = one.case.label
        assert one.counts is not None, f"{label}: {one.reason}"
        assert one.counts.spills == 0, f"{label}: {one.counts}"
        assert one.counts.mma is not None, f"{label}: no matrix instructions"
        # Float8 is half as many bytes, and at least half a vector.
        least = 8 if one.case.dtype.startswith("float8") else 16
        assert one.counts.load_bytes is not None, f"{label}: no loads of keys and values"
        assert one.counts.load_bytes >= least, f"{label}: loads of {one.counts.load_bytes} bytes"


def test_decodes_on_sm_90_are_sound(decodes):
    assert_decodes_are_sound(decodes)


def test_decodes_on_sm_90_are_as_good_as_the_baseline(decodes, baseline):
    assert worse(baseline, decodes) == []
    assert compared(baseline, decodes) == len(decodes)


def test_an_amd_target_is_as_good_as_the_baseline(baseline):
    found = compile_cases(GPU_TARGETS["gfx942"], [Case("decode"), Case("write", group=1)])
    assert worse(baseline, found) == []
    assert compared(baseline, found) == len(found)
    decode, write = (one.counts for one in found)
    assert (decode.mma, decode.load_bytes) == ("MFMA", 16)
    assert (write.mma, write.load_bytes) == (None, None)


def test_what_does_not_compile_is_a_reason_and_the_rest_goes_on():
    cases = [Case("write", layout="nowhere", group=1), Case("write", group=1)]
    refused, compiled = compile_cases(GPU_TARGETS["sm_80"], cases)
    assert refused.counts is None
    assert "nowhere" in refused.reason
    assert compiled.counts is not None, compiled.reason


@pytest.mark.full
@pytest.mark.parametrize("target", GPU_TARGETS.values(), ids=lambda target: target.name)
def test_the_representative_cases_are_as_good_as_the_baseline(target, baseline):
    assert worse(baseline, compile_cases(target, default_cases())) == []


@pytest.mark.full
def test_no_decode_of_the_whole_grid_spills_on_sm_90():
    cases = chosen_cases("decode", full=True)
    assert_decodes_are_sound(compile_cases(GPU_TARGETS["sm_90"], cases))
