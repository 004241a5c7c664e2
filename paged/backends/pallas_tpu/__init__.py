"""Ragged paged attention on TPUs, written in Pallas for the Mosaic compiler."""

from paged.backends.pallas_tpu.backend import PallasTpuBackend
from paged.backends.pallas_tpu.tiling import Tiling, Tilings

__all__ = ["PallasTpuBackend", "Tiling", "Tilings"]
