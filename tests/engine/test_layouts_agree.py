"""The same greedy tokens on every layout, block size and backend."""

import pytest

from paged.engine import LLM, SamplingParams
from paged.layouts import LAYOUTS

KV_LAYOUTS = [name for name, layout in LAYOUTS.items() if not layout.is_latent]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def expected(tiny_model, prompts):
    """Each prompt alone, in one piece, in one block: nothing paged about it."""
    llm = LLM(tiny_model, block_size=128, num_blocks=2, max_num_seqs=1)
    tokens = [llm.generate([prompt], PARAMS)[0].token_ids for prompt in prompts[::4]]
    # A model that says the same whatever it is told would prove little.
    assert len({tuple(own) for own in tokens}) == len(tokens)
    return tokens


@pytest.mark.parametrize("backend", ["xla", "reference"])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("layout", KV_LAYOUTS)
def test_greedy_tokens(layout, block_size, backend, tiny_model, prompts, expected):
    llm = LLM(
        tiny_model,
        layout=layout,
        backend=backend,
        block_size=block_size,
        num_blocks=-(-200 // block_size) + 8,
        max_num_seqs=4,
        # Chunks that end within blocks; five requests in four rows.
        max_num_batched_tokens=13,
    )
    assert {r.layout.name for r in llm.resolutions} == {layout}
    assert {r.backend.name for r in llm.resolutions} == {backend}
    assert [output.token_ids for output in llm.generate(prompts[::4], PARAMS)] == expected
