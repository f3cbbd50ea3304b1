"""`capsid recommend`: the next items after a history, with titles."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from capsid.cli.options import single_verb
from capsid.cli.output import check_items, parse_ids, parse_k, print_json, print_table
from capsid.progress import Console

app = single_verb()


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `capsid fit` wrote.")],
    history: Annotated[str, typer.Option("--history", metavar="ID,ID,...", help="Item ids, oldest first.")],
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    allow: Annotated[str | None, typer.Option("--allow", metavar="ID,ID,...", help="Only these items.")] = None,
    deny: Annotated[str | None, typer.Option("--deny", metavar="ID,ID,...", help="None of these items.")] = None,
    filter_history: Annotated[
        bool, typer.Option("--filter-history/--no-filter-history", help="Leave out the items of the history.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recommend after a history of your own item ids. An empty history gets the most popular items.

    Examples:

      capsid recommend runs/films --history 1,3114,4886 -k 5

      capsid recommend runs/films --history 318,858 --deny 1221 --json
    """
    parse_k(k)
    from capsid.recommender import Recommender

    recommender = Recommender.from_pretrained(run)
    catalogue = recommender.catalogue_
    wanted = {"history": parse_ids(history), "allow": _ids(allow), "deny": _ids(deny)}
    for ids in wanted.values():
        check_items(ids or [], catalogue.items, catalogue.title)
    found = recommender.recommend(
        wanted["history"] or [], k, filter_history=filter_history, allow=wanted["allow"], deny=wanted["deny"]
    )
    if not found.personal:
        Console().line("the history is empty: these are the most popular items")
    if as_json:
        print_json({"history": wanted["history"], **asdict(found)})
        return
    ranks = range(1, len(found) + 1)
    print_table(["rank", "item", "title", "score"], zip(ranks, found.items, found.titles, found.scores))


def _ids(text: str | None) -> list[str] | None:
    return None if text is None else parse_ids(text)
