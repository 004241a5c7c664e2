"""Programs on disk: found by the next process, and nobody's own setting is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from paged.engine.compilation_cache import default_folder, use_compilation_cache

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
    assert f"compilation cache: got '{file}', expected a folder or URL" in run(str(file))


def test_a_url_is_no_local_path(tmp_path):
    """JAX opens it by etils, which names the package that it lacks for one."""
    code = (
        "import sys; from paged.engine.compilation_cache import use_compilation_cache as use\n"
        "sys.modules[sys.argv[2]] = None; use(sys.argv[1])"
    )
    for url, absent, why in (
        ("gs://bucket/xla", "gcsfs", "gcsfs"),
        ("gs://bucket/xla", "etils", "import of etils halted"),
        ("nothing://bucket/xla", "unused", "no kind of URL that etils opens"),
    ):
        told = subprocess.run(
            [sys.executable, "-c", code, url, absent],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=tmp_path,
        ).stderr.splitlines()[-1]
        assert told.startswith(f"ValueError: compilation cache: got '{url}', expected a folder")
        assert why in told
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_made_and_handed_to_jax(monkeypatch):
    """In place of a bucket, what notes that it is made."""
    made = []

    class Bucket:
        def __init__(self, url):
            self.url = url

        def mkdir(self, **how):
            made.append((self.url, how))

        def __str__(self):
            return self.url

    monkeypatch.setattr("etils.epath.Path", Bucket)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert use_compilation_cache("gs://bucket/xla") == "gs://bucket/xla"
        assert jax.config.jax_compilation_cache_dir == "gs://bucket/xla"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert made == [("gs://bucket/xla", {"parents": True, "exist_ok": True})]
