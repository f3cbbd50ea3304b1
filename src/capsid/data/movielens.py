"""The built-in `movies`: MovieLens latest-small with facts from Wikidata, shipped as Parquet in `movies/`.

The licence files are in that folder: research use, no commercial use without permission.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from capsid.data.dataset import Dataset
from capsid.data.findings import Findings
from capsid.data.kcore import k_core
from capsid.data.tables import read_tables

FOLDER = Path(__file__).parent / "movies"
LIKED = 4.0
CORE = 5


def read_movies(*, min_rating: float = LIKED) -> Dataset:
    """Films that users liked, in time order (file order breaks ties), then the 5-core."""
    findings = Findings()
    everything = read_tables(FOLDER, findings, min_rating=min_rating)
    findings.raise_first("movies")
    liked = replace(everything, name="movies", text_fields=("title", "categories", "director"))
    core = k_core(liked, CORE)
    return replace(core, provenance={**core.provenance, "source": "MovieLens latest-small, Wikidata"})
