from __future__ import annotations

import os

import pytest

from capsid.data.item_table import ItemTable
from encode.catalogue import make_table

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture
def table() -> ItemTable:
    return make_table()
