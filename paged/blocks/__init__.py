"""The block manager: who holds which block of the KV cache.

Plain bookkeeping on the host. It knows no layer, no layout and no device, and imports no array
library but numpy; a `BlockTable` is told how its rows reach the device.
"""

from paged.blocks.admission import Admission
from paged.blocks.copies import Copies, CopyOrders
from paged.blocks.errors import IntegrityError, NeverFits, OutOfBlocks, WrongThread
from paged.blocks.events import AllCleared, BlocksRemoved, BlocksStored, Event
from paged.blocks.groups import Group
from paged.blocks.growth import TableChanges
from paged.blocks.hashing import Prompt
from paged.blocks.keys import Image
from paged.blocks.manager import KVCacheManager
from paged.blocks.pool import NULL_BLOCK, BlockPool
from paged.blocks.stats import Counters, Gauges, Stats
from paged.blocks.table import BlockTable

__all__ = [
    "NULL_BLOCK",
    "Admission",
    "AllCleared",
    "BlockPool",
    "BlockTable",
    "BlocksRemoved",
    "BlocksStored",
    "Copies",
    "CopyOrders",
    "Counters",
    "Event",
    "Gauges",
    "Group",
    "Image",
    "IntegrityError",
    "KVCacheManager",
    "NeverFits",
    "OutOfBlocks",
    "Prompt",
    "Stats",
    "TableChanges",
    "WrongThread",
]
