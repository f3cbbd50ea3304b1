"""`capsid recommend`: items for one history, or for the histories of many users into a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.options import Device, FilterHistory, Force, single_verb
from capsid.cli.output import AsJson, RankedFile, RankedList, check_items, parse_ids, parse_k, print_json, print_table
from capsid.errors import ConfigError
from capsid.progress import Console, Progress

if TYPE_CHECKING:
    from capsid.cli.input_files import UserHistories
    from capsid.recommender import Recommender

app = single_verb()
HistoriesFrom = Annotated[str | None, typer.Option("--data", metavar="D", help="Use the histories of this dataset.")]
# Users between two progress lines.
CHUNK = 1_024


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    history: Annotated[
        str | None, typer.Option("--history", metavar="ID,ID,...", help="Item ids, oldest first.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="U", help="A user of the run, or of --data.")] = None,
    histories: Annotated[
        Path | None,
        typer.Option("--histories", metavar="FILE", help="All users of this table: user, item, timestamp."),
    ] = None,
    all_users: Annotated[bool, typer.Option("--all-users", help="All users of the run, or of --data.")] = False,
    data: HistoriesFrom = None,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    allow: Annotated[str | None, typer.Option("--allow", metavar="ID,ID,...", help="Only these items.")] = None,
    deny: Annotated[str | None, typer.Option("--deny", metavar="ID,ID,...", help="None of these items.")] = None,
    filter_history: FilterHistory = True,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="A .csv, .parquet or .jsonl; - prints JSON lines."),
    ] = None,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Recommend items for a history of your own item ids, for one user, or for many. Empty histories get popular items.

    A .csv or .parquet has one row per item: user, rank, item, title, score. A .jsonl has one line per user.

    Examples:

      capsid recommend runs/films --history 1,3114,4886 -k 5

      capsid recommend runs/films --user 85

      capsid recommend runs/films --all-users -k 20 --out for-everybody.parquet

      capsid recommend runs/films --histories this-week.csv --out mail.csv
    """
    parse_k(k)
    _check_source(history, user, histories, all_users, data)
    target = None if out is None else RankedFile.check(out, force=force)
    from capsid.base.devices import choose
    from capsid.recommender import Recommender

    progress = Console()
    recommender = Recommender.from_pretrained(run, device=str(choose(device)))
    catalogue = recommender.catalogue_
    limits = {"allow": _ids(allow), "deny": _ids(deny)}
    for ids in limits.values():
        check_items(ids or [], catalogue.items, catalogue.title)
    asked = _asked(recommender, history, user, histories, data, progress)
    if target is None and (all_users or histories is not None):
        target = RankedFile.check("-")
    if target is not None:
        lists = _ranked(recommender, asked, k, filter_history, limits, progress)
        target.write(lists)
        if not target.file.printed:
            progress.line(f"{len(lists):,} users, up to {k} items each: {out}")
        return
    wanted = asked.histories[0]
    found = recommender.recommend(wanted, k, filter_history=filter_history, **limits, unknown="drop")
    if not found.personal:
        progress.line("no item of the history is known: these are the most popular items")
    if as_json:
        print_json({**({} if user is None else {"user": user}), "history": wanted, **asdict(found)})
        return
    ranks = range(1, len(found) + 1)
    print_table(["rank", "item", "title", "score"], zip(ranks, found.items, found.titles, found.scores))


def _check_source(
    history: str | None, user: str | None, histories: Path | None, all_users: bool, data: str | None
) -> None:
    given = [history is not None, user is not None, histories is not None, all_users]
    if sum(given) != 1:
        raise ConfigError(
            f"give exactly one of --history, --user, --histories and --all-users, got {sum(given) or 'none'}",
            hint="such as --history ID,ID,... or --user U",
        )
    if data is not None and not (all_users or user is not None):
        raise ConfigError("--data needs --user or --all-users", hint="it says where their histories are")


def _asked(
    recommender: Recommender,
    history: str | None,
    user: str | None,
    histories: Path | None,
    data: str | None,
    progress: Progress,
) -> UserHistories:
    from capsid.cli.input_files import UserHistories, of_dataset, of_run, read_histories

    catalogue = recommender.catalogue_
    if history is not None:
        ids = parse_ids(history)
        check_items(ids, catalogue.items, catalogue.title)
        return UserHistories(("",), (ids,))
    if histories is not None:
        found = read_histories(histories)
    else:
        found = of_run(catalogue) if data is None else of_dataset(data, progress)
        if user is not None:
            found = found.only(user)
    unknown = found.unknown(catalogue.items)
    if unknown:
        progress.line(f"{unknown:,} interactions with items that the run does not know are left out")
    return found


def _ranked(
    recommender: Recommender,
    asked: UserHistories,
    k: int,
    filter_history: bool,
    limits: dict[str, Sequence[str] | None],
    progress: Progress,
) -> list[RankedList]:
    lists: list[RankedList] = []
    for start in range(0, len(asked.users), CHUNK):
        part = slice(start, start + CHUNK)
        found = recommender.recommend_many(
            asked.histories[part], k, filter_history=filter_history, **limits, unknown="drop"
        )
        lists += [
            RankedList(user, own.items, own.scores, own.titles, own.personal)
            for user, own in zip(asked.users[part], found)
        ]
        progress.update(f"{len(lists):,}/{len(asked.users):,} users")
    strangers = sum(found.personal is False for found in lists)
    if strangers:
        progress.line(f"{strangers:,} of {len(lists):,} users have no known item: they get the most popular items")
    return lists


def _ids(text: str | None) -> Sequence[str] | None:
    return None if text is None else parse_ids(text)
