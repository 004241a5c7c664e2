"""What an engine has done so far."""

from dataclasses import asdict, dataclass
from typing import Any

from paged.blocks import Stats


@dataclass(slots=True)
class EngineStats:
    """Counts and times since the engine was made.

    Times are of steps, from the end of the one before to the end of this one, without compilation.
    A step that mixes decodes with pieces of prompts counts as prefill.

    Attributes:
        prompt_tokens: tokens of all prompts that were accepted.
        output_tokens: tokens generated.
        steps: steps read back.
        decode_steps: those in which every request had one token.
        computed_tokens: tokens run through the model, recomputed ones included.
        prefill_seconds: time in steps with pieces of prompts.
        decode_seconds: time in steps that were all decodes.
        preemptions: times that a request lost its blocks.
        swaps: how many of these moved them to the host.
        compile_seconds: time spent to compile.
        compiled_shapes: programs compiled.
        peak_blocks: most blocks that requests held at once, before a step.
        blocks: the block manager's; None before it was asked.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    decode_steps: int = 0
    computed_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0
    swaps: int = 0
    compile_seconds: float = 0.0
    compiled_shapes: int = 0
    peak_blocks: int = 0
    blocks: Stats | None = None

    @property
    def output_tokens_per_second(self) -> float:
        """Generated tokens per second of all steps; 0 before the first."""
        seconds = self.prefill_seconds + self.decode_seconds
        return self.output_tokens / seconds if seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            **asdict(self),
            "output_tokens_per_second": self.output_tokens_per_second,
            "blocks": self.blocks.as_dict() if self.blocks else {},
        }
