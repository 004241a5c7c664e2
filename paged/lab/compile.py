"""Compiles a backend's calls for a device that need not be there. A failure is told, not raised.

The call is lowered with the topology's sharding under an abstract mesh, so that a kernel that asks
which hardware it runs on gets the target's answer, and then goes through the target's own
compiler: unaligned blocks, unsupported layouts and memory that does not suffice end here.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, SingleDeviceSharding

from paged.backends import Backend, UnsupportedError
from paged.backends.loops import LoopTrips
from paged.backends.tuned import Candidates
from paged.lab.cuda import CudaTarget
from paged.lab.problem import Problem
from paged.lab.requirements import require
from paged.lab.targets import Target

Call = Literal["attend", "write"]
Status = Literal["compiled", "refused", "failed"]

# Mosaic's own errors are none of these; where they matter the compiler has a process of its own.
_COMPILE_ERRORS = (
    jax.errors.JaxRuntimeError,
    NotImplementedError,
    ValueError,
    TypeError,
    AssertionError,
    RuntimeError,
)
_MAX_REASON = 600


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of one compilation.

    Attributes:
        status: "compiled"; "refused" by the backend itself, as it should be for what it does not
            claim; or "failed", by the compiler.
        reason: why not, in one line; "" where it compiled.
        seconds: lowering and compilation.
        argument_bytes: HBM of the arguments.
        output_bytes: HBM of the results.
        alias_bytes: HBM of results that take an argument's place.
        temp_bytes: HBM beside them.
        code_bytes: the program.
        trips: the backend's word on how often its loops run on this target.
    """

    status: Status
    reason: str = ""
    seconds: float = 0.0
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    code_bytes: int | None = None
    trips: tuple[LoopTrips, ...] = ()


def target_device(target: Target) -> Any:
    """One device of a topology that has the target's hardware.

    The compiler keeps warnings about the missing hardware on stderr.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    require(target)
    if isinstance(target, CudaTarget):
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        topology = topologies.get_topology_desc(
            "", platform="cuda", target_config=target.config(), topology="1x1x1"
        )
    else:
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        # Several processes may compile at once: none of them opens a device.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        topology = topologies.get_topology_desc(target.topology, platform="tpu")
    return topology.devices[0]


def refusals(backend: Backend, problem: Problem, target: Target) -> list[str]:
    """Why the backend does not claim to serve this, before anything is compiled."""
    reasons = problem.layout.refusals(problem.cache_spec)
    return reasons + backend.unsupported(
        problem.spec,
        problem.layout,
        target.platform,
        cache_spec=problem.cache_spec,
        query_dtype=problem.query_dtype,
    )


def compile_call(backend: Backend, problem: Problem, target: Target, call: Call) -> Compiled:
    """Compiles one call in this process.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    if reasons := refusals(backend, problem, target):
        return Compiled("refused", reason="; ".join(dict.fromkeys(reasons)))
    device = target_device(target)
    function, arguments, donated = _traced(backend, problem, call, SingleDeviceSharding(device))
    start = time.perf_counter()
    try:
        with jax.sharding.use_abstract_mesh(_abstract_mesh(device, target)):
            done = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
            trips = trip_rules(backend, problem) if call == "attend" else ()
    except UnsupportedError as error:
        return Compiled("refused", reason=one_line(str(error)))
    except _COMPILE_ERRORS as error:
        return Compiled("failed", reason=one_line(f"{type(error).__name__}: {error}"))
    seconds = time.perf_counter() - start
    memory = done.memory_analysis()
    return Compiled(
        "compiled",
        seconds=seconds,
        argument_bytes=getattr(memory, "argument_size_in_bytes", None),
        output_bytes=getattr(memory, "output_size_in_bytes", None),
        alias_bytes=getattr(memory, "alias_size_in_bytes", None),
        temp_bytes=getattr(memory, "temp_size_in_bytes", None),
        code_bytes=getattr(memory, "generated_code_size_in_bytes", None),
        trips=trips,
    )


def trip_rules(backend: Backend, problem: Problem) -> tuple[LoopTrips, ...]:
    """What the backend tells about its loops; nothing from one without the hook."""
    hook = getattr(backend, "lab_trips", None)
    if hook is None:
        return ()
    query, cache, metadata, _ = problem.attend_arguments()
    return tuple(hook(query, cache, metadata, problem.spec))


def find_candidates(backend: Backend, problem: Problem, target: Target) -> Candidates:
    """The backend's sizes to choose among on this target, which needs no compiler.

    Raises:
        ValueError: the backend has no such choice.
    """
    hook = getattr(backend, "lab_candidates", None)
    if hook is None:
        raise ValueError(
            f"backend: {backend.name} has no lab_candidates, expected a backend that offers sizes "
            "to choose among; see paged.backends.tuned"
        )
    query, cache, metadata, _ = problem.attend_arguments()
    # Of a target's devices only the kind matters here: figures are of one core.
    with jax.sharding.use_abstract_mesh(_abstract_mesh(target, target)):
        return hook(query, cache, metadata, problem.spec)


def one_line(text: str) -> str:
    """A compiler's message on one line, cut where it becomes a listing."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _MAX_REASON else joined[: _MAX_REASON - 3] + "..."


def _traced(
    backend: Backend, problem: Problem, call: Call, sharding: SingleDeviceSharding
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
    """The function to compile, its arguments, and which of them it may overwrite."""
    if call == "write":
        return backend.write, problem.write_arguments(sharding), (0,)

    def attend(query: Any, cache: Any, metadata: Any, sinks: Any) -> Any:
        return backend.attend(query, cache, metadata, problem.spec, sinks=sinks)

    return attend, problem.attend_arguments(sharding), ()


def _abstract_mesh(device: Any, target: Target) -> AbstractMesh:
    described = AbstractDevice(
        device_kind=device.device_kind,
        num_cores=getattr(device, "num_cores", 1) if target.platform == "tpu" else 1,
        platform=target.platform,
    )
    return AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=described)
