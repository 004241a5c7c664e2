"""Small traces for the tests, in memory and in the two published forms."""

import json

import numpy as np

from paged.replay import StepTime, Trace

TICK = StepTime(step_ns=1, prompt_token_ns=0, read_token_ns=0)
"""A clock whose steps all take one nanosecond."""


def trace(requests, hash_ids=None, arrivals=None):
    """From (prompt, output) of each request, all at once unless said otherwise."""
    prompts, outputs = np.array(requests, np.int64).T.copy()
    came = np.zeros(len(requests), np.int64) if arrivals is None else np.array(arrivals, np.int64)
    ids = None if hash_ids is None else tuple(np.array(each, np.int32) for each in hash_ids)
    return Trace("made.jsonl", came, prompts, outputs, ids)


def mooncake_line(timestamp, prompt, output, hash_ids):
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": hash_ids,
        }
    )


def write_mooncake(path):
    """Three turns: the second goes on from the first, the third is another's."""
    lines = [
        mooncake_line(0, 600, 3, [7, 9]),
        mooncake_line(40, 1100, 5, [7, 11, 12]),
        mooncake_line(40, 10, 1, [3]),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_azure(path):
    """As published: dates with seven decimals, lines that end in CR LF, and no end at the last."""
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:46.6805901,396,109",
        "2023-11-16 18:16:00.0000000,9,1",
    ]
    path.write_bytes("\r\n".join(lines).encode())
    return path
