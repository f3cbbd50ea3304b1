"""Results that an earlier release has stored: they can be read and recomputed, but not rerun or added to.

Their recipes were written by code that is gone and may have settings that no longer exist, so nothing compares them
with the recipes of today. `archive.json` in the folder of a plan says what that release said about its cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsid.base.storage import untrusted
from capsid.base.storage.artifacts import read_json

FILE = "archive.json"


@dataclass(frozen=True)
class Archive:
    """The release that stored the cells, and the keys of those that tables leave out or whose recipe had changed."""

    release: str
    superseded: frozenset[str]
    outdated: frozenset[str]


def archive_of(folder: Path) -> Archive | None:
    """What is known of an archived plan; None for a plan that today's code has run."""
    path = folder / FILE
    if not path.is_file():
        return None
    with untrusted.interpreting(path, "archive of results"):
        content = untrusted.mapping(read_json(path), FILE)
        left_out, old = (frozenset(untrusted.texts(content[n], f"{FILE}: {n}")) for n in ("superseded", "outdated"))
        return Archive(untrusted.text(content["release"], f"{FILE}: release"), left_out, old)
