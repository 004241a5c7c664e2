"""A step's inputs: what is packed is what the compiled step unpacks."""

import jax
import jax.numpy as jnp
import numpy as np

from paged.blocks import BlockTable
from paged.engine import SamplingParams
from paged.engine.inputs import pack, resolve_tokens, samplers, unpack
from paged.engine.request import Request
from paged.engine.scheduler import Scheduled
from paged.metadata import MetadataBuilder


def example(params):
    """A prompt's second chunk in row 0, and in row 2 a decode whose token the host lacks."""
    table = BlockTable(4, 8, 2, device_put=np.asarray)
    table.add_row(0, [3, 1, 4])
    table.add_row(2, [5, 9])
    chunk = Request(0, [10, 11, 12, 13, 14, 15], params, seed=2**32 + 5, max_output_tokens=9)
    decode = Request(1, [20, 21], params, seed=6, max_output_tokens=9, num_in_flight=1)
    step = [Scheduled(chunk, 0, 2, 3, False, 0), Scheduled(decode, 2, 2, 1, True, 1)]
    return pack(step, builder=MetadataBuilder(2), block_table=table.host)


def test_a_mixed_step_by_hand():
    shape, packed, ordered = example(SamplingParams(temperature=0))
    assert (shape.is_decode, shape.mode) == (False, "greedy")
    assert [part.row for part in ordered] == [2, 0]
    inputs = jax.jit(unpack, static_argnums=(0, 2))(shape, packed, 2)
    assert inputs.tokens[:4].tolist() == [-3, 12, 13, 14]
    assert inputs.positions[:4].tolist() == [2, 2, 3, 4]
    assert inputs.last_tokens[:2].tolist() == [0, 3]
    # Row 2 keeps its token; the chunk and the padding name a row past the end.
    assert inputs.rows[:3].tolist() == [2, 4, 4]
    assert inputs.sampling is None
    metadata = inputs.metadata
    assert metadata.slot_mapping[:5].tolist() == [18, 2, 3, 8, -1]
    assert metadata.seq_lens[:3].tolist() == [3, 5, 0]
    assert metadata.distribution.tolist() == [1, 1, 2]
    metadata.map(np.asarray).validate(block_size=2, num_blocks=10)


def test_the_device_fills_in_what_it_sampled_last():
    sampled = jnp.asarray([70, 71, 72, 73])
    assert resolve_tokens(jnp.asarray([-3, 12, 0, -1]), sampled).tolist() == [72, 12, 0, 70]


def test_sampling_parameters_travel_bit_by_bit():
    params = SamplingParams(temperature=0.3, top_p=0.9, top_k=7)
    shape, packed, _ = example(params)
    assert shape.mode == "filtered"
    sampling = unpack(shape, jnp.asarray(packed), 2).sampling
    assert sampling is not None
    assert np.array_equal(sampling.temperature[:2], np.float32([0.3, 0.3]))
    assert np.array_equal(sampling.top_p[:3], np.float32([0.9, 0.9, 1]))
    assert sampling.top_k[:3].tolist() == [7, 7, 0]
    assert sampling.seed[:2].tolist() == [[0, 6], [1, 5]]
    assert sampling.output_index[:2].tolist() == [1, 0]


def test_forks_draw_from_the_row_that_ends_their_prompt():
    table = BlockTable(4, 8, 2, device_put=np.asarray)
    table.add_row(0, [3, 1])
    table.add_row(1, [5])
    params = SamplingParams(temperature=0.5)
    first, other = (Request(n, [10, 11, 12], params, 6 + n, max_output_tokens=9) for n in (0, 2))
    other.row = 3
    decode = Request(1, [20], params, seed=9, max_output_tokens=9, output_token_ids=[21])
    step = [Scheduled(first, 0, 0, 3, True, 0, (other,)), Scheduled(decode, 1, 1, 1, True, 1)]
    shape, packed, ordered = pack(step, builder=MetadataBuilder(2), block_table=table.host)
    # The decode's row, the prompt's, and once more the prompt's.
    assert samplers(ordered) == [decode, first, other]
    assert shape.num_samples == shape.num_seqs == 8
    inputs = jax.jit(unpack, static_argnums=(0, 2))(shape, packed, 2)
    assert inputs.logit_rows is not None
    assert inputs.logit_rows[:4].tolist() == [0, 1, 1, 0]
    assert inputs.rows[:4].tolist() == [1, 0, 3, 4]
    assert inputs.sampling.seed[:4, 1].tolist() == [9, 6, 8, 0]
    assert inputs.sampling.output_index[:3].tolist() == [1, 0, 0]
    # Without forks nothing of this is part of the step.
    alone, _, _ = pack(step[1:], builder=MetadataBuilder(2), block_table=table.host)
    assert alone.num_samples is None
    assert "logit_rows" not in alone.fields
