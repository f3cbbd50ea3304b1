"""Small files for the tests of the data room."""

from __future__ import annotations

import gzip
from pathlib import Path


def write(path: Path, lines: list[str] | bytes) -> Path:
    """Lines or bytes to a file, gzipped if its name says so."""
    data = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


ITEMS = [
    {"item_id": "a", "title": "Apple", "brand": "Orchard", "categories": ["Food", "Fruit"], "price": 1.5},
    {"item_id": "b", "title": "Bread", "categories": ["Food", "Bakery"], "price": 2},
    {"item_id": "c", "title": "Cup", "brand": "Kiln", "categories": ["Kitchen"]},
    {"item_id": "d", "title": "Dish", "categories": ["Kitchen"], "price": "$1,300.50"},
]
SEQUENCES = ["u1 a b c", "u2 b c a", "u3 c a b"]
