from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_files import ITEMS, SEQUENCES, write


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A sound prepared folder; item d has no interactions."""
    folder = tmp_path / "shop"
    write(folder / "sequences.txt.gz", SEQUENCES)
    write(folder / "items.jsonl.gz", [json.dumps(i) for i in ITEMS])
    return folder
