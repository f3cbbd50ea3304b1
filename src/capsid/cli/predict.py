"""`capsid predict`: ranked lists for all evaluated users, so that anyone can score them independently."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import Address, EngineName, FilterHistory, Force, Workers, single_verb
from capsid.cli.output import OutputFile, RankedFile, RankedList, parse_k
from capsid.progress import Console

app = single_verb()


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .jsonl, .csv or .parquet; - prints JSON lines.")],
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    k: Annotated[int, typer.Option("-k", help="Items per user.")] = 50,
    filter_history: FilterHistory = True,
    engine: EngineName = "here",
    workers: Workers = None,
    address: Address = None,
    force: Force = False,
) -> None:
    """Write one line per user: {"user": ..., "items": [best first], "scores": [log-probabilities]}.

    A .csv or .parquet has one row per item: user, rank, item, score. FILE is complete or absent; pipes and devices
    such as /dev/null are written directly. A stopped run resumes: finished lists stay in a hidden folder beside FILE
    until it is written. The engine does not change the lists.

    Examples:

      capsid predict runs/films --split test -k 50 --out films.jsonl

      capsid predict runs/films --split valid -k 10 --no-filter-history --out - | head

      capsid predict runs/films --out films.parquet --engine processes --workers 4

      capsid predict runs/films --out films.parquet --engine ray --address 10.0.0.1:6379
    """
    parse_k(k)
    target = RankedFile.check(out, force=force)
    from capsid.scale.engine import engine_named, run_job
    from capsid.scale.jobs import RankJob
    from capsid.scale.ranked import read_lists

    progress, chosen = Console(), engine_named(engine, workers=workers, address=address)
    with work_folder(target.file) as folder:
        job = RankJob.prepare(run, folder, split=split, k=k, filter_history=filter_history)
        _, done = run_job(job, chosen, progress=progress)
        found = read_lists(job.open())
        target.write(RankedList(user, tuple(items), tuple(scores)) for user, items, scores in found)
    if not target.file.printed:
        filtered = "history filtered" if filter_history else "history not filtered"
        progress.line(f"{done.items:,} users, up to {k} items each, {filtered}: {out}")


@contextlib.contextmanager
def work_folder(file: OutputFile) -> Iterator[Path]:
    """Where the shards are until the file is written: beside a regular file, so that a stopped run finds them."""
    if file.printed or file.stream:
        with tempfile.TemporaryDirectory(prefix="capsid-") as temporary:
            yield Path(temporary) / "lists"
        return
    place = Path(file.name)
    folder = place.with_name(f".{place.name}.shards")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
