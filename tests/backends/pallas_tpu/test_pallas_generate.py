"""A real model over the TPU kernels, interpreted: the same tokens as through `xla`."""

from paged.backends.pallas_tpu import PallasTpuBackend
from paged.engine import LLM, SamplingParams

PROMPTS = ["First Citizen:\nWe", "ROMEO:"]


def tokens(backend):
    llm = LLM(
        "tiny-gqa",
        backend=backend,
        layout="tpu_packed",
        num_blocks=16,
        max_num_seqs=2,
        max_model_len=64,
    )
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=4))
    return [output.token_ids for output in outputs]


def test_a_model_generates_the_same_tokens():
    expected = tokens("xla")
    assert all(len(each) == 4 for each in expected)
    assert tokens(PallasTpuBackend(interpret=True)) == expected
