"""Creates the app of a verb, and defines the arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsid.base.run_options import ALONE, RunOptions, Team
from capsid.cli.usage import Commands
from capsid.errors import ConfigError
from capsid.settings import SettingError, short


def single_verb() -> typer.Typer:
    """The app of a verb that is one command. Help is plain text: rich boxes would double the time it takes."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def verb_group(about: str) -> typer.Typer:
    """The app of a verb with commands below it."""
    return typer.Typer(cls=Commands, help=about, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (`capsid recipes list`).")]
Data = Annotated[str, typer.Option("--data", metavar="D", help="A name (`capsid data list`) or a folder.")]
Seed = Annotated[int, typer.Option("--seed", help="Random seed; another seed gives another run and other ids.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="part.field=value",
        help="Change a setting; `capsid recipes show RECIPE` explains them all. Repeatable.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.toml", help="Settings from a TOML file with a table for each part of the recipe."
    ),
]
Exact = Annotated[bool, typer.Option("--exact", help="Use the recipe's sizes as they are, however small the data is.")]
OwnVectors = Annotated[
    Path | None,
    typer.Option(
        "--vectors",
        metavar="FILE",
        help="Your own item vectors: .npy, .npz, .parquet, .csv or .safetensors, with ids.",
    ),
]
CodesFolder = Annotated[
    Path | None, typer.Option("--codes", metavar="FOLDER", help="Also write the codes, as `vectors encode` does.")
]
HoldoutKind = Annotated[
    str, typer.Option("--holdout", metavar="KIND", help="What to hold out: last, time, cold or none.")
]
HoldoutTarget = Annotated[
    str,
    typer.Option(
        "--holdout-target",
        metavar="TARGET",
        help="time: a user's last item after the cut, or each of the successive ones.",
    ),
]
HoldoutShare = Annotated[
    float,
    typer.Option(
        "--holdout-share",
        metavar="SHARE",
        help="time: share of interactions for validation and again for test; cold: share of items.",
    ),
]
Ties = Annotated[
    str | None,
    typer.Option(
        "--ties",
        metavar="shuffle|file",
        help="Order of a user's interactions with equal times: shuffled by a hash (default where times are known), "
        "or as in the file.",
    ),
]
CheckpointEvery = Annotated[
    float,
    typer.Option(
        "--checkpoint-every",
        metavar="SECONDS",
        help="Seconds of training between checkpoints; 0: every step.",
    ),
]
CHECKPOINT_EVERY = RunOptions().checkpoint_every


Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="Device: cpu, cuda, cuda:N, or auto (cuda if available)."),
]


def run_options(checkpoint_every: float, team: Team = ALONE, device: str = "cpu") -> RunOptions:
    """Build `RunOptions` from the options of verbs that train."""
    try:
        return RunOptions(checkpoint_every=checkpoint_every, team=team, device=device)
    except SettingError as error:
        raise of_option(error) from None


def of_option(error: SettingError) -> ConfigError:
    """The error of a field as that of the option that sets it: `body_limit` is `--body-limit`."""
    value = f"{error.value:g}" if isinstance(error.value, float) else short(error.value)
    option = f"--{error.rule.name.replace('_', '-')}"
    return ConfigError(f"{option} must be {error.allowed}, got {value}", hint=error.hint)


def check_share(share: float) -> float:
    """Check the share of `--holdout-share`."""
    if not 0 < share < 0.5:
        raise ConfigError(f"--holdout-share must be above 0 and below 0.5, got {share:g}", hint="such as 0.1")
    return share


EngineName = Annotated[
    str,
    typer.Option(
        "--engine", metavar="ENGINE", help="Where to run: here (this process), processes (on this machine) or ray."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", help="Shards to run in parallel, for processes and ray; default: one per core."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="A running Ray cluster (or auto); default: start one here."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]

FilterHistory = Annotated[
    bool,
    typer.Option(
        "--filter-history/--no-filter-history",
        help="Leave out items of the user's history. It is on by default in every verb and in the service.",
    ),
]

BENCH_STORE = Path("results") / "bench"
BenchStore = Annotated[Path, typer.Option("--store", metavar="DIR", help="Folder of stored results.")]
