"""Gemma 2, Gemma 3 and gpt-oss over paged caches against transformers, however a prompt is cut."""

import numpy as np
import pytest

from paged.models import load_model
from tests.engine.paged_steps import LENGTHS, PLANS, TOKENS, paged_logits
from tests.models.checkpoints import HYBRIDS, save_tiny

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder and logits of the peer, by class; each is built once."""
    torch = pytest.importorskip("torch", reason="the peer is a PyTorch model")
    built = {}

    def get(architecture):
        if architecture not in built:
            folder = tmp_path_factory.mktemp(architecture)
            peer = save_tiny(architecture, folder)
            with torch.no_grad():
                built[architecture] = folder, peer(torch.tensor(TOKENS)).logits.numpy()
        return built[architecture]

    return get


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("architecture", HYBRIDS)
def test_logits_equal_those_of_transformers(architecture, plan, saved):
    folder, theirs = saved(architecture)
    ours = paged_logits(load_model(folder), PLANS[plan])
    for row, length in enumerate(LENGTHS):
        assert theirs[row].std() > 0.5
        np.testing.assert_allclose(ours[row], theirs[row, :length], atol=TOLERANCE, rtol=0)
