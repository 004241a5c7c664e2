"""What the manager has done, and how full it is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paged.blocks import checks


@dataclass(slots=True)
class Counters:
    """What has happened since the manager was made.

    Attributes:
        prompt_tokens: tokens of all prompts admitted with their ids.
        hit_tokens: those of them that were cached.
        evictions: cached blocks that were reused.
        write_copies: blocks copied because they were shared when written to.
        partial_copies: blocks copied for their first tokens.
        blocks_swapped_out: blocks copied to the host.
        blocks_swapped_in: blocks copied from the host.
        window_releases: blocks given back because no query reads them any more.
    """

    prompt_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    write_copies: int = 0
    partial_copies: int = 0
    blocks_swapped_out: int = 0
    blocks_swapped_in: int = 0
    window_releases: int = 0

    def as_json(self) -> dict[str, int]:
        """By name."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "Counters":
        """From what `as_json` made.

        Raises:
            ValueError: other names, or a value that is no count.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(form, Mapping) or set(form) != set(names):
            raise ValueError(f"counters: got {form!r}, expected {', '.join(names)}")
        return cls(**{name: checks.integer(name, form[name], at_least=0) for name in names})


@dataclass(frozen=True, slots=True)
class Gauges:
    """How things stand now. Slots are counted over all groups, a shared block's once.

    Attributes:
        requests: requests on the device.
        swapped_requests: requests on the host.
        blocks: blocks of the pool without the null block.
        used_blocks: those that requests hold.
        waiting_blocks: those that only a step in flight may still read.
        cached_blocks: those whose contents can be found, in use or not.
        used_slots: slots of tokens.
        reserved_slots: slots held for tokens that are drafts, or known and not computed.
        internal_slots: slots after the last token of the last block of a request.
        external_slots: slots that no request holds and none could get: those of waiting blocks.
    """

    requests: int
    swapped_requests: int
    blocks: int
    used_blocks: int
    waiting_blocks: int
    cached_blocks: int
    used_slots: int
    reserved_slots: int
    internal_slots: int
    external_slots: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and gauges, taken at one moment.

    Attributes:
        counters: what has happened.
        gauges: how things stand.
    """

    counters: Counters
    gauges: Gauges

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that was cached; 0 before the first."""
        counters = self.counters
        return counters.hit_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the pool's blocks that requests hold."""
        return self.gauges.used_blocks / self.gauges.blocks

    def as_dict(self) -> dict[str, float]:
        """All of it, for JSON."""
        rates = {"hit_rate": self.hit_rate, "utilisation": self.utilisation}
        return {**asdict(self.counters), **asdict(self.gauges), **rates}

    def prometheus(self, prefix: str = "paged_blocks") -> str:
        """All of it in the text format that Prometheus reads."""
        totals = {field.name for field in fields(Counters)}
        lines = []
        for name, value in self.as_dict().items():
            metric = f"{prefix}_{name}_total" if name in totals else f"{prefix}_{name}"
            kind = "counter" if name in totals else "gauge"
            lines += [
                f"# TYPE {metric} {kind}",
                f"{metric} {value:g}" if kind == "gauge" else f"{metric} {value}",
            ]
        return "\n".join(lines) + "\n"
