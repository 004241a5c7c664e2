"""What a result depends on beside the code under test: versions, device, command."""

import importlib.metadata
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

import jax

_PACKAGES = ("paged", "jax", "jaxlib", "numpy", "ml_dtypes", "torch", "triton", "libtpu")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and how a run was made.

    Attributes:
        command: the command line, empty where there was none.
        seed: of all numbers.
        started: local time with its offset, ISO 8601.
        versions: of Python and of each installed package that matters.
        device: JAX's default device.
        system: operating system and architecture.
    """

    command: str
    seed: int
    started: str
    versions: dict[str, str]
    device: str
    system: str

    @classmethod
    def here(cls, *, command: str = "", seed: int = 0) -> "Environment":
        """This process, now."""
        versions = {"python": platform.python_version()}
        for name in _PACKAGES:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        if "paged" not in versions:
            # Run from its sources.
            from paged import __version__

            versions["paged"] = __version__
        device = jax.devices()[0]
        return cls(
            command=command,
            seed=seed,
            started=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            versions=versions,
            device=f"{device.platform} ({device.device_kind})",
            system=f"{platform.system()} {platform.machine()}",
        )

    def rows(self) -> dict[str, str]:
        """Each item by its name, in words."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        rows = {"command": self.command, "seed": str(self.seed), "started": self.started}
        rows |= {"versions": versions, "device": self.device, "system": self.system}
        return {name: text for name, text in rows.items() if text}
