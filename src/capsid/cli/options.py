"""Arguments and options that several verbs take, worded once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (`capsid recipes list`).")]
Data = Annotated[str, typer.Option("--data", metavar="D", help="A name (`capsid data list`) or a folder.")]
Seed = Annotated[int, typer.Option("--seed", help="Another seed gives another run and other ids.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="part.field=value", help="Change a setting (`capsid recipes show`); repeatable."),
]

Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier command wrote there.")]

BENCH_STORE = Path("results") / "bench"
BenchStore = Annotated[Path, typer.Option("--store", metavar="DIR", help="Where results are kept.")]
