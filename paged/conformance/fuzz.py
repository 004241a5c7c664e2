"""Whole valid problems at random, shrunk to the smallest that fails. Needs `hypothesis`.

failure = paged.conformance.fuzz.fuzz(MyBackend(), examples=500).failure
assert failure is None, failure
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged.conformance.checks.attend import run
from paged.conformance.problem import Problem, build
from paged.conformance.setup import Setup
from paged.conformance.subject import Subject
from paged.conformance.verdict import Refused, Violation
from paged.layouts import LAYOUTS, Layout, get_layout

_COMPUTE = ("float32", "bfloat16", "float16")
_QUANTIZED = ("int8", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class Shapes:
    """What arrays may measure. A compiler works once for each combination.

    Attributes:
        kv_heads: numbers of KV heads.
        groups: query heads per KV head.
        head_dims: widths, multiples of 4 so that a latent has a rotary part.
        block_sizes: tokens per block.
        batches: pairs (S, T).
        table_width: B.
        num_blocks: kernel blocks in the pool, the null block included.
    """

    kv_heads: tuple[int, ...] = (1, 2, 3)
    groups: tuple[int, ...] = (1, 2, 5)
    head_dims: tuple[int, ...] = (8, 16, 64)
    block_sizes: tuple[int, ...] = (1, 5, 16)
    batches: tuple[tuple[int, int], ...] = ((1, 1), (4, 16), (8, 4), (8, 40))
    table_width: int = 12
    num_blocks: int = 41


ANY = Shapes()
"""Everything that is plausible."""

FEW = Shapes((2,), (2,), (16,), (16,), ((8, 32),))
"""One set of shapes, so that a compiler meets another program for another feature only."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem as it was drawn: words and a seed, from which `problem` makes the numbers."""

    setup: Setup
    layout: str | Layout
    dtype: str
    seed: int

    def problem(self) -> Problem:
        """The numbers, the same each time."""
        return build(self.setup, get_layout(self.layout), self.dtype, self.seed, "fuzz")


@dataclass(frozen=True, slots=True)
class Failure:
    """The smallest problem that was found to fail.

    Attributes:
        drawn: the problem; `fails(subject, drawn)` runs it again.
        reason: the rule and what was seen.
    """

    drawn: Drawn
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}\n{self.drawn}"


@dataclass(frozen=True, slots=True)
class FuzzReport:
    """What came of a run.

    Attributes:
        examples: problems that were tried, those of shrinking included.
        refused: how many of them the backend does not claim, and refused.
        failure: the smallest that failed; None where none did.
    """

    examples: int
    refused: int
    failure: Failure | None


def problems(
    layouts: Sequence[str | Layout] | None = None,
    dtypes: Sequence[str] = _COMPUTE,
    *,
    shapes: Shapes = ANY,
) -> Any:
    """A hypothesis strategy of `Drawn`: shapes, lengths, layouts, features and data.

    Everything shrinks towards the plainest: one short sequence, no feature, a pool of zeros.

    Args:
        layouts: to draw from; all of the project's by default.
        dtypes: of queries.
        shapes: what arrays may measure.
    """
    from hypothesis import strategies as st

    names = list(LAYOUTS if layouts is None else layouts)

    @st.composite
    def drawn(draw: Any) -> Drawn:
        def choice(*options: Any) -> Any:
            return draw(st.sampled_from(options))

        layout, dtype = choice(*names), choice(*dtypes)
        setup = _drawn_setup(draw, choice, shapes)
        return Drawn(setup, layout, dtype, draw(st.integers(0, 2**16)))

    return drawn()


def _drawn_setup(draw: Any, choice: Any, shapes: Shapes) -> Setup:
    block_size = choice(*shapes.block_sizes)
    ratio = choice(1, 1, 1, 2)
    num_seqs, num_tokens = choice(*shapes.batches)
    sequences = _drawn_sequences(draw, shapes, num_seqs, num_tokens, block_size, ratio)
    cache_dtype = choice(None, None, *_COMPUTE, *_QUANTIZED)
    is_quantized = cache_dtype in _QUANTIZED
    scales = (None, 0.5, 2.0, 0.037, (0.5, 0.0625, 0.3)) if is_quantized else (None,)
    data = ["normal", "same", "opposite", "both_signs"]
    if all(query_len for query_len, _ in sequences):
        data += ["rising", "falling"]
    if is_quantized:
        data.append("saturating")
    elif len(sequences) > 1:
        data.append("nan_neighbour")
    return Setup(
        sequences,
        num_kv_heads=choice(*shapes.kv_heads),
        group_size=choice(*shapes.groups),
        head_dim=choice(*shapes.head_dims),
        block_size=block_size,
        manager_ratio=ratio,
        num_blocks=shapes.num_blocks,
        num_seqs=num_seqs,
        num_tokens=num_tokens,
        table_width=shapes.table_width // ratio,
        sharpness=choice(1.3, 0.1, 8.0),
        window=choice(None, None, 1, 2, 7, 16, 40),
        soft_cap=choice(None, None, 2.0, 30.0),
        sinks=choice(None, None, "positive", "negative", "minus_inf", "mixed"),
        cache_dtype=cache_dtype,
        k_scale=choice(*scales),
        v_scale=choice(*scales),
        data=choice(*data),
        poison=choice("zero", "nan", "nan_keys", "nan_values", "inf", "garbage"),
        placement=choice("identity", "permuted", "permuted"),
        slots=choice("new", "new", "none", "half"),
        past=choice("nan", "null"),
        strided=choice(False, False, True),
    )


def _drawn_sequences(
    draw: Any, shapes: Shapes, num_seqs: int, num_tokens: int, block_size: int, ratio: int
) -> tuple[tuple[int, int], ...]:
    """(query_len, seq_len) of each, in the contract's order, as many as there is room for."""
    from hypothesis import strategies as st

    longest = shapes.table_width // ratio * ratio * block_size
    pair = st.tuples(st.integers(0, num_tokens), st.integers(0, longest))
    tokens, blocks, sequences = num_tokens, shapes.num_blocks // ratio - 1, []
    for query_len, history in draw(st.lists(pair, min_size=1, max_size=num_seqs)):
        query_len = min(query_len, tokens, longest)
        seq_len = min(query_len + history, longest, blocks * block_size * ratio)
        query_len = min(query_len, seq_len)
        tokens -= query_len
        blocks -= -(-seq_len // (block_size * ratio))
        sequences.append((query_len, seq_len))

    def kind(sequence: tuple[int, int]) -> int:
        query_len, seq_len = sequence
        return 0 if query_len == 1 else 1 if query_len == seq_len else 2

    return tuple(sorted(sequences, key=kind))


def fails(subject: Subject, drawn: Drawn) -> None:
    """One write and one attend of a drawn problem, held to the oracle.

    Raises:
        Violation: the backend is wrong.
        Refused: the backend does not claim it.
    """
    problem = drawn.problem()
    subject.require_claim(problem)
    run(subject, problem, "2")


def fuzz(
    backend: Any,
    examples: int = 100,
    seed: int = 0,
    *,
    layouts: Sequence[str | Layout] | None = None,
    dtypes: Sequence[str] = _COMPUTE,
    shapes: Shapes = ANY,
    compiler_options: dict[str, Any] | None = None,
) -> FuzzReport:
    """Tries a backend on random problems, and shrinks the first that fails.

    Args:
        backend: anything with the `paged.Backend` protocol, or a `Subject` around it.
        examples: how many problems, shrinking not counted.
        seed: the same seed draws the same problems.
        layouts: by default those that the backend claims.
        dtypes: of queries.
        shapes: what arrays may measure.
        compiler_options: for `jax.jit`.
    """
    import hypothesis

    subject = backend
    if not isinstance(backend, Subject):
        subject = Subject(backend, compiler_options=compiler_options, explains=False)
    chosen = subject.backend.layouts if layouts is None else layouts
    tried, refused, smallest = 0, 0, None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    @hypothesis.given(problems(chosen, dtypes, shapes=shapes))
    def search(drawn: Drawn) -> None:
        nonlocal tried, refused, smallest
        tried += 1
        try:
            fails(subject, drawn)
        except Refused:
            refused += 1
        except Violation as violation:
            # The last to get here is the smallest: hypothesis runs it once more at the end.
            smallest = Failure(drawn, str(violation))
            raise

    with contextlib.suppress(Violation):
        search()
    return FuzzReport(tried, refused, smallest)
