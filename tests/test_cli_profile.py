"""`paged profile`, and the options about compiling."""

import shutil

import pytest
from flax import nnx

from paged.cli.profile import Profile, _show
from paged.engine.phases import PHASES, StepProfile
from paged.models import ModelConfig, Transformer, resolve_model, save_model
from tests.test_cli import run, run_json

SMALL = ("--requests", 2, "--prompt-tokens", 4, "--max-tokens", 4)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    plot = tmp_path_factory.mktemp("plot") / "step.svg"
    return run_json("profile", "tiny-mla", *SMALL, "--plot", plot), plot


def test_it_accounts_for_a_step(found):
    report, _ = found
    assert (report["backend"], report["layout"], report["dtype"]) != ("", "", "")
    prefill, decode = sorted(report["steps"], key=lambda step: step["kind"], reverse=True)
    assert (prefill["kind"], prefill["steps"]) == ("prefill", 1)
    assert (decode["kind"], decode["steps"]) == ("decode", 3)
    for step in report["steps"]:
        phases = step["phases"].values()
        assert sum(own["ms_per_step"] for own in phases) == pytest.approx(step["ms_per_step"])
        assert sum(own["share"] for own in phases) == pytest.approx(1)
    assert decode["phases"]["program"]["ms_per_step"] > 0
    assert report["decode_ms_ahead"] > 0
    assert 0 <= report["outside_program"] < 1
    assert sum(report["program_parts"].values()) == pytest.approx(1)


def test_its_picture_names_the_phases(found):
    _, plot = found
    text = plot.read_text()
    assert text.startswith("<?xml")
    for name in ("schedule", "metadata", "program: attention", "decode"):
        assert f"<!-- {name} -->" in text


def test_its_table_by_hand(capsys):
    phases = dict.fromkeys(PHASES, (0.0, 0)) | {
        "dispatch": (0.0008, 2),
        "program": (0.006, 2),
        "other": (0.0012, 2),
    }
    decode = StepProfile("decode", 2, 0.008, phases)
    _show(Profile({"decode": decode}, 4.0, {"attention": 0.25, "model": 0.75}), "a title")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a title"
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["program"] == ["3.000", "75.0", "2"]
    assert rows["all"] == ["4.000", "100.0", "2"]
    assert lines[-3:] == [
        "The program of a decode step: attention 25 %, model 75 %.",
        "With the host one step ahead a decode step takes 4.000 ms,",
        "15 % of it outside dispatch and program.",
    ]


def test_generate_may_compile_everything_first(tmp_path):
    config = ModelConfig(
        vocab_size=2048,
        hidden_size=16,
        intermediate_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=16,
    )
    save_model(Transformer(config, rngs=nnx.Rngs(0)), tmp_path)
    shutil.copy(resolve_model("tiny-gqa") / "tokenizer.json", tmp_path)
    asked = ("generate", tmp_path, "--prompt", "a", "--max-tokens", 2, "--temperature", 0)
    stats = run_json(*asked, "--warm-up")["stats"]
    # A decode, a chunk, and copies on the device.
    assert stats["compiled_shapes"] == 3
    # As many rows as samples are drawn.
    drawn = run_json(*asked[:-1], 1, "--best-of", 2, "--warm-up")
    assert len(drawn["outputs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--requests", 0), "requests: got 0, expected at least 1"),
        (("--max-tokens", 2), "max-tokens: got 2, expected at least 3"),
        (("--prompt-tokens", -3), "prompt-tokens: got -3, expected at least 1"),
        (("--prompt-tokens", 511), "got 511 and 32, expected at most 512 in all, the model's"),
        (("--plot", "/nowhere/step.svg"), "plot: got /nowhere/step.svg, expected a file in a fol"),
        (("--plot", "step.txt"), "plot: got 'step.txt', expected a name in .svg, .png, .pdf"),
        (("--compilation-cache", __file__), "compilation cache: got '"),
    ],
)
def test_refusals(arguments, message):
    assert message in run("profile", "tiny-gqa", *arguments, code=2).stderr
