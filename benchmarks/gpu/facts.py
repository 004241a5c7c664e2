"""What the machine is. Each function runs in a process of the pool."""

import os
import platform
import shutil
import subprocess
from typing import Any

_ASKED = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit"


def torch_facts() -> dict[str, Any]:
    """Of the device, as torch and nvidia-smi tell them."""
    import torch
    import triton

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cpus": os.cpu_count(),
        "cuda": torch.version.cuda,
        "device": None,
    }
    if not torch.cuda.is_available():
        return facts
    found = torch.cuda.get_device_properties(0)
    return facts | {
        "device": found.name,
        "capability": f"{found.major}.{found.minor}",
        "sms": found.multi_processor_count,
        "memory_gb": found.total_memory / 1e9,
        "l2_mb": getattr(found, "L2_cache_size", 0) / 1e6,
        "nvidia_smi": _nvidia_smi(),
    }


def jax_facts() -> dict[str, Any]:
    """What JAX sees."""
    import jax

    facts: dict[str, Any] = {"jax": jax.__version__}
    try:
        return facts | {"jax_devices": [str(device) for device in jax.devices()]}
    except RuntimeError as error:
        return facts | {"jax_devices": [], "jax_reason": str(error).splitlines()[0]}


def _nvidia_smi() -> dict[str, str] | str:
    """Driver and clocks, where they can be read. They are left as they are."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "nvidia-smi is not found"
    command = [tool, f"--query-gpu={_ASKED}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stdout + done.stderr).strip()[:200]
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(_ASKED.split(","), values, strict=False))
