"""How a block lies in memory: declarations over named axes, and all that follows from them."""

from paged.layouts.cache import KVCache, check_scale, check_scale_values, check_slots_fit
from paged.layouts.catalog import (
    FLASH_ATTN,
    FLASHINFER,
    FLASHINFER_HND,
    LAYOUTS,
    MLA,
    PACKED,
    PALLAS,
    TPU_MLA,
    TPU_PACKED,
    get_layout,
)
from paged.layouts.convert import convert, share_pool
from paged.layouts.layout import Layout
from paged.layouts.moving import copy_blocks, put_blocks, take_blocks
from paged.layouts.strides import KVStrides, kv_strides

__all__ = [
    "FLASHINFER",
    "FLASHINFER_HND",
    "FLASH_ATTN",
    "LAYOUTS",
    "MLA",
    "PACKED",
    "PALLAS",
    "TPU_MLA",
    "TPU_PACKED",
    "KVCache",
    "KVStrides",
    "Layout",
    "check_scale",
    "check_scale_values",
    "check_slots_fit",
    "convert",
    "copy_blocks",
    "get_layout",
    "kv_strides",
    "put_blocks",
    "share_pool",
    "take_blocks",
]
