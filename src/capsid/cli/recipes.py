"""`capsid recipes`: list the methods, show the settings of one, and compare two."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

import typer

from capsid.cli.options import Settings, verb_group
from capsid.cli.output import AsJson, print_json, print_table, say
from capsid.progress import Console

if TYPE_CHECKING:
    from capsid.settings import Explained

app = verb_group("List, show and compare the available methods.")
Name = Annotated[str, typer.Argument(metavar="R", help="A recipe (`capsid recipes list`).")]
DataSized = Annotated[
    str | None, typer.Option("--data", metavar="D", help="Show the sizes that `capsid fit` would use for this data.")
]
# Fields that describe a recipe; they are not settings.
TEXTS = ("name", "about", "paper", "deviations")


@app.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """Show all recipes by group: tokens per item, cost of a recommendation (tiger = 1), and when to use each.

    Examples:

      capsid recipes list

      capsid recipes list --json
    """
    from capsid.recipes import all_recipes
    from capsid.recipes.guide import GROUPS, UNKNOWN, advice_on

    recipes = all_recipes()
    if as_json:
        about = [{"name": r.name, "about": r.about, "paper": r.paper} for r in recipes]
        print_json([{**plain, **vars(advice_on(str(plain["name"])))} for plain in about])
        return
    for group, what in {**GROUPS, UNKNOWN.group: "from installed packages"}.items():
        own = [(r.name, advice_on(r.name)) for r in recipes if advice_on(r.name).group == group]
        if own:
            say(f"\n{group}: {what}")
            rows = [[name, _number(a.tokens), _number(a.cost), a.when] for name, a in own]
            print_table(["recipe", "tokens", "cost", "use it for"], rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


@app.command("show")
def show(name: Name, data: DataSized = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Show every setting of a recipe: the name that `capsid fit --set` takes, its value, what is allowed, what it does.

    Examples:

      capsid recipes show rq-kmeans

      capsid recipes show rq-kmeans --set tokenizer=rq-vae

      capsid recipes show capsid --data ./my-shop

      capsid recipes show sasrec --json
    """
    from capsid.recipes import get_recipe
    from capsid.settings import explain

    recipe = get_recipe(name).with_settings(settings or ())
    if data is not None:
        from capsid.data.sources import load_dataset
        from capsid.recipes.sizing import DataSize, named_in, sized

        sizing = sized(recipe, DataSize.of(load_dataset(data, progress=Console())), named_in(settings or ()))
        Console().line(str(sizing) or f"the sizes of {name} suit {sizing.size}: nothing is changed")
        recipe = sizing.recipe
    explained = [s for s in explain(recipe) if s.path not in TEXTS]
    if as_json:
        print_json({**recipe.to_dict(), "settings": [s.to_dict() for s in explained]})
        return
    say(f"{recipe.name}: {recipe.about}")
    if recipe.paper:
        say(f"paper: {recipe.paper}")
    for text in recipe.deviations:
        say(f"differs from the paper: {text}")
    for part, group in itertools.groupby(explained, key=lambda s: s.path.partition(".")[0]):
        rows = [[s.path, _shown(s.value), _allowed(s), s.rule.about] for s in group]
        say(f"\n{part}")
        print_table(["setting", "value", "allowed", "what it does"], rows)


@app.command("diff")
def diff(first: Name, second: Name, as_json: AsJson = False) -> None:
    """Show the settings in which two recipes differ.

    Examples:

      capsid recipes diff rq-kmeans sasrec

      capsid recipes diff sasrec popularity --json
    """
    from capsid.base.config import difference
    from capsid.recipes import get_recipe

    found = difference(get_recipe(first), get_recipe(second))
    if as_json:
        print_json({path: {first: a, second: b} for path, (a, b) in found.items()})
        return
    rows = [[path, _shown(a), _shown(b)] for path, (a, b) in found.items() if path not in TEXTS]
    # Empty fields of a part that only one recipe has look the same on both sides: skip them.
    rows = [row for row in rows if row[1] != row[2]]
    print_table(["setting", first, second], rows)


def _allowed(setting: Explained) -> str:
    from capsid.recipe import PLACES

    kinds = PLACES.get(setting.path)
    return f"one of {', '.join(kinds)}" if kinds else setting.rule.text


def _shown(value: object) -> str:
    if value is None or value in ("", (), []):
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
