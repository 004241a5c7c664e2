"""The operations of a compiled step, by what they are for."""

import pytest

from paged.engine import SamplingParams
from paged.engine.program_parts import Operation, shares

PROGRAM = """
ENTRY %main {
  %p.1 = f32[8]{0} parameter(0), metadata={op_name="params[0]"}
  %dot.3 = f32[8]{0} dot(%p.1, %p.1), metadata={op_name="jit(_step)/dot_general"}
  %ffi_call.2 = f32[8]{0} custom-call(%dot.3), metadata={op_name="jit(_step)/attention/ffi_call"}
  %copy = f32[8]{0} copy(%ffi_call.2)
  ROOT %reduce = f32[] reduce(%copy), metadata={op_name="jit(_step)/sampling/reduce_max"}
}
"""


def ran(program, *steps):
    return [
        Operation(program, run, name, seconds)
        for run, operations in enumerate(steps)
        for name, seconds in operations.items()
    ]


def test_by_hand():
    step = {"dot.3": 3.0, "ffi_call.2": 4.0, "copy": 2.0, "reduce": 1.0}
    # Another program ran once, and has an instruction of the same name.
    operations = [*ran(1, {"dot.3": 99.0, "alien": 1.0}), *ran(2, step, step)]
    assert shares(operations, PROGRAM) == {"attention": 0.4, "sampling": 0.1, "model": 0.5}


def test_nothing_is_said_about_what_is_not_understood():
    assert shares([], PROGRAM) is None
    assert shares(ran(1, {"alien": 1.0}), PROGRAM) is None
    assert shares(ran(1, {"dot.3": 0.0}), PROGRAM) is None


def test_an_engine_shares_out_its_decode_step(llm, prompts):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    llm.generate(prompts[:4], params, progress=False)
    found = llm.program_shares(lambda: llm.generate(prompts[:4], params, progress=False))
    assert set(found) == {"attention", "sampling", "model"}
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) > 0
