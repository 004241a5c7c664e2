"""DeepSeek over the paged latent cache: against transformers, and one form against the other."""

import numpy as np
import pytest

from paged.models import load_model
from tests.engine.paged_steps import LENGTHS, PLANS, TOKENS, paged_logits
from tests.models.deepseek import save_deepseek

TOLERANCE = 1e-4


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
    ours = paged_logits(load_model(folder), PLANS[plan], backend=backend, layout="mla")
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(ours[row], theirs[row, :length], atol=TOLERANCE, rtol=0)
