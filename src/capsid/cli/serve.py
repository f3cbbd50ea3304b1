"""`capsid serve`: recommend over HTTP, and edit the catalogue while serving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from capsid.cli.options import of_option, single_verb
from capsid.cli.output import warn
from capsid.errors import ArtifactError, ConfigError
from capsid.settings import SettingError

app = single_verb()


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    host: Annotated[str, typer.Option("--host", help="Address; all but loopback need an API key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Processes, one model each.")] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="F", help="Every request needs this key.")
    ] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option("--admin-key-file", metavar="F", help="Changes to the catalogue need this key.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="Where edits are kept [default: RUN.live].")
    ] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="If the journal of edits is damaged, keep those before the damage.")
    ] = False,
    compare: Annotated[
        list[Path] | None, typer.Option("--compare", metavar="RUN", help="Another run to compare with; repeatable.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Maximum histories in one search.")] = 16,
    queue: Annotated[int, typer.Option("--queue", help="Maximum waiting histories; beyond that: 429.")] = 256,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds a request may wait; after that: 504.")] = 2.0,
    body_limit: Annotated[int, typer.Option("--body-limit", help="Maximum bytes of a body; beyond that: 413.")] = 1
    << 20,
    drain: Annotated[
        float, typer.Option("--drain", help="Seconds between SIGTERM and closing the port; meanwhile: 503.")
    ] = 1.0,
    rate_limit: Annotated[
        float, typer.Option("--rate-limit", help="Requests per second per caller; 0: no limit.")
    ] = 0.0,
    cors: Annotated[
        list[str] | None, typer.Option("--cors-origin", metavar="URL", help="Origin whose pages may call; repeatable.")
    ] = None,
) -> None:
    """Serve a run over HTTP until Ctrl-C or SIGTERM: recommend, look at ids, add and retire items without downtime.

    Keys can also come from the environment: CAPSID_API_KEY and CAPSID_ADMIN_KEY.

    Examples:

      capsid serve runs/films

      capsid serve runs/films --host 0.0.0.0 --api-key-file key --admin-key-file admin-key --workers 4

      curl -s localhost:8000/v1/recommend -H 'content-type: application/json' -d '{"history": ["318", "858"], "k": 5}'
    """
    serve_folder(
        run,
        state=str(state or ""),
        recover=recover,
        host=host,
        port=port,
        workers=workers,
        api_key_file=str(api_key_file or ""),
        admin_key_file=str(admin_key_file or ""),
        compare=tuple(str(other) for other in compare or ()),
        batch=batch,
        queue=queue,
        deadline=deadline,
        body_limit=body_limit,
        drain=drain,
        rate_limit=rate_limit,
        cors=tuple(cors or ()),
    )


def serve_folder(run: Path, *, show: bool = False, **options: Any) -> None:
    """Serve a run; with `show`, open its page in a browser when it is ready."""
    from capsid.base.storage.artifacts import folder_kind

    if folder_kind(run) != "run":
        raise ArtifactError(f"{run} is not a run", hint="give a folder that `capsid fit` wrote")
    try:
        from capsid.serve.options import ServeOptions
        from capsid.serve.start import serve as serve_run
    except ImportError as error:
        raise ConfigError(f"serving needs the extra `serve`: {error}", hint="pip install 'capsid-rec[serve]'") from None
    try:
        given = ServeOptions(run=str(run), **options)
    except SettingError as error:
        raise of_option(error) from None
    serve_run(given, show=show, tell=lambda line: warn(f"warning: {line}"))
