"""How long a step takes: a stated linear model, so that all policies are served by one machine.

Memory is what is compared here. Time only decides how long requests hold theirs, and how many
wait; it is in whole nanoseconds, so that a run gives the same figures everywhere.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True, slots=True)
class StepTime:
    """Nanoseconds of a step: of each step, of each prompt token computed, of each token read.

    The defaults are Llama 3 8B in bf16 on one A100 80GB: 16.1 GB of weights and 131,072 bytes of
    K/V a token at 2,039 GB/s, and 2 x 8.03e9 FLOP a token at half of 312 TFLOP/s (vendor's data
    sheet). Attention among a prompt's own tokens is not in it.

    Attributes:
        step_ns: of every step: the weights are read once.
        prompt_token_ns: of each prompt token that is computed; decoded tokens come with the step.
        read_token_ns: of each token of K/V that a request of the step reads.

    Raises:
        ValueError: not integers from 0, or from 1 for a step, to a second, or a millisecond for a
            token.
    """

    step_ns: int = 7_900_000
    prompt_token_ns: int = 103_000
    read_token_ns: int = 64

    def __post_init__(self) -> None:
        for name, least, most in (
            ("step_ns", 1, 10**9),
            ("prompt_token_ns", 0, 10**6),
            ("read_token_ns", 0, 10**6),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(
                    f"{name}: got {value!r}, expected an integer from {least} to {most}"
                )

    def steps(
        self, *, num_requests: int, num_read: int, num_computed: int, steps: int
    ) -> Int64[np.ndarray, " steps"]:
        """Nanoseconds of each of some steps in a row.

        Args:
            num_requests: that run, and read a token more in each step than in the one before.
            num_read: tokens that all of them read in the first step.
            num_computed: prompt tokens of the first step; 0 where there are more steps.
            steps: how many.
        """
        read = num_read + num_requests * np.arange(steps, dtype=np.int64)
        return self.step_ns + self.prompt_token_ns * num_computed + self.read_token_ns * read
