"""Paged attention on any hardware: one contract, many layouts, many kernels.

spec = paged.AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, scale=64**-0.5)
attention = paged.resolve(spec, layout="flashinfer", backend="auto")
cache = attention.allocate(num_blocks=128, block_size=16)
cache = attention.write(cache, key, value, metadata.slot_mapping)
out, lse = attention.attend(query, cache, metadata)
"""

from paged.backends import (
    AttentionOutput,
    Backend,
    Resolution,
    UnsupportedError,
    merge_states,
    resolve,
)
from paged.layouts import KVCache, Layout, convert, get_layout
from paged.metadata import AttentionMetadata, Buckets, MetadataBuilder, Step
from paged.spec import AttentionSpec, KVCacheSpec

__version__ = "0.1.0"

__all__ = [
    "AttentionMetadata",
    "AttentionOutput",
    "AttentionSpec",
    "Backend",
    "Buckets",
    "KVCache",
    "KVCacheSpec",
    "Layout",
    "MetadataBuilder",
    "Resolution",
    "Step",
    "UnsupportedError",
    "convert",
    "get_layout",
    "merge_states",
    "resolve",
]
