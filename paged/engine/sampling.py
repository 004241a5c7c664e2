"""`SamplingParams`: how one request chooses its tokens and when it ends."""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_SEED = 2**64 - 1

# What float32 holds: the device divides by it.
_LARGEST = 3.4e38


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request chooses its tokens and when it ends.

    Filters apply in this order: temperature, top_k, top_p over what top_k left.

    Attributes:
        temperature: logits are divided by it; 0 takes the largest logit (greedy).
        top_k: only the k largest logits stay; 0 keeps all.
        top_p: of those, the fewest whose probabilities add up to p stay, always at least one.
        seed: makes the request's tokens repeatable, whatever runs beside it; None draws one.
        max_tokens: most tokens to generate.
        stop: strings that end the text; a single string is taken as one of them. The text ends
            before the string, the token that completed it is the last of the token ids.
        stop_token_ids: tokens that end the request besides the model's own end tokens. The token
            is the last of the token ids and no part of the text.
        ignore_eos: whether the model's own end tokens are tokens like others.
        n: samples of each prompt, which is computed and kept once for all. Sample i draws as a
            request of its own with seed + i would.
        best_of: samples that are drawn, of which the n best are given back, the best first: those
            whose tokens have the highest mean log-probability by the model itself, before
            temperature and filters. None draws n and gives them back in their order.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), Iterable):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected a sequence")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not _is_number(self.temperature) or not 0 <= self.temperature <= _LARGEST:
            raise ValueError(
                f"temperature: got {self.temperature!r}, expected a number from 0 to {_LARGEST:g}"
            )
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: got {self.top_p!r}, expected 0 < top_p <= 1")
        require_integer("top_k", self.top_k, 0, 2**31 - 1)
        require_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        require_integer("n", self.n, 1, 2**31 - 1)
        if self.best_of is not None:
            require_integer("best_of", self.best_of, self.n, 2**31 - 1)
        if self.num_samples > 1 and self.is_greedy:
            raise ValueError(
                f"{self.samples_field}: got {self.num_samples} with temperature 0, expected 1: all "
                "samples would be the same"
            )
        if self.seed is not None:
            require_integer("seed", self.seed, 0, MAX_SEED)
        for index, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise ValueError(
                    f"stop[{index}]: got {text!r}, expected a string that is not empty"
                )
        for index, token in enumerate(self.stop_token_ids):
            require_integer(f"stop_token_ids[{index}]", token, 0, 2**31 - 1)

    @property
    def num_samples(self) -> int:
        """Samples that are drawn."""
        return self.n if self.best_of is None else self.best_of

    @property
    def samples_field(self) -> str:
        """The field that says how many."""
        return "n" if self.best_of is None else "best_of"

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is taken, so that nothing is random."""
        return self.temperature == 0

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens are ruled out before one is drawn."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_integer(name: str, value: int, low: int, high: int) -> None:
    """Refuses what is no integer from `low` to `high`.

    Raises:
        ValueError: it names the argument, its value and the range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: got {value!r}, expected an integer from {low} to {high}")
