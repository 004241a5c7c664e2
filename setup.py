"""Builds the CPU kernels with the package; all else stands in pyproject.toml.

A machine without a compiler gets the package without them: `paged backends` then says what is
missing. The library belongs to no Python, so that it is no extension module, but it takes the place
of one here: setuptools then makes a wheel for this platform, and an editable install builds in
place.
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
BUILD = ROOT / "paged" / "backends" / "cpu" / "build.py"


class BuildKernels(build_ext):
    """Compiles the library where setuptools wants it."""

    def build_extension(self, ext: Extension) -> None:
        """Leaves it out, with a word, where it cannot be built."""
        spec = importlib.util.spec_from_file_location("paged_cpu_build", BUILD)
        builder = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(builder)
        try:
            builder.build(Path(self.get_ext_fullpath(ext.name)).absolute())
        except builder.BuildError as error:
            print(f"paged: without the CPU kernels: {error}", file=sys.stderr)

    def get_ext_filename(self, fullname: str) -> str:
        """One name for every Python and platform."""
        return str(Path(*fullname.split("."))) + ".so"

    def get_outputs(self) -> list[str]:
        """What was built."""
        return [path for path in super().get_outputs() if Path(path).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """From the build folder to the source tree, for an editable install."""
        found = super().get_output_mapping()
        return {built: place for built, place in found.items() if Path(built).exists()}


setup(
    ext_modules=[Extension("paged.backends.cpu.libpaged_cpu", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
