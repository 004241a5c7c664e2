"""`paged replay`: the table, the JSON, the picture, and what it refuses."""

import json
import sys

import pytest
from replay_traces import mooncake_line, trace, write_azure, write_mooncake
from typer.testing import CliRunner

from paged.capacity import plan
from paged.cli import app
from paged.replay import KINDS, POLICIES, Setting, compare, default_pool, longest


def replay(*arguments, code=0, width=200):
    result = CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["replay", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_every_policy_and_block_size_is_a_line(tmp_path):
    shown = replay(write_azure(tmp_path / "trace.csv")).stdout.splitlines()
    # 504 slots are the longest request's: a buddy heap makes 512 of them.
    assert shown[0] == "trace.csv: 3 requests, 2,048 slots"
    assert shown[1].split()[:4] == ["policy", "of", "taken", "used"]
    labels = ["max", "pow2", "oracle", *(f"paged {size}" for size in (1, 4, 8, 16, 32, 64, 128))]
    assert [line[: len("paged 128")].strip() for line in shown[2:]] == labels
    assert shown[5].split()[2] == "100.0", "blocks of one token waste nothing"


def test_no_line_is_wider_than_the_terminal(tmp_path):
    shown = replay(write_azure(tmp_path / "trace.csv"), width=80).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert sum(line.startswith("paged 128 ") for line in shown) == 2


def test_json_has_the_setting_and_the_course_of_each_run(tmp_path):
    file = write_mooncake(tmp_path / "trace.jsonl")
    arguments = (file, "--policy", "oracle,paged", "--block-size", "512", "--max-len", "2000")
    arguments += ("--pool", "1GiB", "--model", "llama-2-7b", "--heap", "first-fit", "--json")
    found = json.loads(replay(*arguments).stdout)
    assert found["setting"]["pool_slots"] == plan("llama-2-7b", "1GiB").num_tokens == 2048
    assert found["setting"]["max_len"] == 2000
    oracle, paged = found["runs"]
    assert oracle["internal"] == 0
    assert (paged["policy"], paged["block_size"]) == ("paged", 512)
    # The second turn finds the first one's only full block.
    assert paged["hit_rate"] == 512 / (600 + 1100 + 10)
    assert set(paged["series"]["shares"]) == set(KINDS)
    assert len(paged["series"]["seconds"]) == len(paged["series"]["batch"]) == 200
    assert paged["series"]["seconds"][-1] == pytest.approx(paged["seconds"])
    assert json.loads(replay(*arguments).stdout) == found, "two runs give the same figures"


def test_a_picture_is_the_same_file_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    file = write_azure(tmp_path / "trace.csv")
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for picture in pictures:
        replay(file, "--block-size", "16,128", "--plot", picture)
    text = pictures[0].read_text()
    assert text == pictures[1].read_text()
    for words in (
        "trace.csv: 3 requests",
        "paged 128",
        "holds a token",
        "external waste",
        "oracle",
    ):
        assert words in text


def test_a_picture_without_matplotlib_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = (tmp_path / "there is none", "--plot", tmp_path / "one.svg")
    assert "a plot needs matplotlib: pip install" in replay(*arguments, code=2).stderr
    assert not (tmp_path / "one.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "policy: got 'best', expected some of max, pow2, oracle, paged"),
        (("--block-size", "16,x"), "block_size: got 'x', expected numbers of at least 1"),
        (("--block-size", "0"), "block_size: got '0', expected numbers of at least 1"),
        (("--heap", "best-fit"), "heap: got 'best-fit', expected one of buddy, first-fit"),
        (("--pool", "1"), "memory: got 1 bytes, expected at least two blocks"),
        (("--model", "llama-2-7b"), "model: got 'llama-2-7b' without --pool, expected both"),
        (("--target", "tpu"), "target: got 'tpu' without --pool, expected both"),
        (("--max-len", "503"), "max_len: got 503, expected at least 504: request 2 of trace.csv"),
        (("--pool", "60MiB"), "pool: got 480 slots, too few for request 1 of trace.csv: policy ma"),
        (("--limit", "0"), "limit: got 0, expected at least 1"),
        (("--step-ns", "0"), "step_ns: got 0, expected an integer from 1 to 1000000000"),
        (("--max-requests", "0"), "max_requests: got 0, expected at least 1"),
        (("--plot", "picture.gif"), "plot: got 'picture.gif', expected a name in .svg, .png, .pdf"),
    ],
)
def test_what_is_refused(tmp_path, arguments, message):
    file = write_azure(tmp_path / "trace.csv")
    told = replay(file, *arguments, code=2).stderr
    assert message in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("name", "why"), [("none.csv", "No such file"), ("", "Is a directory")])
def test_a_trace_that_cannot_be_read(tmp_path, name, why):
    told = replay(tmp_path / name, code=2).stderr
    wanted = f"file: got '{tmp_path / name}', expected a trace that can be read: {why}"
    assert told.startswith(f"paged: {wanted}")


def test_a_trace_too_small_for_the_default_pool_is_what_is_blamed(tmp_path):
    file = tmp_path / "tiny.jsonl"
    file.write_text(mooncake_line(0, 9, 3, [1]) + "\n")
    told = replay(file, code=2).stderr
    assert "trace: got requests of at most 11 slots, which make a pool of 64 by default" in told
    assert "expected at least two blocks of 128: give a pool, or smaller blocks" in told
    assert "tiny.jsonl: 1 requests, 64 slots" in replay(file, "--block-size", "32").stdout
    assert "64 slots" in replay(file, "--policy", "oracle").stdout
    assert replay(file, "--pool", "1GiB").stdout.splitlines()[-1].startswith("paged 128")


def test_a_pool_that_one_policy_cannot_use_is_refused_before_any_runs():
    made = trace([(9, 1)])
    setting = Setting(pool_slots=15, max_len=longest(made))
    with pytest.raises(ValueError, match="policy max needs 16 slots side by side"):
        compare(made, setting, ("paged", "max"), (2,))


@pytest.mark.parametrize("max_len", [1, 2, 3, 1000])
def test_the_default_pool_serves_everything(max_len):
    made = trace([(max_len, 1)])
    setting = Setting(pool_slots=default_pool(max_len) + 1, max_len=longest(made))
    runs = list(compare(made, setting, POLICIES, (1, 2)))
    assert [run.label for run in runs] == ["max", "pow2", "oracle", "paged 1", "paged 2"]
    assert all(run.max_batch == 1 for run in runs)
