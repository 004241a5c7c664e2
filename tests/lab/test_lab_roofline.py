"""Figures per token, worked by hand."""

from dataclasses import replace

import pytest

from paged.backends.loops import LoopTrips
from paged.lab import TARGETS, Problem, get_targets
from paged.lab.asks import Sizes
from paged.lab.bundles import KernelCounts, Loop
from paged.lab.program import Program, WhileLoop, read_program
from paged.lab.roofline import (
    Total,
    Unknown,
    hbm_cycles_per_token,
    launches,
    loop_runs,
    matmul_cycles_per_token,
    total,
)
from paged.layouts import FLASHINFER, MLA, PALLAS
from paged.spec import AttentionSpec

SPEC = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=1.0)
DECODE = Problem(SPEC, PALLAS)


@pytest.mark.parametrize(("target", "cycles"), [("v5e", 7.52), ("v6e", 4.37), ("v7x", 2.44)])
def test_hbm_cycles_of_eight_heads_of_128_in_bf16(target, cycles):
    # 8 heads x 128 x 2 bytes x (K and V) = 4,096 bytes.
    assert DECODE.bytes_per_token("tpu") == 4096
    assert hbm_cycles_per_token(DECODE, TARGETS[target]) == pytest.approx(cycles, abs=0.005)


@pytest.mark.parametrize(
    ("target", "clock"),
    [("v4", 1.049), ("v5e", 1.503), ("v5p", 1.751), ("v6e", 1.751), ("v7x", 2.2)],
)
def test_the_clock_follows_from_peak_and_rate(target, clock):
    assert TARGETS[target].clock_ghz == pytest.approx(clock, abs=0.001)


def test_padding_counts_as_bytes():
    latent = Sizes().problem(MLA, 64)
    # 512 + 64 entries in lanes of 128: 640 of 2 bytes.
    assert latent.bytes_per_token("tpu") == 1280
    assert latent.spec.num_heads == 128
    assert hbm_cycles_per_token(latent, TARGETS["v6e"]) == pytest.approx(1.37, abs=0.005)


def test_matrix_work_of_a_decode_and_of_a_prefill():
    # 32 heads x (128 + 128) multiply-adds for each key.
    assert DECODE.flop_per_token() == 2 * 32 * 256
    prefill = Problem(SPEC, PALLAS, num_seqs=1, kv_tokens=4, query_len=4)
    # Queries see 1, 2, 3, 4 keys: 10 pairs over 4 keys.
    assert prefill.flop_per_token() == 2 * 32 * 256 * 10 / 4
    assert matmul_cycles_per_token(DECODE, TARGETS["v6e"]) == 2 * 32 * 256 / 524_288


def test_problems_and_targets_refuse_nonsense():
    with pytest.raises(ValueError, match="query_len: got 9"):
        Problem(SPEC, PALLAS, kv_tokens=8, query_len=9)
    with pytest.raises(ValueError, match="num_seqs: got 0"):
        Problem(SPEC, PALLAS, num_seqs=0)
    with pytest.raises(ValueError, match="target: got 'v9'"):
        get_targets("v5e,v9")
    assert [target.name for target in get_targets("v6e,all")] == ["v6e", "v4", "v5e", "v5p", "v7x"]


def test_a_problem_is_a_step_in_shapes():
    problem = Problem(SPEC, FLASHINFER, block_size=16, num_seqs=3, kv_tokens=40, query_len=2)
    query, cache, metadata, sinks = problem.attend_arguments()
    assert query.shape == (6, 32, 128)
    # 3 blocks each; the cache has more, so that it does not fit into a TPU's VMEM.
    assert cache.data.shape == (256 * 2**20 // (2 * 16 * 8 * 128 * 2), 2, 16, 8, 128)
    assert metadata.block_table.shape == (3, 3)
    many = replace(problem, num_seqs=64, kv_tokens=1024).attend_arguments()[1]
    assert many.data.shape[0] == 64 * 64 + 1
    assert (metadata.max_query_len, metadata.max_seq_len, sinks) == (2, 40, None)
    metadata.static_validate(query=query, cache=cache, spec=SPEC)
    _, key, value, slots = problem.write_arguments()
    assert key.shape == value.shape == (6, 8, 128)
    assert slots.shape == (6,)


def loop(depth, parent, scheduled, *, matmul=0, copies=0, bound=1):
    slots = {"MATMUL": matmul, "SALU": bound}
    return Loop(depth, parent, scheduled, scheduled - 1, 0, slots, "SALU", bound, 0, 0, copies)


# A grid of 4 sequences, in it a loop over tiles and one of copies.
KERNEL = KernelCounts(
    "kernel.1",
    {"MATMUL": 2, "SALU": 2},
    (loop(0, None, 10), loop(1, 0, 20), loop(2, 1, 100, matmul=5), loop(2, 1, 8, copies=1)),
    (1, 4, None, None),
    1024,
)
ALONE = Program(custom=("kernel.1",), loops={"kernel.1": ()})
RULES = (
    LoopTrips(depth=2, runs=32, holds="matmul"),
    LoopTrips(depth=2, runs=256, holds="copy"),
)


def test_runs_are_the_backends_word_then_the_compilers():
    assert loop_runs(KERNEL, 1.0, RULES) == (1.0, 4.0, 32, 256)
    assert loop_runs(KERNEL, 1.0, ()) == (1.0, 4.0, None, None)
    by_order = (LoopTrips(depth=2, runs=7, nth=1), LoopTrips(depth=2, runs=3))
    assert loop_runs(KERNEL, 1.0, by_order) == (1.0, 4.0, 3, 7)
    other = (LoopTrips(depth=2, runs=3, kernel="mla"),)
    assert loop_runs(KERNEL, 1.0, other)[2] is None


def test_a_total_weighs_each_body_by_its_runs():
    whole = total([KERNEL], ALONE, {}, RULES)
    assert isinstance(whole, Total)
    # 10 + 4 x 20 + 32 x 100 + 256 x 8.
    assert whole.scheduled == 5338
    assert whole.issued == 5338 - (1 + 4 + 32 + 256)
    assert whole.bound == 1 + 4 + 32 + 256
    assert whole.per(2).scheduled == 2669


def test_a_trip_count_that_nobody_tells_is_a_reason():
    unknown = total([KERNEL], ALONE, {}, RULES[:1])
    assert isinstance(unknown, Unknown)
    assert "loop 3 (depth 2, 8 bundles)" in unknown.reason


HLO = """HloModule jit_f

%cond (p: (s32[])) -> pred[] {
  ROOT %lt.1 = pred[] compare(%a, %b), direction=LT
}

%inner_body (p: (s32[])) -> (s32[]) {
  %fusion.7 = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused
  ROOT %tuple.1 = (s32[]) tuple(%fusion.7)
}

%outer_body (p: (s32[])) -> (s32[]) {
  %copy.2 = f32[8]{0} copy(%p)
  ROOT %while.1 = (s32[]) while(%copy.2), condition=%cond, body=%inner_body
}

ENTRY %main.3 (x: f32[8]) -> f32[8] {
  %mine.1 = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"
  %other.1 = f32[8]{0} custom-call(%x), custom_call_target="Sharding"
  %while.2 = (s32[]) while(%mine.1), condition=%cond, body=%outer_body, \
backend_config={"known_trip_count":{"n":"8"}}
  ROOT %copy.9 = f32[8]{0} copy(%while.2)
}
"""


def test_a_program_says_which_loops_a_kernel_is_in():
    program = read_program(HLO)
    assert program.custom == ("mine.1",)
    outer, inner = WhileLoop(1, 0, 8), WhileLoop(2, 0, None)
    assert program.loops["copy.9"] == ()
    assert program.loops["copy.2"] == (outer,)
    assert program.loops["fusion.7"] == (outer, inner)


def test_a_kernel_starts_as_often_as_the_loops_around_its_instructions():
    program = read_program(HLO)
    rules = (LoopTrips(depth=2, runs=40, where="program"),)
    assert launches("copy.2", program, {}, ()) == 8
    assert launches("fusion.7", program, {}, rules) == 40
    assert launches("copy.9", program, {"copy.9": ("copy.9", "copy.2")}, ()) == 1 + 8
    assert isinstance(launches("fusion.7", program, {}, ()), Unknown)
    assert isinstance(launches("nowhere", program, {}, ()), Unknown)
