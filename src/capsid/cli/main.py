"""The command `capsid`: the list of verbs, how a verb is found, and how errors are shown.

A verb's module is imported when the verb is called, and verbs import heavy libraries inside their functions, so that
help is quick. Help is plain text: rich boxes would double the time it takes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from capsid import __version__
from capsid.base.printable import printable
from capsid.cli.interrupts import Interrupts
from capsid.cli.streams import OutputError, safe_streams, silence_output
from capsid.cli.usage import Commands, is_usage_error, usage_error
from capsid.errors import CapsidError
from capsid.progress import Console

# verb -> module with its `app`, and one line of help
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("capsid.cli.demo", "Run the whole pipeline on built-in films: ids, training, metrics, recommendations."),
    "data": ("capsid.cli.data", "List, describe, check and import datasets."),
    "recipes": ("capsid.cli.recipes", "List, show and compare the available methods."),
    "fit": ("capsid.cli.fit", "Fit a recipe on a dataset and write a run; a stopped fit resumes."),
    "tune": ("capsid.cli.tune", "Search settings of a recipe by validation; a stopped search resumes."),
    "refit": ("capsid.cli.refit", "Refit a run on newer data; known items keep their ids, and churn is reported."),
    "evaluate": ("capsid.cli.evaluate", "Compute the metrics of a run on held-out interactions."),
    "compare": ("capsid.cli.compare", "Test whether a run, or a method over several seeds, is better than another."),
    "predict": ("capsid.cli.predict", "Write ranked lists for all evaluated users to a file."),
    "recommend": (
        "capsid.cli.recommend",
        "Recommend items for a history, for one user, or for many users into a file.",
    ),
    "tokenizer": (
        "capsid.cli.tokenizer",
        "Fit a tokenizer without a generator; inspect the ids of a tokenizer or a run.",
    ),
    "vectors": ("capsid.cli.vectors", "Make ids from your own vectors, even if the catalogue is larger than memory."),
    "plan": ("capsid.cli.plan", "Estimate time, memory and disk of a large job by stage, before you start it."),
    "bench": ("capsid.cli.bench", "Run a plan of methods, datasets and seeds; a stopped run resumes."),
    "serve": ("capsid.cli.serve", "Recommend over HTTP; add and retire items while serving."),
    "explore": ("capsid.cli.explore", "Serve a run to this machine and open the explorer page."),
    "export": ("capsid.cli.export", "Write a run's network as ONNX files, for other runtimes."),
    "completion": ("capsid.cli.completion", "Print a script that makes bash, zsh or fish complete verbs and options."),
    "doctor": (
        "capsid.cli.doctor",
        "Show versions, optional libraries, cores, the cache, and the speed of this machine.",
    ),
}


# The shell's completion script passes its request in this variable.
COMPLETION = "_CAPSID_COMPLETE"


class Stopped(CapsidError):
    """The user pressed Ctrl-C."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("stopped; run the same command again to resume")


class Verbs(Commands):
    """Finds verbs in `VERBS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb; None if there is none of this name."""
        if cmd_name not in VERBS:
            return None
        command = typer.main.get_command(importlib.import_module(VERBS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of verbs, without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in VERBS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped from None


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


# Shown with the version, because results depend on them.
LIBRARIES = ("torch", "numpy", "polars", "faiss-cpu", "safetensors", "typer")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"capsid {__version__}")
        print(f"Python {platform.python_version()}")
        for name in LIBRARIES:
            # Read from the package metadata: importing the library would take seconds.
            with contextlib.suppress(metadata.PackageNotFoundError):
                print(f"{name} {metadata.version(name)}")
        raise typer.Exit


@app.callback(epilog="`capsid VERB --help` has examples. Start with `capsid demo`.")
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show versions of capsid and libraries.", callback=_show_version, is_eager=True),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress; errors are still shown.")] = False,
) -> None:
    """Semantic IDs for recommendation: from interactions to ids to recommendations."""
    Console.quiet = quiet


def run(arguments: Sequence[str], interrupts: Interrupts | None = None) -> int:
    """Run the command line with these arguments; returns the exit code. Exceptions that are bugs propagate."""
    with safe_streams():
        return _run(arguments, interrupts or Interrupts())


def _run(arguments: Sequence[str], interrupts: Interrupts) -> int:
    try:
        if COMPLETION in os.environ:
            from typer.completion import completion_init

            completion_init()
        result = typer.main.get_command(app).main(list(arguments), prog_name="capsid", standalone_mode=False)
        sys.stdout.flush()
        # Typer returns this code for a Ctrl-C that comes before a verb is called.
        if interrupts.came and result == Stopped.exit_code:
            return _tell_stopped(interrupts)
        return result if isinstance(result, int) else 0
    except (Stopped, KeyboardInterrupt):
        return _tell_stopped(interrupts)
    except (BrokenPipeError, OutputError) as error:
        # The reader (head, less) closed the pipe, or the disk is full.
        silence_output()
        if isinstance(error, OutputError):
            _tell(error.message, error.hint)
        return 1
    except CapsidError as error:
        _tell(error.message, error.hint)
        return error.exit_code
    except OSError as error:
        # A name that is too long, a folder without permission: the user can fix these, wherever they were raised.
        named = f": {str(error.filename)[:80]!r}" if error.filename else ""
        _tell(f"{error.strerror or error}{named}", "check the path and its permissions")
        return 1
    except Exception as error:
        # Code that is interrupted may fail in any way.
        if interrupts.came:
            return _tell_stopped(interrupts)
        if not is_usage_error(error):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(printable(str(error)), file=sys.stderr)
        else:
            wrong = usage_error(error)
            _tell(wrong.message, wrong.hint)
        return 2


def _tell_stopped(interrupts: Interrupts) -> int:
    # Whoever presses twice still sees one line.
    interrupts.ignore()
    stopped = Stopped()
    print(f"\n{stopped.message}", file=sys.stderr)
    return stopped.exit_code


def _tell(message: str, hint: str | None) -> None:
    print(f"error: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)
