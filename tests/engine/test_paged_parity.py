"""Logits over the paged cache against transformers, however the prompt is cut into steps."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged import KVCache, KVCacheSpec, MetadataBuilder, resolve
from paged.blocks import BlockTable
from paged.engine import LLM, SamplingParams
from paged.models import Transformer, load_model
from paged.models.paged_attention import PagedAttention
from tests.models.checkpoints import ARCHITECTURES, save_tiny

TOLERANCE = 1e-4
BLOCK_SIZE = 4
# Two sequences side by side; the second is one block and a token shorter.
TOKENS = np.arange(46).reshape(2, 23) * 7 % 99
LENGTHS = (23, 18)
CUTS = {"in one go": 23, "in chunks of 5": 5, "token by token": 1}


def paged_logits(model: Transformer, chunk: int) -> list[np.ndarray]:
    """Logits of all tokens of both sequences, `chunk` tokens of each a step.

    Blocks are handed out in falling order, so that none lies behind the one before it.
    """
    resolutions = [resolve(spec) for spec in model.attention_specs]
    caches = [
        KVCache.allocate(KVCacheSpec.of(r.spec, block_size=BLOCK_SIZE), r.layout, 14)
        for r in resolutions
    ]
    table = BlockTable(2, 6, BLOCK_SIZE, device_put=np.asarray)
    table.add_row(0, range(13, 7, -1))
    table.add_row(1, range(7, 2, -1))
    builder = MetadataBuilder(BLOCK_SIZE)
    logits: list[list[np.ndarray]] = [[], []]
    done = np.zeros(2, np.int64)
    while (done < LENGTHS).any():
        counts = [min(chunk, LENGTHS[row] - done[row]) for row in range(2)]
        requests = [(row, int(counts[row])) for row in range(2) if counts[row]]
        step = builder.build(requests, block_table=table.host, num_computed=done)
        rows, positions = step.token_rows, step.positions
        tokens = jnp.asarray(np.where(rows < 0, 0, TOKENS[rows, positions]))
        attention = PagedAttention(resolutions, caches, step.metadata.map(jnp.asarray))
        hidden = model(tokens, jnp.asarray(positions), attention)
        caches = attention.caches
        scores = np.asarray(model.logits(hidden))
        for row, count in requests:
            logits[row].append(scores[rows == row])
            done[row] += count
    return [np.concatenate(parts) for parts in logits]


def check(peer, folder, chunk):
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    ours = paged_logits(load_model(folder), chunk)
    with torch.no_grad():
        theirs = peer(torch.tensor(TOKENS)).logits.numpy()
    for row, length in enumerate(LENGTHS):
        assert theirs[row].std() > 0.5
        np.testing.assert_allclose(ours[row], theirs[row, :length], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunk", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_those_of_transformers(architecture, chunk, tmp_path):
    check(save_tiny(architecture, tmp_path), tmp_path, chunk)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (8, 2), (7, 1), (14, 2)])
def test_groups_of_1_4_and_7_and_one_kv_head(heads, kv_heads, tmp_path):
    overrides = {
        "hidden_size": 8 * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    check(save_tiny("LlamaForCausalLM", tmp_path, **overrides), tmp_path, 5)


def test_sharded_files(tmp_path):
    peer = save_tiny("LlamaForCausalLM", tmp_path, max_shard_size=20_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check(peer, tmp_path, 5)


def test_greedy_tokens_equal_those_of_generate(tmp_path):
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    peer = save_tiny("LlamaForCausalLM", tmp_path)
    llm = LLM(tmp_path, num_blocks=40, max_num_batched_tokens=7)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for row, output in enumerate(llm.generate(TOKENS.tolist(), params)):
        ids = torch.tensor(TOKENS[row : row + 1])
        theirs = peer.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=16,
            max_new_tokens=16, pad_token_id=0,
        )  # fmt: skip
        assert output.token_ids == theirs[0, TOKENS.shape[1] :].tolist()
