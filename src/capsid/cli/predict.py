"""`capsid predict`: ranked lists for every held-out user, so that anyone can score them independently."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import Force, single_verb
from capsid.cli.output import parse_k
from capsid.cli.ranked_file import RankedFile, RankedList
from capsid.progress import Console

app = single_verb()


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .jsonl, .csv or .parquet; - prints JSON lines.")],
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    k: Annotated[int, typer.Option("-k", help="Items per user.")] = 50,
    filter_history: Annotated[
        bool,
        typer.Option("--filter-history/--no-filter-history", help="Leave out items of the user's history."),
    ] = False,
    force: Force = False,
) -> None:
    """Write one line per user: {"user": ..., "items": [best first], "scores": [log-probabilities]}.

    A .csv or .parquet has a row for each item: user, rank, item, score. FILE is written whole or not at all; pipes and
    devices such as /dev/null are written directly.

    Examples:

      capsid predict runs/films --split test -k 50 --out films.jsonl

      capsid predict runs/films --split valid -k 10 --filter-history --out - | head
    """
    parse_k(k)
    target = RankedFile.check(out, force=force)
    from capsid.recommender import Recommender

    progress = Console()
    recommender = Recommender.from_pretrained(run)
    ranked = recommender.predict(split, k, filter_history=filter_history, progress=progress)
    lists = [RankedList(user, tuple(items), tuple(scores)) for user, items, scores in ranked]
    target.write(lists)
    if not target.file.printed:
        progress.line(f"{len(lists):,} users, the best {k} items each: {out}")
