"""`capsid tokenizer`: fit a tokenizer alone, give ids to items, and look at the ids of a tokenizer or a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from capsid.cli.output import check_items, json_line, print_json, print_table
from capsid.errors import ArtifactError
from capsid.progress import Console

app = typer.Typer(
    help="Fit a tokenizer alone; look at the ids of a tokenizer or a run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Either = Annotated[Path, typer.Argument(metavar="TOK|RUN", help="What `capsid tokenizer fit` or `capsid fit` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("fit")
def fit(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe (`capsid recipes list`).")],
    data: Annotated[str, typer.Option("--data", metavar="D", help="A name (`capsid data list`) or a folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="TOK", help="The folder to write.")],
    seed: Annotated[int, typer.Option("--seed", help="Another seed gives other ids.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="part.field=value", help="Change a setting (`capsid recipes show`); repeatable."),
    ] = None,
) -> None:
    """Fit a recipe's encoder and tokenizer on the training part of a dataset; no generator is trained.

    Examples:

      capsid tokenizer fit rq-kmeans --data movies --out runs/film-ids

      capsid tokenizer fit rq-kmeans --data ./my-shop --out ids --set tokenizer.codebooks=64,64,64
    """
    from capsid.artifacts import check_place
    from capsid.cli.tokenizer_files import save_tokenizer
    from capsid.data.sources import load_dataset
    from capsid.recipes import get_recipe
    from capsid.tokenize.item_tokenizer import ItemTokenizer

    progress = Console()
    chosen = get_recipe(recipe).with_settings(settings or ())
    check_place(out)
    dataset = load_dataset(data, progress=progress)
    parts = ItemTokenizer(encoder=chosen.encoder, tokenizer=chosen.tokenizer, collisions=chosen.collisions)
    save_tokenizer(out, parts.fit(dataset, seed=seed, progress=progress), dataset, chosen.name, seed)
    print(f"tokenizer: {out}\nnext:\n  capsid tokenizer report {out}")


@app.command("encode")
def encode(
    path: Either,
    items: Annotated[
        Path, typer.Option("--items", metavar="FILE", help="Items with item_id: .jsonl(.gz), .parquet or .csv.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE.jsonl", help="The file to write; - is printed.")] = "-",
) -> None:
    """Give items ids, a line an item as in `export`. Known items keep theirs; new ones are placed by their attributes.

    Examples:

      capsid tokenizer encode runs/film-ids --items new-films.jsonl

      capsid tokenizer encode runs/films --items new-films.csv --out new-ids.jsonl
    """
    import polars as pl

    from capsid.cli.items_file import read_items_file
    from capsid.cli.tokenizer_files import open_tokenizer

    opened = open_tokenizer(path)
    names, attributes = read_items_file(items)
    new = [i for i, name in enumerate(names) if name not in opened.items]
    Console().line(f"{len(names) - len(new):,} known items keep their ids, {len(new):,} are new")
    if new:
        opened.tokenizer.add(attributes[new].with_columns(pl.Series("item_id", names.ids(new), dtype=pl.String)))
    _write(out, "".join(json_line(opened.line(name)) for name in names))


@app.command("report")
def report(path: Either, as_json: AsJson = False) -> None:
    """Show collisions, use of the codebooks, similarity inside a code, lengths, reconstruction.

    Examples:

      capsid tokenizer report runs/film-ids

      capsid tokenizer report runs/films --json
    """
    from capsid.cli.tokenizer_files import open_tokenizer

    quality = open_tokenizer(path).quality().to_dict()
    if as_json:
        print_json(quality)
    else:
        print_table(["measure", "value"], [[name.replace("_", " "), _shown(value)] for name, value in _rows(quality)])


@app.command("inspect")
def inspect(
    path: Either,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item's id.")],
    as_json: AsJson = False,
) -> None:
    """Show an item's codes and tokens, and which items share its first codes.

    Examples:

      capsid tokenizer inspect runs/films 1

      capsid tokenizer inspect runs/film-ids 318 --json
    """
    from capsid.cli.tokenizer_files import open_tokenizer

    opened = open_tokenizer(path)
    check_items([item], opened.items, opened.title)
    about = opened.inspect(item)
    if as_json:
        print_json(about)
        return
    print(f"{about['item']}  {about['title']}")
    print(f"codes   {' '.join(map(str, about['codes']))}")
    print(f"tokens  {' '.join(map(str, about['tokens']))}")
    for level in about["prefixes"]:
        print(f"\n{level['items'] - 1:,} other items share the codes {' '.join(map(str, level['codes']))}")
        for other in level["examples"]:
            print(f"  {other['item']}  {other['title']}")


@app.command("export")
def export(
    path: Either,
    out: Annotated[str, typer.Option("--out", metavar="FILE.jsonl", help="The file to write; - is printed.")],
) -> None:
    """Write a line an item: {"item", "codes" by depth, "tokens" (global, no end token), "confidences"}.

    Examples:

      capsid tokenizer export runs/films --out ids.jsonl

      capsid tokenizer export runs/film-ids --out - | head -3
    """
    from capsid.cli.tokenizer_files import open_tokenizer

    opened = open_tokenizer(path)
    _write(out, "".join(json_line(opened.line(item)) for item in opened.items))


def _write(out: str, text: str) -> None:
    from capsid.artifacts import write_bytes

    if out == "-":
        sys.stdout.write(text)
        return
    if Path(out).is_dir():
        raise ArtifactError(f"{out} is a folder", hint="give a file, such as ids.jsonl, or - to print")
    write_bytes(Path(out), text.encode())
    Console().line(f"{text.count(chr(10)):,} items: {out}")


def _rows(quality: dict[str, Any]) -> list[tuple[str, Any]]:
    reconstruction = quality.pop("reconstruction")
    return [*quality.items(), *((f"reconstruction {kind}", value) for kind, value in reconstruction.items())]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, tuple | list):
        return "  ".join(_shown(v) for v in value)
    if isinstance(value, dict):
        return "  ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
