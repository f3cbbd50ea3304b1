"""`capsid export`: a run's network as files for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import Force, single_verb
from capsid.errors import ConfigError
from capsid.progress import Console

app = single_verb()


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
    format_: Annotated[str, typer.Option("--format", help="onnx.")] = "onnx",
    force: Force = False,
) -> None:
    """Write a run's network as ONNX files with its ids: start.onnx, step.onnx, ids.jsonl, export.json.

    It needs the extra `onnx` (pip install 'capsid-rec[onnx]'). docs/export.md shows how to use the files.

    Examples:

      capsid export runs/films --format onnx --out films-onnx
    """
    if format_ != "onnx":
        raise ConfigError(f"--format must be onnx, got {format_!r}", hint="--format onnx")
    from capsid.base.storage.artifacts import reserved
    from capsid.fit.export import KIND, export_onnx
    from capsid.recommender import Recommender

    with reserved(out, kind=KIND, replace=force) as path:
        export_onnx(Recommender.from_pretrained(run), path)
    Console().line(f"wrote {out}: start.onnx, step.onnx, ids.jsonl, export.json")
