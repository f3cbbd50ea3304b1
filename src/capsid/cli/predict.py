"""`capsid predict`: ranked lists for every held-out user, so that anyone can score them independently."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.output import json_line, parse_k
from capsid.errors import ArtifactError
from capsid.progress import Console

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE.jsonl", help="The file to write; - is standard output.")],
    split: Annotated[str, typer.Option("--split", help="test or valid.")] = "test",
    k: Annotated[int, typer.Option("-k", help="Items a user.")] = 50,
    filter_history: Annotated[
        bool,
        typer.Option("--filter-history/--no-filter-history", help="Leave out what the user has taken already."),
    ] = False,
) -> None:
    """Write a line a user: {"user": ..., "items": [best first], "scores": [log-probabilities]}.

    Examples:

      capsid predict runs/films --split test -k 50 --out films.jsonl

      capsid predict runs/films --split valid -k 10 --filter-history --out - | head
    """
    parse_k(k)
    if out != "-" and Path(out).is_dir():
        raise ArtifactError(f"{out} is a folder", hint="give a file, such as predictions.jsonl, or - to print")
    from capsid.artifacts import write_bytes
    from capsid.recommender import Recommender

    progress = Console()
    recommender = Recommender.from_pretrained(run)
    lines = [
        json_line({"user": user, "items": items, "scores": scores})
        for user, items, scores in recommender.predict(split, k, filter_history=filter_history, progress=progress)
    ]
    if out == "-":
        sys.stdout.writelines(lines)
        return
    write_bytes(Path(out), "".join(lines).encode())
    progress.line(f"{len(lines):,} users, the best {k} items each: {out}")
