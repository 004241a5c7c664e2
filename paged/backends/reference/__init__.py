"""The oracle: plain numpy in float64, independent of every kernel it judges.

It shares no code with another backend, not even the layouts' gather and write: an error there
would hide itself. `addressing` works out from a layout's pattern where a number lies.
"""

from paged.backends.reference.attention import oracle
from paged.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend", "oracle"]
