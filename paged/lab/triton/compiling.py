"""One launch through triton's compiler, and its counts."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from paged.backends.triton.catalog import kernel_of
from paged.lab.triton.grid import Case
from paged.lab.triton.launches import TypedLaunch, launch_of
from paged.lab.triton.read import Counts, read_amdgcn, read_sass
from paged.lab.triton.targets import GpuTarget


def counts_of(case: Case, target: GpuTarget) -> Counts:
    """Compiles a case and counts.

    Raises:
        Exception: whatever the compiler has to say.
        ValueError: the kernel needs more shared memory than the target has.
    """
    compiled = compile_launch(launch_of(case, target), target)
    shared = compiled.metadata.shared
    if shared > target.shared_limit:
        # The compiler does not mind; the driver would, at the launch.
        raise ValueError(f"{shared} bytes of shared memory, the limit is {target.shared_limit}")
    if target.platform == "hip":
        return read_amdgcn(compiled.asm["amdgcn"], shared)
    usage, sass = _disassembled(compiled.asm["cubin"])
    return read_sass(usage, sass, shared)


def compile_launch(typed: TypedLaunch, target: GpuTarget) -> Any:
    """What triton's compiler makes of a launch; in a process without TRITON_INTERPRET."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch = typed.launch
    kernel = kernel_of(launch.kernel)
    *names, form = kernel.arg_names
    source = ASTSource(
        kernel,
        {**dict(zip(names, typed.types, strict=True)), form: "constexpr"},
        {form: launch.form},
        {(index,): [["tt.divisibility", 16]] for index in typed.aligned},
    )
    return triton.compile(
        source,
        target=GPUTarget(target.platform, target.arch, target.warp_size),
        options={"num_warps": launch.warps, "num_stages": launch.stages},
    )


def _disassembled(cubin: bytes) -> tuple[str, str]:
    """What cuobjdump and nvdisasm, which come with triton, print of a kernel."""
    from triton import knobs

    with tempfile.TemporaryDirectory(prefix="paged-lab-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _printed(knobs.nvidia.cuobjdump.path, "-res-usage", str(path))
        return usage, _printed(knobs.nvidia.nvdisasm.path, "-c", "-g", str(path))


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
