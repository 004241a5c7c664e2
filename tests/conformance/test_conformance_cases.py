"""The table of cases and the problems made from it."""

import numpy as np
import pytest

from paged.backends.reference.addressing import addresses
from paged.conformance import CASES, RULES, select
from paged.conformance.arrays import differing
from paged.conformance.checks import CHECKS
from paged.conformance.checks.refusals import WRONG_ASKS
from paged.conformance.compare import expected_pool
from paged.conformance.problem import build
from paged.layouts import LAYOUTS, Layout, get_layout


def test_every_kind_of_fault_has_a_case():
    for item in range(1, 26):
        assert any(item in case.items for case in CASES), f"no case for item {item}"


def test_every_rule_of_the_contract_has_a_case():
    named = {rule for case in CASES for rule in case.rules}
    assert {str(number) for number in range(1, 15)} <= named
    assert named <= set(RULES)


def test_names_are_unique_and_checks_exist():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.check for case in CASES} == set(CHECKS)
    refusals = {case.name.partition("/")[2] for case in CASES if case.check == "refusal"}
    assert refusals == {*WRONG_ASKS, "other_platform"}


@pytest.mark.parametrize("layout", ["flash_attn", "mla"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_problems_keep_the_contract(case, layout):
    """What the suite asks for is valid: a failure is the backend's."""
    layout = get_layout(layout)
    problem = build(case.setup, layout, "float32", 3, case.name)
    setup = case.setup
    problem.metadata.validate(
        query=problem.query, cache=problem.cache, spec=problem.spec, num_blocks=setup.num_blocks
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pools_are_hostile(layout):
    layout = get_layout(layout)
    case = select("batch/mixed")[0]
    problem = build(case.setup, layout, "float32", 0, case.name)
    where = addresses(layout, problem.cache.data.shape)
    pool = expected_pool(problem)
    tokens = sum(seq_len for _, seq_len in case.setup.sequences)
    plain = Layout(layout.name, layout.pattern)
    shape = plain.shape(where.size["block"], case.setup.cache_spec(layout, "float32"))
    content = layout.padded(np.ones(shape, np.float32)) == 1
    per_token = content.sum() // (where.size["block"] * where.size["slot"])
    assert np.isfinite(pool[content]).sum() == tokens * per_token, "only owned slots hold numbers"
    assert (pool[~content] == 0).all(), "padding is zero"
    null_block = (np.take(each, 0, axis=layout.block_axis) for each in (pool, content))
    numbers, is_content = null_block
    assert np.isnan(numbers[is_content]).all(), "the null block is NaN"
    table, block_size = problem.metadata.block_table, case.setup.block_size
    owned = [
        table[row, : -(-seq_len // block_size)].tolist()
        for row, (_, seq_len) in enumerate(case.setup.sequences)
    ]
    flat = [block for blocks in owned for block in blocks]
    assert len(set(flat)) == len(flat), "no block has two owners"
    assert {1, where.size["block"] - 1} <= set(flat), "the first and the last block are owned"
    assert any(np.diff(blocks).min() < 0 for blocks in owned if len(blocks) > 1), "permuted"
    past = np.concatenate([table[row, len(ids) :] for row, ids in enumerate(owned)])
    assert ((past < 0) | (past >= where.size["block"])).mean() > 0.5, "invalid ids past the end"
    assert np.isnan(problem.query[problem.place[:, 0] < 0]).all(), "padding queries are NaN"


def test_bits_differ_but_not_those_of_a_nan():
    payload = np.array([0x7FC1], np.uint16).view("bfloat16")[0]
    one = np.array([0.0, 1.0, np.nan, np.nan, np.inf], "bfloat16")
    other = np.array([-0.0, 1.0, payload, 2.0, np.inf], "bfloat16")
    assert differing(one, other).tolist() == [True, False, False, True, False]
    assert differing(one[2:3], other[2:3]).tolist() == [False]
    assert differing(np.array(3, np.int8), np.array(4, np.int8)).tolist() == [True]


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    setup, layout = select("batch/mixed")[0].setup, get_layout("packed")
    first, again, other = (build(setup, layout, "bfloat16", seed, "x") for seed in (1, 1, 2))
    assert not differing(first.query, again.query).any()
    assert not differing(first.cache.data, again.cache.data).any()
    assert (first.metadata.block_table == again.metadata.block_table).all()
    assert differing(first.query, other.query).any()


def test_select_refuses_a_pattern_that_fits_nothing():
    assert {case.name for case in select(["window/1", "sinks/*"])} > {"window/1", "sinks/mixed"}
    with pytest.raises(ValueError, match="no case is named 'windows'"):
        select("windows")
