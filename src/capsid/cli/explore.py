"""`capsid explore`: serve a run to this machine and open the explorer page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import single_verb
from capsid.cli.serve import serve_folder

app = single_verb()


@app.command()
def explore(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    port: Annotated[int, typer.Option("--port", help="Port to listen on.")] = 8000,
) -> None:
    """Serve a run to this machine only, and open its page in a browser as soon as it is ready. Ctrl-C ends it.

    Examples:

      capsid explore runs/films
    """
    serve_folder(run, show=True, port=port)
