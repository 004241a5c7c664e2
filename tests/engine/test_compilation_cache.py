"""Programs on disk: found by the next process, and nobody's own setting is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged.engine.compilation_cache import default_folder

_COUNT = """
import json, sys
import jax
import jax.numpy as jnp
from paged.engine.compilation_cache import use_compilation_cache

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
jnp.zeros(3).block_until_ready()  # It may come late.
used = use_compilation_cache(*sys.argv[1:])
jax.jit(lambda x: x * 3 + 1)(jnp.arange(4)).block_until_ready()
print(json.dumps([str(used), sum(event.endswith("/cache_hits") for event in hits)]))
"""


def run(*arguments, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean, **environment},
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_the_folder_by_hand(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/paged/xla")
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_folder() == Path.home() / ".cache/paged/xla"


def test_the_next_process_finds_what_this_one_compiled(tmp_path):
    expected = str(tmp_path / "paged/xla")
    assert run(XDG_CACHE_HOME=str(tmp_path)) == [expected, 0]
    used, hits = run(XDG_CACHE_HOME=str(tmp_path))
    assert used == expected
    assert hits > 0


@pytest.mark.parametrize(
    ("setting", "used"),
    [
        ({"JAX_COMPILATION_CACHE_DIR": "{}/mine"}, "{}/mine"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "0"}, "None"),
    ],
)
def test_what_the_user_set_stays(tmp_path, setting, used):
    environment = {name: value.format(tmp_path) for name, value in setting.items()}
    assert run(str(tmp_path / "ours"), **environment) == [used.format(tmp_path), 0]
    assert not (tmp_path / "ours").exists()


def test_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert f"compilation cache: got '{file}', expected a folder that can be made" in run(str(file))
