"""Gemma 2, Gemma 3 and gpt-oss over paged caches against transformers, however a prompt is cut."""

from functools import partial

import numpy as np
import pytest

from paged.models import load_model
from tests.engine.paged_steps import LENGTHS, PLANS, paged_logits
from tests.models.checkpoints import HYBRIDS, save_tiny

TOLERANCE = 1e-4


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("architecture", HYBRIDS)
def test_logits_equal_those_of_transformers(architecture, plan, peers):
    folder, theirs = peers(architecture, partial(save_tiny, architecture))
    ours = paged_logits(load_model(folder), PLANS[plan])
    for row, length in enumerate(LENGTHS):
        assert theirs[row].std() > 0.5
        np.testing.assert_allclose(ours[row], theirs[row, :length], atol=TOLERANCE, rtol=0)
