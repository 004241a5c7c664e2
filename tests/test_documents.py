"""The commands that documents show are understood, and their links lead somewhere."""

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

import paged
from paged.cli import app

ROOT = Path(paged.__file__).parents[1]

if not (ROOT / "pyproject.toml").exists():
    pytest.skip("installed without its repository", allow_module_level=True)

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands_of(text):
    """Each command with whether it is whole: one in a sentence may leave arguments out."""
    for line, span in re.findall(r"^    (\S.*)$|`([^`\n]+(?:\n[^`\n]+)?)`", text, re.MULTILINE):
        command = " ".join((line or span).split())
        if re.match(r"paged [a-z]|python (-m )?benchmarks", command):
            yield shlex.split(command, comments=True), bool(line)


def shown(first):
    found = {}
    for document in DOCUMENTS:
        for words, is_whole in commands_of(document.read_text()):
            if words[0] == first:
                label = f"{document.stem}: {shlex.join(words)}"
                found[label] = (words[1:], is_whole or found.get(label, ((), False))[1])
    return [pytest.param(*each, id=label) for label, each in found.items()]


def parse(words):
    """The exit code of a command whose options are read and nothing else."""
    group = typer.main.get_command(app)
    leaves = [*group.commands.values()]
    while leaves:
        command = leaves.pop()
        leaves += getattr(command, "commands", {}).values()
        command.callback = lambda **_: None
    return group.main(list(words), standalone_mode=False)


@pytest.mark.parametrize(("words", "is_whole"), shown("paged"))
def test_a_command_is_understood(capsys, words, is_whole):
    code, told = parse(words), capsys.readouterr().err
    assert code == 0 or (not is_whole and "Missing" in told), told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "llama-2-7b"], "Missing option"),
        (["lab", "tun"], "No such command"),
        (["conform", "--to", "x"], "No such option"),
        (["replay", "x.csv", "--limit", "y"], "Invalid value"),
    ],
)
def test_another_is_not(capsys, words, message):
    assert parse(words) == 2
    assert message in capsys.readouterr().err


class _ParsedError(Exception):
    """Ends a benchmark when its options are read."""


@pytest.mark.parametrize(("words", "is_whole"), shown("python"))
def test_the_options_of_a_benchmark_are_understood(monkeypatch, words, is_whole):
    del is_whole
    if words[0] == "-m":
        words = words[1:]
    else:
        assert (ROOT / words[0]).is_file()
        words = [words[0].removesuffix(".py").replace("/", "."), *words[1:]]
    read = argparse.ArgumentParser.parse_args

    def parse_args(self):
        read(self)
        raise _ParsedError

    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    with pytest.raises(_ParsedError):
        importlib.import_module(words[0]).main()


def anchors(document):
    for heading in re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        yield kept.strip().replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target
