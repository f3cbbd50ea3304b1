"""`capsid tokenizer`: fit a tokenizer without a generator, give ids to items, and inspect ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from capsid.cli.input_files import all_settings
from capsid.cli.options import (
    CHECKPOINT_EVERY,
    CheckpointEvery,
    CodesFolder,
    ConfigFile,
    Data,
    Device,
    Exact,
    Force,
    OwnVectors,
    RecipeName,
    Seed,
    Settings,
    Ties,
    run_options,
    verb_group,
)
from capsid.cli.output import AsJson, OutputFile, check_items, json_line, parse_k, print_json, print_table, say
from capsid.errors import ConfigError
from capsid.progress import Console

# Items whose vectors a report uses: routing all of a catalogue of millions takes more memory than its fit.
REPORT_ITEMS = 200_000
app = verb_group("Fit a tokenizer alone; look at the ids of a tokenizer or a run.")
Either = Annotated[Path, typer.Argument(metavar="TOK|RUN", help="What `capsid tokenizer fit` or `capsid fit` wrote.")]


@app.command("fit")
def fit(
    recipe: RecipeName,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="TOK", help="The folder to write.")],
    seed: Seed = 0,
    vectors: OwnVectors = None,
    settings: Settings = None,
    config: ConfigFile = None,
    exact: Exact = False,
    ties: Ties = None,
    device: Device = "cpu",
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    codes: CodesFolder = None,
    force: Force = False,
) -> None:
    """Fit a recipe's encoder, tokenizer and merges on the training part of a dataset; no generator is trained.

    Codebooks adapt to the number of items, unless --set or --config sets them. A stopped fit resumes when the same
    command is given again.

    Examples:

      capsid tokenizer fit capsid --data movies --out runs/film-ids

      capsid tokenizer fit capsid --data ./my-shop --out ids --set tokenizer.codebooks=64,64,64

      capsid tokenizer fit capsid-bpe --data movies --out runs/film-ids --set merges.size=512

      capsid tokenizer fit capsid-bpe --data ./mapped --vectors items.npy --out runs/ids --codes runs/codes
    """
    from capsid.base.devices import choose
    from capsid.base.storage.artifacts import reserved
    from capsid.data.sources import load_dataset
    from capsid.fit.tokenizers import fit_tokenizer
    from capsid.recommender import Recommender
    from capsid.scale.codes import encode_fitted
    from capsid.tokenize.item_tokenizer import KIND

    progress, run = Console(), run_options(checkpoint_every, device=str(choose(device)))
    changes = all_settings(config, settings)
    wanted = Recommender.from_recipe(recipe, settings=changes, vectors=vectors, sizes="exact" if exact else "auto")
    if codes is not None and wanted.recipe.encoder is None:
        raise ConfigError(
            f"the recipe {recipe!r} makes ids without vectors, so there are no shards of codes",
            hint="leave --codes out",
        )
    with reserved(out, kind=KIND, replace=force):
        dataset = load_dataset(data, ties=ties, progress=progress)
        if (sizing := wanted.size_to(dataset)) is not None and (told := str(sizing.of_ids)):
            progress.line(told)
        fitted = fit_tokenizer(wanted.recipe, dataset, out, seed=seed, replace=force, progress=progress, run=run)
        if codes is not None:
            encode_fitted(fitted, codes, progress=progress)
    say(f"tokenizer: {out}\nnext:\n  capsid tokenizer report {out}")


@app.command("encode")
def encode(
    path: Either,
    items: Annotated[
        Path, typer.Option("--items", metavar="FILE", help="Items with item_id: .jsonl(.gz), .parquet or .csv.")
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE.jsonl", help="The file to write; - is standard output.")
    ] = "-",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value: known, new, drift, and the items where --out is -.")
    ] = False,
    force: Force = False,
) -> None:
    """Write ids as `export` does. Known items keep theirs; new ones are encoded from their attributes.

    If the tokenizer routes, new items are compared with those it was fitted on.

    Examples:

      capsid tokenizer encode runs/film-ids --items new-films.jsonl

      capsid tokenizer encode runs/films --items new-films.csv --out new-ids.jsonl --json
    """
    import polars as pl

    from capsid.cli.input_files import read_items_file
    from capsid.cli.tokenizer_shown import drift_text
    from capsid.fit.tokenizers import open_tokenizer

    file = OutputFile.check(out, force=force)
    opened = open_tokenizer(path)
    names, attributes = read_items_file(items)
    new = [i for i, name in enumerate(names) if name not in opened.items]
    Console().line(f"{len(names) - len(new):,} known items keep their ids, {len(new):,} are new")
    if new:
        frame = attributes[new].with_columns(pl.Series("item_id", names.ids(new), dtype=pl.String))
        opened = replace(opened, tokenizer=opened.tokenizer.with_items(frame))
    drift = opened.drift(names.ids(new))
    if drift is not None:
        Console().line(drift_text(drift))
    lines = [line.to_dict() for line in opened.lines(names)]
    if not file.printed or not as_json:
        _write(file, lines)
    if as_json:
        about = {"known": len(names) - len(new), "new": len(new), "drift": drift and drift.to_dict()}
        print_json({**about, "items": lines} if file.printed else about)


@app.command("add")
def add(
    path: Either,
    items: Annotated[
        Path, typer.Option("--items", metavar="FILE", help="New items with item_id: .jsonl(.gz), .parquet or .csv.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="NEW", help="The folder to write; TOK|RUN is not changed.")],
    vectors: OwnVectors = None,
    force: Force = False,
) -> None:
    """Give ids to new items without retraining; a run can then recommend them. Old ids do not change.

    If the tokenizer routes, new items are compared with those it was fitted on; large drift means it is time to refit.
    If it was fitted with --vectors, new items need vectors too: in the file of the fit, or in another one.

    Examples:

      capsid tokenizer add runs/films --items new-films.jsonl --out runs/films-today

      capsid tokenizer add runs/shop --items new.csv --vectors new-embeddings.npz --out runs/shop-today
    """
    import polars as pl

    from capsid.cli.input_files import read_items_file
    from capsid.cli.tokenizer_shown import drift_text
    from capsid.fit.tokenizers import add_items

    names, attributes = read_items_file(items)
    frame = attributes.with_columns(pl.Series("item_id", list(names), dtype=pl.String))
    drift = add_items(path, frame, out, vectors=vectors, replace=force)
    if drift is not None:
        Console().line(drift_text(drift))
    say(f"{len(names):,} items added: {out}")


@app.command("report")
def report(
    path: Either,
    as_json: AsJson = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="FOLDER", help="Plot lengths, code use, stop causes and routing.")
    ] = None,
) -> None:
    """Show collisions, code usage, similarity inside a code, lengths, reconstruction, routing and merges.

    Counts are those of all items; where vectors are needed, those of at most 200,000 items are used.

    Examples:

      capsid tokenizer report runs/film-ids

      capsid tokenizer report runs/films --json

      capsid tokenizer report runs/films --plots film-plots
    """
    from capsid.cli.tokenizer_shown import report_rows, write_plots
    from capsid.fit.tokenizers import open_tokenizer

    opened = open_tokenizer(path)
    quality = opened.quality(most=REPORT_ITEMS)
    if plots is not None:
        for file in write_plots(plots, quality, opened.use()):
            Console().line(f"plot: {file}")
    if as_json:
        print_json(quality.to_dict())
    else:
        print_table(["measure", "value"], report_rows(quality.to_dict()))


@app.command("inspect")
def inspect(
    path: Either,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item's id.")],
    as_json: AsJson = False,
) -> None:
    """Show an item's codes and tokens, what was merged, which items share its first codes, and how it was routed.

    Examples:

      capsid tokenizer inspect runs/films 1

      capsid tokenizer inspect runs/film-ids 318 --json
    """
    from capsid.cli.tokenizer_shown import item_text
    from capsid.fit.tokenizers import open_tokenizer

    opened = open_tokenizer(path)
    check_items([item], opened.items, opened.title)
    about = opened.inspect(item)
    print_json(about.to_dict()) if as_json else say(item_text(about))


@app.command("facets")
def facets(
    path: Either,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    depth: Annotated[int, typer.Option("--depth", help="Depth of the codes; 1 is the first code.")] = 1,
    as_json: AsJson = False,
) -> None:
    """List items that capsules route to two facets at once, with the meaning of both.

    Examples:

      capsid tokenizer facets runs/films

      capsid tokenizer facets runs/film-ids -k 3 --depth 2 --json
    """
    from capsid.cli.tokenizer_shown import facets_text
    from capsid.fit.tokenizers import open_tokenizer

    count = parse_k(k)
    found = open_tokenizer(path).facets(depth=depth, count=count)
    print_json(found.to_dict()) if as_json else say(facets_text(found))


@app.command("merges")
def merges(
    path: Either,
    top: Annotated[int, typer.Option("--top", metavar="N", help="How many merged tokens.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List the merged tokens most frequent in training: codes, items with examples, tiers, lengths before and after.

    Examples:

      capsid tokenizer merges runs/film-ids

      capsid tokenizer merges runs/films --top 50 --json
    """
    from capsid.cli.tokenizer_shown import merges_text
    from capsid.evaluate.metrics import check_k
    from capsid.fit.tokenizers import open_tokenizer

    check_k(top, "--top")
    found = open_tokenizer(path).merges(top=top)
    print_json(found.to_dict()) if as_json else say(merges_text(found))


@app.command("export")
def export(
    path: Either,
    out: Annotated[str, typer.Option("--out", metavar="FILE.jsonl", help="The file to write; - is standard output.")],
    force: Force = False,
) -> None:
    """Write one line per item: {"item", "codes" by depth, "tokens" (global, no end token), "confidences"}.

    Examples:

      capsid tokenizer export runs/films --out ids.jsonl

      capsid tokenizer export runs/film-ids --out - | head -3
    """
    from capsid.fit.tokenizers import open_tokenizer

    file = OutputFile.check(out, force=force)
    opened = open_tokenizer(path)
    _write(file, [line.to_dict() for line in opened.lines(opened.items)])


def _write(file: OutputFile, lines: list[dict[str, Any]]) -> None:
    file.write("".join(map(json_line, lines)))
    if not file.printed:
        Console().line(f"{len(lines):,} items: {file.name}")
