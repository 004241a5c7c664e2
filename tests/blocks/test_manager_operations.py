"""Snapshots, statistics, threads, and refusals that the contract's cases do not name."""

import copy
import json
import random
import threading

import numpy as np
import pytest
from block_subjects import admit, state

from paged.blocks import BlocksStored, KVCacheManager, OutOfBlocks, WrongThread, snapshot
from paged.conformance.managers.serving import Serving
from paged.conformance.managers.walk import ACTIONS, GROUPS, WEIGHTS, two_bytes


def test_stats_by_hand():
    manager = KVCacheManager(11, 4, host_blocks=2)
    admit(manager, "a", range(10))  # blocks 1, 2, 3: two slots of the last are empty
    manager.admit("b", manager.prompt(range(9)))  # 8 cached, 1 not computed yet: block 4
    manager.append_slots("a", 1, drafts=3)  # 14 slots, 4 of them reserved: the token and 3 drafts
    stats = manager.stats()
    gauges = stats.gauges
    assert (gauges.blocks, gauges.used_blocks, gauges.cached_blocks, gauges.requests) == (
        10,
        5,
        2,
        2,
    )
    # Five blocks, 20 slots: 8 shared, 2 of a's, 4 reserved of a's, 1 reserved of b's; 2 + 3 empty.
    assert (gauges.used_slots, gauges.reserved_slots, gauges.internal_slots) == (10, 5, 5)
    assert (gauges.external_slots, gauges.waiting_blocks) == (0, 0)
    assert (stats.counters.prompt_tokens, stats.counters.hit_tokens) == (19, 8)
    assert (stats.hit_rate, stats.utilisation) == (8 / 19, 0.5)
    manager.begin_step()
    manager.free("b")
    gauges = manager.stats().gauges
    assert (gauges.waiting_blocks, gauges.external_slots, gauges.used_blocks) == (1, 4, 4)


def test_counters_count():
    manager = KVCacheManager(6, 4, host_blocks=4)
    admit(manager, "a", range(6))
    manager.fork("a", ["b"])
    manager.append_slots("a")
    manager.take_copies()
    manager.free("b")
    manager.commit("a", [6])
    manager.swap_out("a")
    manager.take_copies()
    manager.allocate_slots("c", 20)
    manager.free("c")
    manager.swap_in("a")
    counters = manager.stats().counters
    assert (counters.write_copies, counters.evictions) == (1, 1)
    assert (counters.blocks_swapped_out, counters.blocks_swapped_in) == (2, 2)
    empty = KVCacheManager(4, 4).stats()
    assert (empty.hit_rate, empty.utilisation) == (0, 0)


def test_prometheus_text():
    manager = KVCacheManager(11, 4)
    admit(manager, "a", range(10))
    text = manager.stats().prometheus()
    assert (
        "# TYPE paged_blocks_prompt_tokens_total counter\npaged_blocks_prompt_tokens_total 10\n"
        in text
    )
    assert "# TYPE paged_blocks_utilisation gauge\npaged_blocks_utilisation 0.3\n" in text
    names = [line.split()[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)) == len(manager.stats().as_dict())
    assert text.endswith("\n")


def test_a_second_thread_gets_an_error_and_changes_nothing():
    manager = KVCacheManager(20, 4, host_blocks=4, events=True)
    admit(manager, "a", range(6))
    prompt = manager.prompt(range(9))
    before, errors, reads = state(manager), [], []
    calls = [
        lambda: manager.admit("b", prompt),
        lambda: manager.allocate_slots("b", 4),
        lambda: manager.append_slots("a"),
        lambda: manager.append_batch([0]),
        lambda: manager.commit_batch([0], [1]),
        lambda: manager.commit("a", [6]),
        lambda: manager.commit_prompt("a", 6),
        lambda: manager.accept("a", 0),
        lambda: manager.fork("a", ["b"]),
        lambda: manager.free("a"),
        lambda: manager.swap_out("a"),
        lambda: manager.swap_in("a"),
        manager.take_copies,
        manager.take_events,
        manager.begin_step,
        lambda: manager.end_step(1),
        manager.reset,
    ]

    def other():
        for call in calls:
            try:
                call()
            except WrongThread as error:
                errors.append(str(error))
        reads.append(manager.num_free_blocks)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(errors) == len(calls)
    assert "the one writer" in errors[0]
    assert reads == [17]
    assert state(manager) == before
    manager.append_slots("a")


def test_another_thread_may_adopt_the_manager():
    manager = KVCacheManager(20, 4)
    manager.allocate_slots("a", 4)

    def other():
        manager.adopt()
        manager.append_slots("a", 4)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(WrongThread):
        manager.free("a")
    manager.adopt()
    manager.free("a")


def loaded(seed, groups=GROUPS[0], **options):
    """A manager in the middle of a random load, all its orders and events taken."""
    rng = random.Random(seed)
    work = Serving.of(KVCacheManager, 40, groups, host_blocks=12, **options)
    for number in range(60):
        rng.choices(ACTIONS, WEIGHTS)[0](rng, work, number)
    work.dispatch()
    while work._reads:
        work.end_step()
    rename = {name: str(name) for name in work.requests}
    core = work.manager._core
    for table in (core.holdings, core.host.requests, work.requests):
        for name in list(table):
            table[rename[name]] = table.pop(name)
    for holding in core.holdings.values():
        holding.request_id = str(holding.request_id)
    for swapped in core.host.requests.values():
        swapped.holding.request_id = str(swapped.holding.request_id)
    return work


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", GROUPS, ids=len)
def test_a_restored_manager_goes_on_as_the_one_that_was_saved(seed, groups):
    is_bad = seed % 2 == 1
    options = {"partial_tails": len(groups) == 1}
    work = loaded(seed, groups, **options, **({"hash": two_bytes} if is_bad else {}))
    form = json.loads(json.dumps(work.manager.snapshot()))
    twin = copy.deepcopy(work)
    twin.manager = KVCacheManager.restore(form, hash=two_bytes if is_bad else None)
    assert json.loads(json.dumps(twin.manager.snapshot())) == form
    assert state(twin.manager) == state(work.manager)
    for each in (work, twin):
        rng = random.Random(seed)
        for number in range(1000, 1040):
            rng.choices(ACTIONS[:3] + ACTIONS[6:7], WEIGHTS[:3] + WEIGHTS[6:7])[0](
                rng, each, number
            )
            each.check()
        each.dispatch()
    assert state(twin.manager)[0] == state(work.manager)[0]


def edited(path, value):
    def edit(form):
        *parents, last = path
        for key in parents:
            form = form[key]
        form[last] = value(form[last]) if callable(value) else value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        edited(["version"], 2),
        edited(["free"], lambda free: free[1:]),
        edited(["free"], lambda free: [*free, free[0]]),
        edited(["free", 0], 0),
        edited(["free", 0], 99),
        edited(["free", 0], "1"),
        edited(["requests", 0, "tables", 0, 0], 39),
        edited(["requests", 0, "tables", 0, 0], -1),
        edited(["requests", 0, "tables"], []),
        edited(["requests", 0, "num_tokens"], 99),
        edited(["requests", 0, "committed"], 99),
        edited(["requests", 0, "committed"], -1),
        edited(["requests", 0, "row"], 1),
        edited(["requests", 0, "tail"], [1, 2]),
        edited(["requests", 0, "prompt", 0], 9),
        edited(["requests", 0, "digests", 0], "00"),
        edited(["requests", 0, "digests"], []),
        edited(["requests", 0, "keys", "salt"], "other"),
        edited(["requests", 1, "request_id"], "a"),
        edited(["index", 0, 0, 1], 3),
        edited(["index", 0, 0, 0], "00"),
        edited(["index", 0, 1], lambda entry: [entry[0], 1]),
        edited(["options", "num_blocks"], 1),
        edited(["options", "hash"], "custom"),
        edited(["options", "hash"], "md5"),
        edited(["counters"], {"x": 1}),
        edited(["host", "requests", 0, "tables", 0, 0], 2),
        edited(["host", "free"], []),
        lambda form: form.pop("free"),
        lambda form: form.pop("host"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(edit):
    manager = KVCacheManager(12, 4, host_blocks=3)
    admit(manager, "a", range(10))
    admit(manager, "b", range(9))
    admit(manager, "c", range(50, 54))
    manager.take_copies()
    manager.swap_out("c")
    manager.take_copies()
    form = json.loads(json.dumps(manager.snapshot()))
    KVCacheManager.restore(form)
    edit(form)
    with pytest.raises(ValueError, match="snapshot: "):
        KVCacheManager.restore(form)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["host", "requests", 0, "num_tokens"], 0, "num_tokens"),
        (["host", "requests", 0, "num_tokens"], 10**7, "num_tokens"),
        (["host", "requests", 0, "num_tokens"], 10**30, "num_tokens"),
        (["host", "requests", 0, "committed"], 10**7, "committed"),
        (["host", "requests", 0, "released"], [2], "released"),
        (["host", "requests", 0, "num_entered"], 10**30, "num_entered"),
        (["host", "requests", 0, "tail"], [1.0, 0, 0, 0], "tail"),
        (["host", "requests", 0, "tables", 0], [1, 1], "distinct blocks"),
        (["requests", 0, "num_tokens"], 10**30, "num_tokens"),
        (["requests", 0, "released"], [1], "released"),
        (["requests", 0, "num_entered"], 1, "num_entered"),
        (["requests", 0, "is_collided"], "no", "is_collided"),
        (["requests", 0, "tail"], 1, "tail"),
        (["requests", 0, "tail"], [0.5, 0, 0, 0], "tail"),
        (["requests", 0, "row"], 10**30, "row: got 10"),
        (["requests", 0, "request_id"], None, "request_id: got None"),
        (["counters", "evictions"], "x", "evictions: got 'x'"),
        (["counters", "evictions"], None, "evictions: got None"),
        (["counters", "evictions"], -1, "evictions: got -1"),
        (["counters"], {}, "counters: got"),
        (["options", "block_size"], 10**30, "block_size: got 10"),
        (["options", "prefix_caching"], 1, "prefix_caching: got 1"),
        (["options", "events"], "no", "events: got 'no'"),
    ],
)
def test_what_a_snapshot_is_refused_for_is_named(path, value, message):
    manager = KVCacheManager(10, 4, host_blocks=3)
    admit(manager, "a", range(10))
    manager.admit("c", manager.prompt([1, 2, 3, 4, 5]))
    manager.commit_prompt("c", 5)
    manager.swap_out("c")
    manager.take_copies()
    form = json.loads(json.dumps(manager.snapshot()))
    edited(path, value)(form)
    with pytest.raises(ValueError, match="snapshot: .*" + message):
        KVCacheManager.restore(form)


def test_a_host_block_is_one_requests():
    manager = KVCacheManager(10, 4, host_blocks=3)
    for name in ("a", "b"):
        manager.allocate_slots(name, 4)
        manager.swap_out(name)
    manager.take_copies()
    form = manager.snapshot()
    first, second = form["host"]["requests"]
    form["host"]["free"] += second["tables"][0]
    second["tables"] = first["tables"]
    with pytest.raises(ValueError, match="host blocks held more than once"):
        KVCacheManager.restore(form)


def test_no_snapshot_with_a_row_that_restore_makes_no_room_for(monkeypatch):
    monkeypatch.setattr(snapshot, "_MIN_ROWS", 6)
    manager = KVCacheManager(4, 4)
    manager.allocate_slots("a", 4)
    manager.fork("a", range(5))
    KVCacheManager.restore(manager.snapshot())
    assert manager.fork("a", [5]) == [6]
    with pytest.raises(ValueError, match=r"row: got 6, expected .* at most 5"):
        manager.snapshot()


def test_no_snapshot_with_work_under_way():
    manager = KVCacheManager(12, 4, events=True)
    admit(manager, "a", range(6))
    with pytest.raises(ValueError, match="copies or events are not taken"):
        manager.snapshot()
    (event,) = manager.take_events()
    assert isinstance(event, BlocksStored)
    step = manager.begin_step()
    with pytest.raises(ValueError, match="steps are in flight"):
        manager.snapshot()
    manager.end_step(step)
    manager.fork("a", ["b"])
    manager.append_slots("b")
    with pytest.raises(ValueError, match="copies or events"):
        manager.snapshot()
    manager.take_copies()
    manager.snapshot()
    manager.allocate_slots(("a", "tuple"), 1)
    with pytest.raises(ValueError, match="expected a string or an integer"):
        manager.snapshot()


def refusals(manager):
    manager.append_slots("drafts", 1, drafts=2)
    return [
        (lambda: manager.commit_prompt("a", 4), "num_tokens: got 4, expected from 6"),
        (lambda: manager.commit_prompt("a", 7), "expected from 6, which are computed, to 6"),
        (lambda: manager.commit_prompt("nameless", 1), "which came without token ids"),
        (lambda: manager.commit("nameless", [1]), "which came without token ids"),
        (lambda: manager.commit("a", [1]), "token_ids: got 1, expected at most 0"),
        (lambda: manager.commit("half", [1]), "of whose 6 prompt tokens 3 are committed"),
        (lambda: manager.commit_batch([manager.row("half")], [1]), "3 are committed"),
        (lambda: manager.fork("half", ["x"]), "with 3 of 6 tokens committed"),
        (lambda: manager.fork("drafts", ["x"]), r"and 2 draft\(s\)"),
        (lambda: manager.swap_out("drafts"), r"with 2 draft\(s\)"),
        (lambda: manager.append_batch([manager.row("half")], [1]), "expected all of them"),
        (lambda: manager.append_batch([manager.row("a")], [1, 2]), "token_ids: got 2, expected 1"),
        (lambda: manager.append_batch([manager.row("drafts")]), "with drafts"),
        (lambda: manager.append_batch([manager.row("a"), 4]), "got 4, which no request has"),
        (lambda: manager.append_batch([4], [1]), "got 4, which no request has"),
        (lambda: manager.commit_batch([4], [1]), "got 4, which no request has"),
        (lambda: manager.append_batch([-1]), "rows: got -1 to -1, expected rows that"),
        (lambda: manager.append_batch([0, 16]), "rows: got 0 to 16, expected rows that"),
        (lambda: manager.append_batch([0, 0]), "rows: got 0 more than once"),
        (lambda: manager.append_slots("a", 0), "num_tokens: got 0"),
        (lambda: manager.append_slots("a", 1, drafts=-1), "drafts: got -1"),
        (lambda: manager.admit("x", manager.prompt([1]), chunk=0), "chunk: got 0"),
        (lambda: manager.accept("a", 1), "num_drafts: got 1, expected at most 0"),
        (lambda: manager.free([1]), r"request_id: got \[1\], expected something hashable"),
        (lambda: manager.swap_in([1]), "request_id: got"),
        (lambda: manager.row([1]), "request_id: got"),
        (lambda: manager.allocate_slots([1], 1), "request_id: got"),
        (lambda: manager.fork("nameless", "xy"), "children: got 'xy'"),
        (lambda: manager.fork("nameless", 2), "children: got 2"),
        (lambda: manager.fork("nameless", [[1]]), r"children: got \[1\]"),
        (lambda: manager.prompt([5, True]), "token_ids: got True at index 1"),
        (lambda: manager.prompt([True, False]), "token_ids: got True at index 0"),
        (
            lambda: KVCacheManager(9, 4, groups=[{"kind": "full", "bogus": 1}]),
            "groups: got .*bogus",
        ),
        (lambda: KVCacheManager(9, 4, groups=5), "groups: got 5"),
        (lambda: manager.swap_in("a"), "expected one of the 0 request"),
        (lambda: manager.reset(), "reset: 4 request"),
    ]


def test_refusals_name_what_is_wrong_and_change_nothing():
    manager = KVCacheManager(30, 4, host_blocks=8)
    admit(manager, "a", range(6))
    admit(manager, "drafts", range(50, 56))
    manager.allocate_slots("nameless", 5)
    manager.admit("half", manager.prompt(range(70, 76)))
    manager.commit_prompt("half", 3)
    calls = refusals(manager)
    before = state(manager)
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
        assert state(manager) == before


def test_a_batch_gets_its_blocks_at_once_and_shared_ones_are_copied():
    """By hand: blocks of 2 tokens; the null block is 0."""
    manager = KVCacheManager(12, 2)
    for request in ("a", "b", "c"):
        admit(manager, request, [ord(request), 1])  # blocks 1, 2 and 3, all full
    rows = np.array([manager.row(request) for request in ("c", "a", "b")])
    changes = manager.append_batch(rows, np.array([7, 7, 7], np.int32))
    assert changes.rows.tolist() == rows.tolist()
    assert changes.groups.tolist() == [0, 0, 0]
    assert changes.columns.tolist() == [1, 1, 1]
    assert changes.blocks.tolist() == [4, 5, 6]
    assert [manager.block_ids(request) for request in "abc"] == [[1, 5], [2, 6], [3, 4]]
    assert len(manager.append_batch(rows, [8, 8, 8])) == 0
    manager.append_batch(rows, [9, 9, 9])  # blocks 7, 8 and 9
    manager.fork("a", ["d"])
    # b and c have room; a and d share the block that both write to next.
    rows = np.array([manager.row(request) for request in "abcd"])
    changes = manager.append_batch(rows, [1, 2, 3, 4])
    assert (changes.columns.tolist(), changes.blocks.tolist()) == ([2], [10])
    orders = manager.take_copies().on_device
    assert (orders.src.tolist(), orders.dst.tolist()) == ([8], [10])
    before = state(manager)
    with pytest.raises(OutOfBlocks, match="wanted 4 blocks, 1 available"):
        manager.append_batch(rows)
    assert state(manager) == before
    manager.check_integrity()


def test_a_return_takes_no_free_block_where_all_its_own_are_still_there():
    """They wait for a step in flight, and nobody else may have them."""
    manager = KVCacheManager(6, 4, host_blocks=8)
    step = manager.begin_step()
    admit(manager, "a", range(4))
    manager.swap_out("a")
    manager.take_copies()
    others = manager.allocate_slots("b", 16)
    assert manager.num_free_blocks == 0
    given = manager.swap_in("a")
    assert given.block_ids == ([1],)
    assert others == [2, 3, 4, 5]
    assert len(manager.take_copies()) == 0
    manager.end_step(step)
    manager.check_integrity()


def test_rows_are_used_again_and_more_are_made():
    manager = KVCacheManager(200, 4)
    rows = [manager.admit(number, manager.prompt([number])).row for number in range(40)]
    assert rows == list(range(40))
    manager.free(7)
    assert manager.admit("again", manager.prompt([1])).row == 7
    changes = manager.append_batch(np.array([], np.int64))
    assert len(changes) == 0
    manager.check_integrity()
