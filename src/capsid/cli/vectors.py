"""`capsid vectors`: ids from vectors you already have, for catalogues that may be larger than memory."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsid.cli.input_files import all_settings
from capsid.cli.options import (
    CHECKPOINT_EVERY,
    Address,
    CheckpointEvery,
    CodesFolder,
    ConfigFile,
    EngineName,
    Force,
    RecipeName,
    Seed,
    Settings,
    Workers,
    run_options,
    verb_group,
)
from capsid.cli.output import AsJson, print_json, say
from capsid.errors import ConfigError
from capsid.progress import Console, Progress, duration

if TYPE_CHECKING:
    from capsid.scale.shards import ShardsDone

app = verb_group("Ids from your own vectors, for catalogues that may be larger than memory.")
Vectors = Annotated[
    Path,
    typer.Option("--vectors", metavar="FILE", help="A .npy, a .parquet (item_id, vector), or a folder of .parquet."),
]
ShardRows = Annotated[int, typer.Option("--shard-rows", metavar="N", help="Items per shard.")]


@app.command("fit")
def fit(
    recipe: RecipeName,
    vectors: Vectors,
    out: Annotated[Path, typer.Option("--out", metavar="TOK", help="The folder to write.")],
    seed: Seed = 0,
    settings: Settings = None,
    config: ConfigFile = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY,
    keep: Annotated[
        bool, typer.Option("--keep-vectors/--no-vectors", help="Whether TOK holds a copy of the vectors, for reports.")
    ] = True,
    codes: CodesFolder = None,
    shard_rows: ShardRows = 65_536,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a recipe's tokenizer on vectors from a file; its encoder is not used. A stopped fit resumes.

    Item ids come from `vectors.ids.txt` beside a .npy (one per line), or from the column item_id of a .parquet.

    Examples:

      capsid vectors fit capsid --vectors items.parquet --out runs/ids

      capsid vectors fit capsid --vectors items.npy --out runs/ids --set tokenizer.codebooks=1024,1024,1024,1024

      capsid vectors fit capsid --vectors items.npy --out runs/ids --codes runs/codes
    """
    from capsid.fit.tokenizers import fit_on_vectors
    from capsid.recipes import get_recipe
    from capsid.scale.codes import encode_shards

    start, progress = time.monotonic(), Console()
    check_shard_rows(shard_rows)
    chosen = get_recipe(recipe).with_settings(all_settings(config, settings))
    run = run_options(checkpoint_every)
    fitted = fit_on_vectors(
        chosen, vectors, out, seed=seed, keep_vectors=keep, replace=force, progress=progress, run=run
    )
    if codes is not None:
        made = fitted.tokenizer
        encode_shards(
            made.tokenizer_,
            fitted.source,
            codes,
            rows_per_shard=shard_rows,
            known=made.encoded_,
            progress=progress,
        )
    seconds, about = round(time.monotonic() - start, 1), fitted.to_dict()
    if as_json:
        print_json({**about, "seconds": seconds})
        return
    say(f"{about['items']:,} items, {about['width']} wide, {duration(seconds)}")
    say(f"tokenizer: {out}\nnext:\n  capsid tokenizer report {out}")
    if codes is None:
        say(f"  capsid vectors encode {out} --vectors {vectors} --out codes")
    else:
        say(f"  capsid vectors ids {out} --codes {codes} --out catalogue")


@app.command("embed")
def embed(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the shards, one file each.")],
    data: Annotated[str | None, typer.Option("--data", metavar="D", help="A dataset, by name or folder.")] = None,
    items: Annotated[
        Path | None,
        typer.Option("--items", metavar="FILE", help="A .parquet of items or a folder of them; also .jsonl and .csv."),
    ] = None,
    fields: Annotated[
        str, typer.Option("--fields", metavar="A,B", help="Columns that make an item's text; default: the usual ones.")
    ] = "",
    model: Annotated[str, typer.Option("--model", help="Name or folder of a sentence-transformers model.")] = "minilm",
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Longer texts are cut.")] = 64,
    shard_rows: ShardRows = 8192,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="Do part I of N; run the others separately.")
    ] = "1/1",
    engine: EngineName = "here",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Write text vectors of all items as Parquet with item_id and vector. A stopped run resumes.

    A text's vector does not depend on other texts, so neither shards nor engine change it. Items without any text are
    left out. Pass the folder to `fit --vectors` and `encode --vectors`.

    Examples:

      capsid vectors embed --data movies --out runs/text

      capsid vectors embed --items items.parquet --fields title,brand --out runs/text --engine processes --workers 4
    """
    from capsid.cli.vectors import text_items
    from capsid.scale.engine import engine_named, run_job
    from capsid.scale.jobs import EmbedJob
    from capsid.scale.texts import rows_written

    chosen, which = engine_named(engine, workers=workers, address=address), parse_part(part)
    check_shard_rows(shard_rows)
    if max_tokens < 3:
        raise ConfigError(f"--max-tokens must be at least 3, got {max_tokens}", hint="such as --max-tokens 64")
    progress, start = Console(), time.monotonic()
    file, columns = text_items(data, items, fields, progress)
    job = EmbedJob.prepare(file, columns, out, model=model, max_tokens=max_tokens, rows_per_shard=shard_rows)
    shards, done = run_job(job, chosen, part=which, progress=progress)
    vectors = rows_written(shards) if done.complete else None
    left_out = 0 if vectors is None else job.rows - vectors
    more = [f"{left_out:,} items have no text and are left out"] if left_out else []
    _tell("vectors", out, done, start, {"vectors": vectors} if as_json else None, *more)


@app.command("encode")
def encode(
    path: Annotated[
        Path, typer.Argument(metavar="TOK|RUN", help="What `capsid vectors fit`, `tokenizer fit` or `fit` wrote.")
    ],
    vectors: Vectors,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the shards, one file each.")],
    shard_rows: ShardRows = 65_536,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="Encode part I of N; run the other parts separately.")
    ] = "1/1",
    engine: EngineName = "here",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Write the codes of all rows as Parquet with item_id, codes and confidences. A stopped run resumes.

    The vectors must come from the same model as those of the fit. Neither the size of the shards nor the engine
    changes the codes. Workers read the files themselves: with --address, all machines must see the same paths.

    Examples:

      capsid vectors encode runs/ids --vectors items.parquet --out runs/codes

      capsid vectors encode runs/ids --vectors items.npy --out runs/codes --engine processes --workers 4

      capsid vectors encode runs/ids --vectors items.npy --out runs/codes --engine ray --address 10.0.0.1:6379

      capsid vectors encode runs/ids --vectors items.npy --out runs/codes --shard-rows 100000 --part 1/2
    """
    from capsid.scale.engine import engine_named, run_job
    from capsid.scale.jobs import EncodeJob

    chosen, which = engine_named(engine, workers=workers, address=address), parse_part(part)
    progress, start = Console(), time.monotonic()
    job = EncodeJob.prepare(path, vectors, out, check_shard_rows(shard_rows), progress)
    _, done = run_job(job, chosen, part=which, progress=progress)
    _tell("codes", out, done, start, {} if as_json else None)


@app.command("ids")
def ids(
    path: Annotated[Path, typer.Argument(metavar="TOK|RUN", help="The tokenizer that made the codes.")],
    codes: Annotated[Path, typer.Option("--codes", metavar="FOLDER", help="What `capsid vectors encode` wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the ids, one file per shard.")],
    engine: EngineName = "here",
    workers: Workers = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Write the ids of all items as Parquet with item_id, codes and tokens, and the trie of all ids.

    Items with equal codes get the suffix of the tokenizer's collision policy, or share an id, and merges are applied.
    A stopped run resumes.

    Examples:

      capsid vectors ids runs/ids --codes runs/codes --out runs/catalogue

      capsid vectors ids runs/ids --codes runs/codes --out runs/catalogue --engine processes --workers 4
    """
    from capsid.scale.engine import engine_named, run_job
    from capsid.scale.ids import build_trie
    from capsid.scale.jobs import IdsJob

    chosen = engine_named(engine, workers=workers, address=address)
    progress, start = Console(), time.monotonic()
    job, settled = IdsJob.prepare(path, codes, out, progress)
    shards, done = run_job(job, chosen, progress=progress)
    trie = build_trie(shards, progress)
    about = {**asdict(settled), "trie_nodes": trie.nodes} if as_json else None
    _tell("ids", out, done, start, about, f"collision rate of the codes: {settled.collision_rate:.4f}")


def _tell(what: str, out: Path, done: ShardsDone, start: float, about: dict[str, Any] | None, *more: str) -> None:
    """What was done, as text, or with `about` as JSON."""
    if about is not None:
        print_json({"folder": str(out), **asdict(done), **about})
        return
    say(f"{done.items:,} items in {done.shards:,} shards, {duration(time.monotonic() - start)}")
    for line in more:
        say(line)
    say(f"{what}: {out}" if done.complete else f"{what}: {out} (other parts are not finished yet)")


def parse_part(part: str) -> tuple[int, int]:
    """`I/N` as two numbers."""
    asked = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part)
    if not asked:
        raise ConfigError(f"--part must be I/N, got {part!r}", hint="write 1/2 for the first of two parts")
    return int(asked[1]), int(asked[2])


def check_shard_rows(rows: int) -> int:
    """Check the number of `--shard-rows`."""
    if rows < 1:
        raise ConfigError(f"--shard-rows must be at least 1, got {rows}", hint="such as --shard-rows 65536")
    return rows


def text_items(data: str | None, items: Path | None, fields: str, progress: Progress) -> tuple[Path, tuple[str, ...]]:
    """The file or folder of items and the columns of their text; other forms are rewritten as Parquet once."""
    from capsid.base.storage.artifacts import file_hash
    from capsid.cli.input_files import read_items_file
    from capsid.data.dataset import choose_text_fields
    from capsid.data.sources import as_dataset
    from capsid.scale.texts import stored_items

    if (data is None) == (items is None):
        raise ConfigError("give either --data or --items", hint="such as --data movies, or --items items.parquet")
    named = tuple(field.strip() for field in fields.split(",") if field.strip())
    if data is not None:
        dataset = as_dataset(data, progress=progress)
        chosen = _known(named or dataset.text_fields, dataset.attributes.columns)
        return stored_items(dataset.items, dataset.attributes, chosen, dataset.fingerprint), chosen
    assert items is not None
    if items.is_dir() or items.suffix == ".parquet":
        return items, named or _usual(items)
    ids, attributes = read_items_file(items)
    chosen = _known(named or choose_text_fields(attributes), attributes.columns)
    return stored_items(ids, attributes, chosen, file_hash(items)), chosen


def _usual(items: Path) -> tuple[str, ...]:
    """The usual fields, judged by the first rows of the first file."""
    import polars as pl

    from capsid.data.dataset import choose_text_fields
    from capsid.errors import DataError, reason_of

    files = sorted(items.glob("*.parquet")) if items.is_dir() else [items]
    try:
        return choose_text_fields(pl.read_parquet(files[0], n_rows=1000)) if files else ()
    except (OSError, pl.exceptions.PolarsError) as error:
        message = f"{files[0]} could not be read: {reason_of(error)}"
        raise DataError(message, hint="the file may be truncated") from None


def _known(fields: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    from capsid.errors import nearest

    for field in fields:
        if field not in columns:
            raise ConfigError(f"the items have no text field {field!r}", hint=nearest(field, columns))
    return fields
