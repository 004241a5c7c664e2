"""The command line: forms that scripts rely on, and errors of one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import paged
from paged.capacity import plan
from paged.cli import app
from paged.layouts import LAYOUTS

OURS = ["pallas_tpu", "triton_jax", "triton", "cpu", "xla", "reference"]
COMMANDS = ("generate", "plan", "backends", "layouts", "demo")


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def run_process(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from paged.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a random model and a tokenizer of bytes."""
    import tokenizers
    from flax import nnx
    from tokenizers import decoders, models, pre_tokenizers

    from paged.models import ModelConfig, Transformer, save_model

    config = ModelConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    model = Transformer(config, rngs=nnx.Rngs(3))
    model.embedding.weight[...] = model.embedding.weight[...] * 50
    path = tmp_path_factory.mktemp("model")
    save_model(model, path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_plan_as_json():
    asked = ("--memory", "50GiB", "--dtype", "float16", "--block-size", "16", "--tp", "1")
    found = run_json("plan", "llama-2-13b", *asked)
    expected = {
        "bytes_per_token": 819_200,
        "bytes_per_block_per_layer": 327_680,
        "bytes_per_block": 13_107_200,
        "num_blocks": 4_096,
        "num_tokens": 65_536,
        "layout": "flash_attn",
    }
    assert expected.items() <= found.items()


def test_plan_takes_a_layout_a_target_and_a_length_of_requests():
    found = run_json(
        *("plan", "llama-3-70b", "--memory", "6GiB", "--dtype", "float16", "--tp", "2"),
        *("--layout", "pallas", "--target", "tpu", "--requests-of", "1056"),
    )
    assert (found["layout"], found["target"]) == ("pallas", "tpu")
    assert (found["blocks_per_request"], found["num_requests"]) == (66, 37)


def test_plan_takes_a_folder_and_a_file(folder):
    expected = plan(folder, "1MiB").bytes_per_token
    for source in (folder, folder / "config.json"):
        assert run_json("plan", source, "--memory", "1MiB")["bytes_per_token"] == expected


def test_plan_for_a_person():
    shown = run("plan", "llama-2-13b", "--memory", "50GiB").stdout
    assert "bytes_per_token" in shown
    assert "819,200" in shown


def test_plan_of_several_models_side_by_side():
    names = ("llama-2-13b", "llama-3-70b", "deepseek-v3", "gemma-3-27b")
    found = run_json("plan", *names, "--memory", "50GiB", "--requests-of", "1000")
    assert [own["model"] for own in found] == list(names)
    kept = [
        (own["attention"], own["values_per_token_per_layer"], own["bytes_per_token_per_layer"])
        for own in found
    ]
    assert kept == [
        ("MHA", 10_240, 20_480), ("GQA", 2_048, 4_096), ("MLA", 576, 1_152), ("GQA", 4_096, 8_192)
    ]  # fmt: skip
    assert (found[3]["num_window_layers"], found[3]["window"]) == (52, 1024)
    shown = run("plan", *names, "--memory", "50GiB").stdout
    assert all(text in shown for text in (*names, "10,240", "576", "MLA", "MHA"))


def test_layouts_of_several_models_side_by_side():
    names = ("llama-2-13b", "llama-3-70b", "deepseek-v3")
    found = run_json("layouts", *names)
    assert list(found) == list(names)
    pages = {name: {row["name"]: row["bytes_per_token"] for row in found[name]} for name in names}
    assert [pages[name]["pallas"] for name in names] == [20_480, 4_096, None]
    assert [pages[name]["mla"] for name in names] == [None, None, 1_152]
    shown = run("layouts", *names).stdout
    assert all(text in shown for text in (*names, "(20,480)", "(4,096)", "(1,152)"))


def test_backends():
    rows = run_json("backends")
    assert [row["name"] for row in rows[:6]] == OURS
    assert rows[0]["reasons"] == ["runs on tpu, not on cpu"]
    for row in rows:
        assert set(row) == {"name", "platform", "usable", "reasons", "layouts"}
        assert row["usable"] == (not row["reasons"])
    assert all(set(row["layouts"]) == set(LAYOUTS) for row in rows[3:6])
    assert all(row["usable"] for row in rows[4:6])


def test_backends_for_another_platform():
    rows = {row["name"]: row for row in run_json("backends", "--target", "tpu")}
    assert rows["xla"]["usable"]
    assert rows["reference"]["reasons"] == ["runs on cpu, not on tpu"]
    assert "runs on cpu" in run("backends", "--target", "tpu").stdout


def test_backends_that_cannot_be_loaded_have_a_reason(monkeypatch):
    from paged.backends import load_backend, registry

    load_backend.cache_clear()
    listed = {"gone": "no_such_package:Backend", "wrong": "json:dumps", "typo": "json:dump_"}
    monkeypatch.setattr(registry, "_BUILTIN", listed)
    rows = {row["name"]: row for row in run_json("backends")}
    load_backend.cache_clear()
    assert not any(rows[name]["usable"] for name in listed)
    assert rows["gone"]["reasons"] == ["needs no_such_package, which is not installed"]
    assert "is no backend" in rows["wrong"]["reasons"][0]
    assert "json has no 'dump_'" in rows["typo"]["reasons"][0]


def test_layouts_of_a_model(folder):
    rows = {row["name"]: row for row in run_json("layouts", folder, "--num-blocks", "10")}
    assert set(rows) == set(LAYOUTS)
    assert rows["pallas"]["pattern"] == "block slot (head kv) dim"
    assert rows["pallas"]["shape"] == [10, 16, 4, 8]
    assert rows["pallas"]["page_bytes"] == 16 * 2 * 2 * 8 * 4
    assert (rows["mla"]["shape"], rows["mla"]["page_bytes"]) == (None, None)
    assert "holds one latent per token" in rows["mla"]["reason"]


def test_layouts_of_a_preset_and_of_none():
    rows = {row["name"]: row for row in run_json("layouts", "deepseek-v3", "--target", "tpu")}
    assert rows["mla"]["page_bytes"] == 16 * 640 * 2
    assert rows["packed"]["page_bytes"] is None
    assert all(
        {"name", "pattern", "shape", "page_bytes"} <= set(row) for row in run_json("layouts")
    )
    assert "cannot hold this" in run("layouts").stdout


def test_generate_as_json(folder):
    found = run_json(
        *("generate", folder, "--prompt", "ab", "--prompt", "xyz", "--max-tokens", "6"),
        *("--temperature", "0", "--layout", "pallas", "--backend", "xla"),
        *("--block-size", "4", "--num-blocks", "9"),
    )
    assert [output["prompt"] for output in found["outputs"]] == ["ab", "xyz"]
    for output in found["outputs"]:
        assert set(output) == {"prompt", "text", "token_ids", "finish_reason"}
        assert len(output["token_ids"]) == 6
        assert output["finish_reason"] == "length"
    assert found["stats"]["output_tokens"] == 12
    assert (found["stats"]["layout"], found["stats"]["backend"]) == ("pallas", "xla")


def test_generate_as_a_stream(folder):
    asked = ("generate", folder, "--prompt", "ab", "--max-tokens", "6", "--temperature", "0")
    (whole,) = run_json(*asked)["outputs"]
    lines = run(*asked, "--stream", "--json").stdout.splitlines()
    *increments, last = [json.loads(line) for line in lines]
    assert "".join(increment["text"] for increment in increments) == whole["text"]
    tokens = [token for increment in increments for token in increment["token_ids"]]
    assert tokens == whole["token_ids"]
    assert last["stats"]["output_tokens"] == 6
    streamed = run(*asked, "--stream")
    assert streamed.stdout == f"ab{whole['text']}\n"
    assert "6 tokens" in streamed.stderr


def test_an_output_that_the_models_length_cut_is_told(folder):
    """Of 64 tokens the prompts have 62 and 2: 2 and 62 are left."""
    long, greedy = "a" * 62, ("--temperature", "0")
    cut = "cut before --max-tokens 5: prompt and output have the model's 64 tokens]"
    asked = ("generate", folder, "--prompt", long, *greedy)
    both = run(*asked, "--prompt", "ab", "--max-tokens", "5").stderr.splitlines()
    assert both[0] == f"[1 of 2 outputs {cut}"
    streamed = run(*asked, "--stream", "--max-tokens", "5").stderr.splitlines()
    assert streamed[0] == f"[1 of 1 outputs {cut}"
    assert "cut before" not in run(*asked, "--max-tokens", "2").stderr


def test_sampling_is_repeatable_with_a_seed(folder):
    asked = ("generate", folder, "--prompt", "ab", "--max-tokens", "6", "--temperature", "1.5")
    options = ("--top-k", "50", "--top-p", "0.9", "--seed", "7")
    first, again = (run_json(*asked, *options)["outputs"] for _ in range(2))
    assert first == again


def test_samples_and_beams(folder):
    options = ("--max-tokens", "4", "--block-size", "4")
    asked = ("generate", folder, "--prompt", "abcde", *options)
    found = run_json(*asked, "--n", "3", "--seed", "1")
    (output,) = found["outputs"]
    assert [len(sample["token_ids"]) for sample in output["samples"]] == [4, 4, 4]
    assert output["token_ids"] == output["samples"][0]["token_ids"]
    # Eight tokens have slots at the end, two blocks; three samples share the first.
    assert found["stats"]["peak_blocks"] == 1 + 3
    assert found["stats"]["blocks"]["write_copies"] == 2
    best = run_json(*asked, "--n", "2", "--best-of", "3", "--seed", "1")["outputs"][0]["samples"]
    assert len(best) == 2
    assert all(sample in output["samples"] for sample in best)
    shown = run(*asked, "--beam-width", "2")
    assert shown.stdout.count("abcde") == 2
    assert "blocks" in shown.stderr
    result = run(*asked, "--beam-width", "2", "--n", "3", "--seed", "1", code=2)
    assert result.stderr == "paged: beam-width: got 2 beside --n, --seed, expected it alone\n"
    for also in ((), ("--n", "2"), ("--n", "2", "--json")):
        told = run(*asked, "--best-of", "3", "--stream", *also, code=2).stderr
        assert "stream: got it beside --best-of 3, expected one of the two" in told


def test_demo(folder):
    found = run_json("demo", folder, "--max-tokens", "3")
    assert found["same_tokens"] is True
    assert len(found["texts"]) == 3
    combinations = {(row["layout"], row["backend"]) for row in found["rows"]}
    layouts = [layout.name for layout in LAYOUTS.values() if not layout.is_latent]
    ours = {(layout, backend) for layout in layouts for backend in ("xla", "reference")}
    assert ours <= combinations
    assert all(row["same_tokens"] and row["seconds_per_token"] > 0 for row in found["rows"])


def test_demo_fails_where_rows_differ(monkeypatch):
    from paged.cli import demo

    rows = [
        demo.Row("pallas", "xla", 0.001, 1.0, same_tokens=True),
        demo.Row("packed", "xla", 0.002, 1.0, same_tokens=False),
    ]
    monkeypatch.setattr(demo, "compare", lambda model, max_tokens: (["a text"], rows))
    shown = run("demo", code=1).stdout
    assert "a text" in shown
    assert "1 of 2 rows differ" in shown
    assert run_json("demo", code=1)["same_tokens"] is False


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_json(command):
    shown = run(command, "--help").stdout
    assert f"Example:\n    paged {command}" in shown
    assert "--json" in shown


def test_help_says_where_usable_backends_are_listed():
    for command in ("generate", "profile"):
        shown = " ".join(run(command, "--help").stdout.split())
        assert "`paged backends` says which run here" in shown


def test_the_command_alone_shows_help_and_version():
    shown = run().stdout
    assert all(command in shown for command in COMMANDS)
    shown = run("lab").stdout
    assert shown == run("lab", "--help").stdout
    assert "\n  compile " in shown
    assert run("--version").stdout == f"paged {paged.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "llama-9", "--memory", "1GiB"), "model: got 'llama-9', expected a config.json"),
        (("plan", "llama-2-7b"), "Missing option '--memory'"),
        (("plan", "llama-2-7b", "--memory", "much"), "memory: got 'much', expected bytes as"),
        (("plan", "llama-2-7b", "--memory", "1GiB", "--tp", "3"), "tp: got 3, expected a divisor"),
        (("plan", "llama-2-7b", "--memory", "1GiB", "--tp", "x"), "Invalid value for '--tp'"),
        (("layouts", "--target", "gpu"), "target: got 'gpu', expected one of cpu, cuda"),
        (("layouts", "--num-blocks", "1"), "num_blocks: got 1, expected at least 2"),
        (("backends", "--target", "gpu"), "target: got 'gpu', expected one of cpu, cuda"),
        (("backends", "--colour"), "No such option: --colour"),
        (("frobnicate",), "No such command 'frobnicate'"),
        (("generate",), "prompt: got none, expected --prompt TEXT"),
        (("generate", "nothing-here", "--prompt", "a"), "model: got 'nothing-here', expected"),
        (("generate", "--prompt", "a", "--temperature", "-1"), "temperature: got -1.0"),
        (
            ("generate", "--prompt", "a", "--dtype", "nosuch"),
            "dtype: got 'nosuch', expected one of",
        ),
        (("generate", "--prompt", "a", "--dtype", "int8"), "dtype: got 'int8', expected one of"),
        (
            ("generate", "--prompt", "a\udc80"),
            "prompts[0]: text[1]: got the lone surrogate '\\udc80', expected",
        ),
        (("demo", "nothing-here"), "model: got 'nothing-here', expected"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_one_line_and_code_2(arguments, message, as_json):
    result = run(*arguments, *(("--json",) if as_json else ()), code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"paged: {message}")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("plan", "llama3-8b", "--memory", "1GiB"), "llama-3-8b"),
        (("layouts", "tiny-mlla"), "tiny-mla"),
        (("plan", "llama-3-8b", "--memory", "1GiB", "--layout", "flash-attn"), "flash_attn"),
        (("generate", "tiny-gqq", "--prompt", "a"), "tiny-gqa"),
        (("conform", "tritn"), "triton"),
    ],
)
def test_a_name_that_is_nearly_right_is_offered(arguments, meant):
    assert run(*arguments, code=2).stderr.endswith(f"; did you mean {meant}?\n")


def test_a_stream_for_a_person_is_of_one_prompt():
    result = run("generate", "--prompt", "a", "--prompt", "b", "--stream", code=2)
    assert result.stderr == "paged: stream: got 2 prompts, expected one (or --json)\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "nhd"), "layout: got 'nhd', expected one of flash_attn"),
        (("--layout", "mla"), "backend: none serves layout mla on cpu"),
        (("--backend", "cuda"), "backend: got 'cuda', expected one of pallas_tpu"),
        (("--num-blocks", "1"), "num_blocks: got 1, expected an integer of at least 2"),
    ],
)
def test_what_the_engine_refuses_is_one_line_too(folder, options, message):
    result = run("generate", folder, "--prompt", "a", *options, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"paged: {message}")


def test_a_file_that_cannot_be_opened_is_named_without_a_number(folder, monkeypatch):
    def refuse(file, **_):
        raise PermissionError(13, "Permission denied", str(file))

    # Mode bits do not stop root.
    monkeypatch.setattr(Path, "read_text", refuse)
    told = run("generate", folder, "--prompt", "a", code=2).stderr
    file = folder / "config.json"
    assert told == f"paged: {file}: Permission denied, expected a file that can be opened\n"
    told = run("plan", folder, "--memory", "1GiB", code=2).stderr
    expected = "expected a config.json that can be read: Permission denied"
    assert told == f"paged: model: got '{folder}', {expected}\n"


@pytest.mark.parametrize("position", ["before", "after"])
def test_debug_shows_the_traceback(position):
    arguments = ["plan", "llama-9", "--memory", "1GiB"]
    arguments.insert(0 if position == "before" else len(arguments), "--debug")
    lines = run(*arguments, code=2).stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("paged: model: got 'llama-9'")


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    from paged import capacity

    monkeypatch.setattr(capacity, "plan", lambda *_, **__: {}["missing"])
    with pytest.raises(KeyError):
        run("plan", "llama-2-7b", "--memory", "1GiB")


def test_a_real_process_prints_json_alone():
    done = run_process("layouts", "llama-3-8b", "--json")
    assert done.returncode == 0
    assert [row["name"] for row in json.loads(done.stdout)] == list(LAYOUTS)


def test_a_real_process_fails_in_one_line():
    done = run_process("plan", "llama-9", "--memory", "1GiB")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_real_process_generates(folder):
    done = run_process("generate", folder, "--prompt", "ab", "--max-tokens", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["outputs"][0]["token_ids"]) == 2


def test_the_latent_model_that_ships_is_planned_by_its_name():
    found = run_json("plan", "tiny-mla", "--memory", "10MB")
    assert found["layout"] == "mla"
    # Three layers of 32 + 16 numbers in bfloat16.
    assert found["bytes_per_token"] == 3 * (32 + 16) * 2


def test_the_package_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "paged", "--help"], capture_output=True, text=True, check=True
    )
    assert "conform" in done.stdout
