"""Imports any readable data into a folder of capsid's own: text files, or arrays that are mapped.

Tables that become arrays are read in blocks and may be larger than memory; everything else is loaded.
"""

from __future__ import annotations

from pathlib import Path

from capsid.data.dataset import FILE_ORDER
from capsid.data.findings import Findings
from capsid.data.kcore import check_k, k_core
from capsid.data.mapped import write_mapped
from capsid.data.prepared import write_prepared
from capsid.data.sources import SOURCES, existing_folder, form_of, load_dataset
from capsid.data.streaming import Imported, import_tables
from capsid.data.table_options import PLAIN, TableOptions
from capsid.errors import ConfigError
from capsid.progress import Progress, silent


def import_dataset(
    source: str | Path,
    out: Path,
    *,
    k: int | None = None,
    min_rating: float | None = None,
    mapped: bool = False,
    options: TableOptions = PLAIN,
    findings: Findings | None = None,
    progress: Progress = silent,
) -> Imported:
    """Write the dataset of that name or in that folder, or its k-core, to `out`: whole or not at all."""
    if k is not None:
        check_k(k)
    if mapped and str(source) not in SOURCES and form_of(existing_folder(source)) == "tables":
        if options.needed is not None:
            raise ConfigError(
                f"{options.needed} cannot be used with --mapped", hint="import without --mapped, or rename the columns"
            )
        return import_tables(existing_folder(source), out, k=k, min_rating=min_rating, progress=progress)
    dataset = load_dataset(
        source, min_rating=min_rating, ties=FILE_ORDER, options=options, findings=findings, progress=progress
    )
    if k is not None:
        dataset = k_core(dataset, k)
    (write_mapped if mapped else write_prepared)(dataset, out)
    return Imported(len(dataset.users), len(dataset.items), dataset.interactions)
