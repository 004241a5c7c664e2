"""An inference engine over the paged cache: requests, scheduler, runner, sampler, `LLM`."""

from paged.engine.engine import Engine
from paged.engine.llm import LLM, Prompt
from paged.engine.outputs import Increment, RequestOutput
from paged.engine.runner import Runner
from paged.engine.sampling import SamplingParams
from paged.engine.scheduler import Scheduler
from paged.engine.stats import EngineStats

__all__ = [
    "LLM",
    "Engine",
    "EngineStats",
    "Increment",
    "Prompt",
    "RequestOutput",
    "Runner",
    "SamplingParams",
    "Scheduler",
]
