"""How far logits are from those of transformers, for every class that can be loaded.

    python -m benchmarks.parity
    python -m benchmarks.parity --json

From the root of the repository, with torch and transformers. For each class a random tiny
checkpoint that transformers wrote, as the tests build it: two layers, windows of 5 or 7 where there
are any, two sequences of 23 and 18 tokens, fp32, eager attention there. The largest error over all
logits, without a cache and over the paged one in steps of four kinds.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from paged.models import load_model
from tests.engine.paged_steps import LENGTHS, PLANS, TOKENS, paged_logits
from tests.models.checkpoints import ARCHITECTURES, HYBRIDS, dense_logits, save_tiny
from tests.models.deepseek import VARIANTS, save_deepseek


def errors(save: Callable[[str], Any]) -> dict[str, float]:
    """By way of running it, the largest difference from the peer that `save` writes."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        peer = save(folder)
        with torch.no_grad():
            theirs = peer(torch.tensor(TOKENS)).logits.numpy()
        model = load_model(folder)
    ours = {"dense": [dense_logits(model, row) for row in TOKENS]}
    ours |= {name: paged_logits(model, plan) for name, plan in PLANS.items()}
    return {
        name: max(
            float(np.abs(own[:length] - their[:length]).max())
            for own, their, length in zip(found, theirs, LENGTHS, strict=True)
        )
        for name, found in ours.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: errors(partial(save_tiny, name)) for name in (*ARCHITECTURES, *HYBRIDS)}
    found |= {
        f"DeepSeek {variant}": errors(
            lambda folder, variant=variant: save_deepseek(folder, variant)
        )
        for variant in VARIANTS
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    table = Table("model", "dense", *PLANS, title="largest logit error, fp32")
    for name, own in found.items():
        table.add_row(name, *(f"{error:.1e}" for error in own.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
