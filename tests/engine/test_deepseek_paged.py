"""DeepSeek over the paged latent cache: against transformers, and one form against the other."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from paged import KVCache, KVCacheSpec, MetadataBuilder, resolve
from paged.blocks import BlockTable
from paged.models import load_model
from paged.models.paged_attention import PagedAttention
from tests.models.deepseek import save_deepseek

TOLERANCE = 1e-4
BLOCK_SIZE = 4
TOKENS = np.arange(46).reshape(2, 23) * 7 % 99
LENGTHS = (23, 18)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder and logits of the peer, by variant; each is built once."""
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    built = {}

    def get(variant):
        if variant not in built:
            folder = tmp_path_factory.mktemp(variant)
            peer = save_deepseek(folder, variant)
            with torch.no_grad():
                built[variant] = folder, peer(torch.tensor(TOKENS)).logits.numpy()
        return built[variant]

    return get


def paged_logits(model, plan, *, backend="xla", layout="mla"):
    """Logits of all tokens of both sequences, by steps of (tokens of the first, of the second)."""
    spec = model.attention_specs[0]
    resolutions = [resolve(spec, backend=backend, layout=layout)] * len(model.attention_specs)
    cache_spec = KVCacheSpec.of(spec, block_size=BLOCK_SIZE)
    caches = [KVCache.allocate(cache_spec, layout, 14) for _ in resolutions]
    table = BlockTable(2, 6, BLOCK_SIZE, device_put=np.asarray)
    table.add_row(0, range(13, 7, -1))
    table.add_row(1, range(7, 2, -1))
    builder = MetadataBuilder(BLOCK_SIZE)

    @nnx.jit
    def forward(model, tokens, positions, caches, metadata):
        attention = PagedAttention(resolutions, caches, metadata)
        return model.logits(model(tokens, positions, attention)), attention.caches

    logits = [[], []]
    done = np.zeros(2, np.int64)
    for counts in plan:
        requests = [(row, count) for row, count in enumerate(counts) if count]
        step = builder.build(requests, block_table=table.host, num_computed=done)
        rows, positions = step.token_rows, step.positions
        tokens = np.where(rows < 0, 0, TOKENS[rows, positions])
        metadata = replace(step.metadata, max_seq_len=24).map(jnp.asarray)
        scores, caches = forward(model, tokens, positions, caches, metadata)
        for row, count in requests:
            logits[row].append(np.asarray(scores)[rows == row])
            done[row] += count
    assert tuple(done) == LENGTHS
    return [np.concatenate(parts) for parts in logits]


PLANS = {
    "in one go": [LENGTHS],
    "in chunks of 5": [(5, 5)] * 3 + [(5, 3), (3, 0)],
    "token by token": [(1, 1)] * 18 + [(1, 0)] * 5,
    # A decode, a prefill without history and later one with: each step has both forms.
    "mixed": [(9, 0), (1, 10), (1, 8), (12, 0)],
}


@pytest.mark.parametrize(
    ("variant", "plan", "backend"),
    [
        *(("v3", plan, "xla") for plan in PLANS),
        ("v2-lite", "mixed", "reference"),
        *(
            pytest.param(variant, plan, backend, marks=pytest.mark.full)
            for variant, backend in (("v2", "xla"), ("v2-lite", "xla"), ("v3", "reference"))
            for plan in PLANS
        ),
    ],
)
def test_logits_equal_those_of_transformers(variant, plan, backend, saved):
    folder, theirs = saved(variant)
    ours = paged_logits(load_model(folder), PLANS[plan], backend=backend)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(ours[row], theirs[row, :length], atol=TOLERANCE, rtol=0)
