"""The files of a folder of shards: the key that each carries, and whether the folder is whole.

A shard is a Parquet file with a hash of its inputs; `shards.json` lists all shards and is written last. Knows neither
what shards hold nor how they are made (`capsid.scale.shards`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsid.base.storage import untrusted
from capsid.base.storage.artifacts import read_json
from capsid.errors import ArtifactError

SUMMARY = "shards.json"
METADATA = b"capsid"


def read_about(path: Path) -> dict[str, Any] | None:
    """The key of a finished shard; None if the file is missing, incomplete or no shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = json.loads((pq.read_metadata(path).metadata or {})[METADATA])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def check_whole(folder: Path, files: Sequence[Path]) -> None:
    """Refuse shards if one is missing, incomplete or of other data. Files that are no shards are not checked."""
    again = "run the command that wrote the shards again: it makes what is missing"
    found = {path.name: read_about(path) for path in files}
    if not (folder / SUMMARY).is_file():
        if any(about is not None for about in found.values()):
            raise ArtifactError(f"the shards in {folder} are not finished: there is no {SUMMARY}", hint=again)
        return
    with untrusted.interpreting(folder / SUMMARY, "list of shards"):
        listed = untrusted.mapping(
            untrusted.mapping(read_json(folder / SUMMARY), SUMMARY)["files"], f"{SUMMARY}: files"
        )
    for name, rows in listed.items():
        if name not in found:
            raise ArtifactError(f"the shard {folder / name} is missing", hint=again)
        about = found[name]
        if about is None:
            raise ArtifactError(f"the shard {folder / name} could not be read", hint=f"it may be truncated; {again}")
        if about.get("rows") != rows:
            raise ArtifactError(f"the shard {folder / name} was made from other data than {SUMMARY} says", hint=again)
    for name in found.keys() - listed.keys():
        raise ArtifactError(
            f"{folder} holds {name}, which {SUMMARY} does not list", hint="remove it, or give another folder"
        )
