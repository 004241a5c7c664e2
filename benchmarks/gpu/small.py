"""A split decode, a prefill and a write on three layouts: what the memory checker watches.

python -m benchmarks.gpu.small [--dry]
"""

import sys
from dataclasses import replace

from benchmarks.gpu.problems import pool_of, problem_of
from benchmarks.gpu.right import LIMIT, attend_error, write_error
from benchmarks.gpu.shapes import DEEPSEEK, LLAMA_8B, Comparison, Ours


def main() -> int:
    from paged.backends.triton.on_torch import TritonBackend

    dry = "--dry" in sys.argv
    backend = TritonBackend(interpret=dry)
    worst = 0.0
    for heads, ours in ((LLAMA_8B, Ours()), (LLAMA_8B, Ours("packed")), (DEEPSEEK, Ours("mla"))):
        # 1,500 tokens: several parts, the last block and the last step not full.
        decode = Comparison("decode", 2, 1500, heads, ours=(ours,))
        if dry:
            decode = replace(decode.shrunk(), length=70)
        pool = pool_of(decode, "cpu" if dry else "cuda")
        problem = problem_of(decode, ours, pool, query_len=5)
        new = (problem.key, problem.value, problem.metadata.slot_mapping)
        backend.write(problem.cache, *new)
        errors = {"write": write_error(problem)}
        found = backend.attend(problem.query, problem.cache, problem.metadata, problem.spec)
        errors["prefill"] = attend_error(problem, found.out)
        problem = problem_of(decode, ours, pool)
        found = backend.attend(problem.query, problem.cache, problem.metadata, problem.spec)
        errors["decode"] = attend_error(problem, found.out)
        print(ours.layout, errors)
        worst = max(worst, *errors.values())
    print("small: right" if worst <= LIMIT else "small: wrong")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
