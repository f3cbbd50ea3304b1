"""Encodes a catalogue, or reuses the vectors of an earlier run: one folder per encoder, data and seed.

Views and the parts of a joined encoder are cached separately, so that all recipes and splits share the slow text
vectors.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar, cast

import numpy as np

from capsid.base.config import to_dict
from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.base.storage.artifacts import cache_home, new_folder, open_folder, write_json
from capsid.base.storage.locks import held
from capsid.data.item_table import ItemTable
from capsid.encode.base import ItemEncoder, check_vectors, first_ids, fresh, has_evidence
from capsid.encode.joined import MAIN, JoinedEncoder, Views
from capsid.errors import ArtifactError, DataError
from capsid.progress import Progress, duration, silent

KIND = "vectors"
E = TypeVar("E", bound=ItemEncoder)


def encode_items(
    encoder: E,
    table: ItemTable,
    *,
    seed: int = 0,
    progress: Progress = silent,
    cache: Path | Literal["default"] | None = "default",
) -> tuple[E, np.ndarray]:
    """A fitted copy of `encoder` and the table's vectors (of the main view if it has several). Works like
    `encode_blocks`. Shape: (items, d)."""
    copy, blocks = encode_blocks(encoder, table, seed=seed, progress=progress, cache=cache)
    return cast(E, copy), blocks[MAIN]


def encode_blocks(
    encoder: ItemEncoder,
    table: ItemTable,
    *,
    seed: int = 0,
    progress: Progress = silent,
    cache: Path | Literal["default"] | None = "default",
) -> tuple[ItemEncoder, dict[str, np.ndarray]]:
    """A fitted copy of `encoder` and all its views, computed or from the cache (None: neither read nor write). Zero
    rows (items for which no part of the encoder has evidence) are reported, not refused. Shapes: (items, d)."""
    root = cache_home() / "stages" / "vectors" if cache == "default" else cache
    copy: ItemEncoder
    if isinstance(encoder, Views):
        found = {name: _encode(part, table, seed, progress, root) for name, part in encoder.parts.items()}
        copy = fresh(encoder).with_parts({name: part for name, (part, _) in found.items()})
        blocks = {name: vectors for name, (_, vectors) in found.items()}
    else:
        copy, vectors_ND = _encode(encoder, table, seed, progress, root)
        blocks = {MAIN: vectors_ND}
    for name, vectors_ND in blocks.items():
        nothing = ~has_evidence(vectors_ND)
        if nothing.any():
            view = "" if name == MAIN else f" in the view {name!r}"
            progress.line(f"{int(nothing.sum()):,} items have no vector{view}: {first_ids(nothing, table.items)}")
    return copy, blocks


def cached_parts(encoder: ItemEncoder) -> list[ItemEncoder]:
    """The encoders inside this one that are computed and cached separately; itself if there are none."""
    if isinstance(encoder, Views):
        return [leaf for part in encoder.parts.values() for leaf in cached_parts(part)]
    if isinstance(encoder, JoinedEncoder):
        return [leaf for part in encoder.parts for leaf in cached_parts(part)]
    return [encoder]


def _encode(encoder: E, table: ItemTable, seed: int, progress: Progress, root: Path | None) -> tuple[E, np.ndarray]:
    folder = None if root is None else Path(root) / encoder.cache_key(table, seed=seed)
    if folder is not None:
        found = _load(encoder, table, folder, progress)
        if found is not None:
            progress.line(f"{encoder.kind} vectors: {len(table):,} items from the cache")
            return found
    start, copy = time.monotonic(), fresh(encoder)
    if isinstance(copy, JoinedEncoder):
        parts, blocks = zip(*[_encode(part, table, seed, progress, root) for part in copy.parts])
        vectors_ND = copy.join_blocks(parts, blocks)
    else:
        with _checkpoint(folder) as checkpoint:
            copy.fit(table, seed=seed, progress=progress, checkpoint=checkpoint)
        vectors_ND = copy.transform(table, progress=progress)
    check_vectors(vectors_ND, table.items, allow_zero=True)
    took = duration(time.monotonic() - start)
    progress.line(f"{encoder.kind} vectors: {len(table):,} items, {vectors_ND.shape[1]} wide, {took}")
    if folder is not None:
        _store(copy, vectors_ND, folder, progress)
    return copy, vectors_ND


@contextlib.contextmanager
def _checkpoint(folder: Path | None) -> Iterator[CheckpointFile | None]:
    """A checkpoint file next to the future folder, for a fit to resume from; removed when the fit ends. None without a
    cache, or while another process runs the same fit: only one process may write the file."""
    if folder is None:
        yield None
        return
    file = RunOptions().checkpoint(folder.with_name(f".{folder.name}.checkpoint"))
    with contextlib.ExitStack() as stack:
        try:
            alone = stack.enter_context(held(file.beside("lock").path, wait=False))
        except OSError:  # the run continues without a cache
            alone = False
        yield file if alone else None
        if alone:
            file.remove()


def _load(encoder: E, table: ItemTable, folder: Path, progress: Progress) -> tuple[E, np.ndarray] | None:
    """The folder's content; a damaged folder is removed, because the vectors can be recomputed."""
    if not folder.exists():
        return None
    try:
        open_folder(folder, kind=KIND)
        vectors_ND = load_arrays(folder / "vectors.npz")["vectors"]
        check_vectors(vectors_ND, table.items, allow_zero=True)
        return fresh(encoder).load_state(load_arrays(folder / "state.npz")), vectors_ND
    except (ArtifactError, DataError, KeyError) as error:
        progress.line(f"the cached {encoder.kind} vectors are damaged and will be recomputed: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _store(encoder: ItemEncoder, vectors_ND: np.ndarray, folder: Path, progress: Progress) -> None:
    """Cache the result; if that fails, the run continues."""
    try:
        with new_folder(folder, kind=KIND) as new:
            save_arrays(new / "vectors.npz", {"vectors": vectors_ND})
            save_arrays(new / "state.npz", encoder.state())
            write_json(new / "encoder.json", to_dict(encoder))
    except (ArtifactError, OSError) as error:
        progress.line(f"the {encoder.kind} vectors could not be cached: {error}")
