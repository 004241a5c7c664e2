"""The suite as ordinary tests: `pytest --pyargs paged.conformance --paged-backend NAME`.

The options come with the installed package (`pytest_paged.py`).
"""

from collections.abc import Callable
from typing import Any

import pytest

from paged.conformance.plugin import Item, items


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case, layout and dtype."""
    metafunc.parametrize(
        "item", [pytest.param(item, id=str(item)) for item in items(metafunc.config)]
    )


def test_backend(item: Item, record_property: Callable[[str, Any], None]) -> None:
    """The backend keeps the contract in this case, or refuses it with a reason."""
    item.run(record_property)
