"""`paged lab` without a compiler: what is asked, what is refused, what is missing."""

import json

import pytest
from typer.testing import CliRunner

from paged.cli import app
from paged.lab import requirements
from paged.lab.asks import Sizes, asks, chosen_block_sizes, chosen_layouts
from paged.lab.baseline import Ask, Baseline, read_baseline, write_baseline
from paged.lab.lookup import find_backend


def run(*arguments):
    return CliRunner().invoke(app, ["lab", *map(str, arguments)])


def test_a_missing_compiler_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(requirements, "_found", lambda module: False)
    done = run("compile", "xla", "--target", "v6e", "--json")
    assert done.exit_code == 2
    assert done.stderr == "paged: target v6e needs libtpu: pip install libtpu\n"
    done = run("compare", "--target", "h100")
    assert done.exit_code == 2
    assert "pip install jax-cuda13-plugin jax-cuda13-pjrt" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compile", "xla", "--target", "v9"), "target: got 'v9'"),
        (("compile", "nope", "--target", "v6e"), "backend: got 'nope'"),
        (("compile", "xla", "--target", "v6e", "--layout", "nope"), "layout: got 'nope'"),
        (("compile", "xla", "--target", "v6e", "--block-size", "16,x"), "block_size: got 'x'"),
        (("baseline", "nowhere.json"), "baseline: no file nowhere.json, expected a baseline"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, arguments, words):
    monkeypatch.setattr(requirements, "_found", lambda module: True)
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_every_combination_is_asked():
    xla = find_backend("xla")
    assert [layout.name for layout in chosen_layouts(xla, "auto")] == ["flash_attn"]
    layouts = chosen_layouts(xla, "pallas, mla")
    wanted = asks(xla, layouts, chosen_block_sizes("16,64"), Sizes(num_seqs=2, kv_tokens=256))
    assert [(problem.layout.name, problem.block_size) for _, problem in wanted] == [
        ("pallas", 16),
        ("pallas", 64),
        ("mla", 16),
        ("mla", 64),
    ]
    assert wanted[2][1].spec.is_latent


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    ask = Ask("xla", "pallas", "v6e", 16, Sizes(num_seqs=4))
    baseline = Baseline({"libtpu": "0.0.52"}, "first", ((ask, {"spills": 3}),))
    write_baseline(tmp_path / "b.json", baseline)
    assert read_baseline(tmp_path / "b.json") == baseline
    (tmp_path / "b.json").write_text(json.dumps({"libtpu": "1"}))
    with pytest.raises(ValueError, match="is no baseline"):
        read_baseline(tmp_path / "b.json")
