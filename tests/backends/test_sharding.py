"""Heads shared out over devices: on eight of the CPU's, and compiled for four of a TPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from paged import AttentionSpec
from paged.backends import HeadSharded, load_backend
from paged.lab import TARGETS, Problem
from paged.lab.requirements import missing
from paged.layouts import PACKED, TPU_PACKED

COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|reduce-scatter|collective")
TARGET = TARGETS["v6e"]
needs_libtpu = pytest.mark.skipif(
    bool(missing(TARGET)), reason="libtpu is not installed: pip install libtpu"
)


def test_on_eight_devices():
    """JAX takes the number of devices when it starts: a process of its own."""
    file = Path(__file__).with_name("sharding_on_devices.py")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    # An outer pytest's options and workers are not this one's.
    outer = {name for name in os.environ if name.startswith("PYTEST")}
    kept = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env={**kept, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)


@needs_libtpu
@pytest.mark.parametrize(("name", "layout"), [("xla", PACKED), ("pallas_tpu", TPU_PACKED)])
def test_compiled_for_four_chips(name, layout, monkeypatch):
    """No chip waits for another, and none copies its part of the cache."""
    # The compiler asks for no hardware, and shares the host with others.
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    topology = topologies.get_topology_desc(TARGET.topology, platform="tpu")
    mesh = Mesh(np.array(topology.devices), ("heads",))
    assert mesh.size == 4
    backend = HeadSharded(load_backend(name), mesh, "heads")
    spec = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=0.1)
    problem = Problem(spec, layout, block_size=16, num_seqs=8, kv_tokens=1024)

    def placed(arrays, split):
        place = NamedSharding(mesh, split)
        return jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place), arrays
        )

    query, cache, metadata, _ = problem.attend_arguments()
    _, key, value, slots = problem.write_arguments()
    query, key, value = placed((query, key, value), P(None, "heads"))
    cache = placed(cache, backend.cache_sharding(layout).spec)
    slots, metadata = placed((slots, metadata), P())

    def attend(query, cache, metadata):
        return backend.attend(query, cache, metadata, spec)

    write = jax.jit(backend.write, donate_argnums=0).lower(cache, key, value, slots).compile()
    arguments = (query, cache, metadata)
    split = jax.jit(attend).lower(*arguments).compile()
    whole = jax.jit(attend, out_shardings=NamedSharding(mesh, P())).lower(*arguments).compile()

    assert not COLLECTIVE.search(write.as_text())
    assert not COLLECTIVE.search(split.as_text())
    assert COLLECTIVE.search(whole.as_text()), "what is looked for is found where it is"
    part = cache.data.size * 2 // 4
    assert write.memory_analysis().alias_size_in_bytes == part
    for compiled in (write, split):
        memory = compiled.memory_analysis()
        assert part < memory.argument_size_in_bytes < 1.1 * part
        assert memory.temp_size_in_bytes < 0.1 * part
