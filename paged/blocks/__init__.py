"""The block manager: who holds which block of the KV cache.

Plain bookkeeping on the host. It knows no layer, no layout and no device, and imports no array
library but numpy; a `BlockTable` is told how its rows reach the device.
"""

from paged.blocks.errors import IntegrityError, OutOfBlocks
from paged.blocks.manager import KVCacheManager
from paged.blocks.pool import NULL_BLOCK, BlockPool
from paged.blocks.table import BlockTable

__all__ = [
    "NULL_BLOCK",
    "BlockPool",
    "BlockTable",
    "IntegrityError",
    "KVCacheManager",
    "OutOfBlocks",
]
