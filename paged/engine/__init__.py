"""An inference engine over the paged cache: requests, scheduler, runner, sampler, `LLM`."""

from paged.engine.beams import Hypothesis
from paged.engine.engine import Engine
from paged.engine.llm import LLM
from paged.engine.outputs import Completion, Increment, RequestOutput
from paged.engine.prompts import Prompt
from paged.engine.runner import Runner
from paged.engine.sampling import SamplingParams
from paged.engine.scheduler import Scheduler
from paged.engine.stats import EngineStats

__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "EngineStats",
    "Hypothesis",
    "Increment",
    "Prompt",
    "RequestOutput",
    "Runner",
    "SamplingParams",
    "Scheduler",
]
