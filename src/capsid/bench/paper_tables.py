"""The paper's tables from our own store, one function each. A number that was not measured is left empty.

Every function takes the finished cells by plan and returns a `Table`. The measures are defined in `capsid.evaluate`
(docs/protocol.md). The paper's values are shown beside ours, and the table's writer marks them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from capsid.base.popularity import TIERS
from capsid.bench.plans import POSITIONS, read_plan
from capsid.bench.published import published_table
from capsid.bench.rows import (
    BASELINE,
    BEAUTY,
    DATASETS,
    FEW_SEEDS,
    FULL,
    HOLM,
    MARKS,
    PAPER_METRICS,
    Source,
    by_seed,
    comparable,
    compared,
    corrected,
    id_values,
    in_order,
    main_rows,
    main_value,
    mark_of,
    metric_values,
    number,
    paper,
    remarks,
    short_name,
    tier_values,
    with_own_ids,
)
from capsid.bench.table import Column, Entry, Row, Table
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.rivals.actionpiece import Pieces

COLD = 5
COST_NOTE = f"Cost: time of a recommendation, {BASELINE} = 1, all rows measured in one run (benchmarks/decode_cost.py)."
# Numbers of a tokenizer's report that the table of ids shows.
QUALITY = (
    *("collision_rate", "utilization", "gini", "intra_code_similarity", "mean_similarity"),
    *("mean_length", "mean_tokens"),
)


def main_table(source: Source) -> Table:
    """Recall and NDCG of every method on every dataset; methods that were not run show only the paper's numbers."""
    cells = source.plan("main")
    datasets = [d for d in DATASETS if d == BEAUTY or len(cells.select(dataset=d))]
    columns = [Column(f"{DATASETS[d]} {short_name(m)}") for d in datasets for m in PAPER_METRICS]
    costs = source.costs()
    if costs:
        columns.append(Column("cost", None, 2, 1, "x"))
    rows = []
    for label in dict.fromkeys((*main_rows(), *(c.label for c in cells))):
        entries = [
            Entry(metric_values(cells, label, d, m, source.evaluation), main_value(label, d, m))
            for d in datasets
            for m in PAPER_METRICS
        ]
        if costs:
            entries.append(Entry((costs[label],) if label in costs else ()))
        mark = mark_of(label)
        rows.append(Row(label, tuple(entries), f" {mark}" if mark else "", context=not comparable(label)))
    notes = [
        f"Evaluation: {source.evaluation}; whole catalogue ranked; mean and standard deviation over several seeds.",
        "Methods without ids, and rows with another input or budget, are never bold or underlined.",
        "atomic: one token per item, with the generator of the rows with ids.",
        *((COST_NOTE,) if costs else ()),
        *(f"{sign} {text}." for sign, text in MARKS.items() if any(sign in row.mark for row in rows)),
        *remarks(cells),
    ]
    absent = _only_cost(rows)
    return Table("main", "Main results", tuple(columns), tuple(rows), notes=tuple(notes), absent=absent)


def _only_cost(rows: Sequence[Row]) -> tuple[str, ...]:
    """Rows whose search was measured, in the last column, but not their accuracy: they have not been run."""
    return tuple(row.label for row in rows if row.measured and not any(entry.values for entry in row.entries[:-1]))


def significance_table(source: Source) -> Table:
    """The full system against every other method, Recall@10: bootstrap over users and seeds, and the paper's t-test."""
    cells = source.plan("main")
    rows = []
    for dataset in DATASETS:
        ours = by_seed(cells, FULL, dataset)
        for label in dict.fromkeys(c.label for c in cells.select(dataset=dataset)):
            other = by_seed(cells, label, dataset)
            if label != FULL and ours and other:
                rows.append(Row(f"{DATASETS[dataset]}: {label}", compared(cells, ours, other, source.evaluation)))
    rows = corrected(rows, 2)
    columns = (
        Column("difference", None, 4),
        Column("95 % interval", None),
        Column("bootstrap p", None, 4),
        Column("Holm p", None, 4),
        Column("t-test p", None, 4),
    )
    notes = (
        f"{FULL} minus the row, Recall@10; users and the seeds of each row are drawn with replacement.",
        FEW_SEEDS,
        HOLM,
        "The t-test is the paper's: paired over seeds; it needs two seeds of both rows and says little with three.",
        *remarks(cells),
    )
    absent = _rows_beyond({c.label for c in cells})
    return Table("significance", f"Is {FULL} better?", columns, tuple(rows), "against", notes, absent)


def ablation_table(source: Source) -> Table:
    """The full system with one mechanism removed at a time."""
    cells = source.plan("ablation")
    full = Entry(metric_values(cells, "full", BEAUTY, "recall@10", source.evaluation)).mean
    unchanged = by_seed(cells, "full", BEAUTY)
    whole = number("ablation", "full")
    rows = []
    for label in _plan_labels("ablation"):
        theirs = number("ablation", label)
        own = Entry(metric_values(cells, label, BEAUTY, "recall@10", source.evaluation), theirs)
        drop = (own.mean / full - 1,) if own.mean is not None and full and label != "full" else ()
        paper_drop = theirs / whole - 1 if theirs is not None and whole and label != "full" else None
        lengths = id_values(cells, label, BEAUTY, "mean_tokens")
        changed = by_seed(cells, label, BEAUTY)
        against = compared(cells, changed, unchanged, source.evaluation)[1:3] if drop else (Entry(), Entry())
        rows.append(Row(label, (own, Entry(drop, paper_drop), *against, Entry(lengths))))
    columns = (
        Column("Recall@10"),
        Column("drop", None, 1, 100, "%"),
        Column("95 % interval", None),
        Column("bootstrap p", None, 4),
        Column("tokens per item", None, 2),
    )
    notes = (
        "Interval and p: the row minus full, bootstrapped over users; they do not cover the variation between seeds.",
        *remarks(cells, [BEAUTY]),
    )
    return Table("ablation", "Ablation on Beauty", columns, tuple(rows), "variant", notes)


def sensitivity_table(source: Source) -> Table:
    """Other rounds, depths, thresholds and weights."""
    cells = source.plan("sensitivity")
    rows = []
    for label in dict.fromkeys((*_plan_labels("sensitivity"), *(c.label for c in cells))):
        recall = metric_values(cells, label, BEAUTY, "recall@10", source.evaluation)
        length = id_values(cells, label, BEAUTY, "mean_length")
        entries = (
            Entry(recall, number("sensitivity", label, 0)),
            Entry(length, number("sensitivity", label, 1)),
            Entry(id_values(cells, label, BEAUTY, "collision_rate")),
        )
        rows.append(Row(label, entries))
    columns = (Column("Recall@10"), Column("codes per item", None, 2), Column("collisions", None, 1, 100, "%"))
    return Table("sensitivity", "Sensitivity on Beauty", columns, tuple(rows), "setting", remarks(cells, [BEAUTY]))


def quality_table(source: Source) -> Table:
    """Ids of every row that has its own, before and after training a generator on them, Beauty."""
    cells = source.plan("main")
    rows = []
    for label in in_order((*paper()["tokenizer-quality"], *with_own_ids())):
        ids = {name: id_values(cells, label, BEAUTY, name) for name in QUALITY}
        found = [(c, c.evaluations.get(source.evaluation, {})) for c in by_seed(cells, label, BEAUTY)]
        recall, chance = (
            tuple(float(e[name]) for _, e in found if e.get(name) is not None)
            for name in ("code_recall@50", "code_chance@50")
        )
        seconds = tuple(float(c.seconds["tokenizer"]) for c, _ in found if "tokenizer" in c.seconds)
        five = (ids["collision_rate"], ids["utilization"], ids["gini"], ids["intra_code_similarity"], recall)
        entries = [Entry(v, number("tokenizer-quality", label, place)) for place, v in enumerate(five)]
        entries.insert(4, Entry(ids["mean_similarity"]))
        others = (Entry(v) for v in (chance, ids["mean_length"], ids["mean_tokens"], seconds))
        rows.append(Row(label, (*entries, *others), context=not comparable(label)))
    columns = (
        Column("collisions", "low", 1, 100, "%"),
        Column("utilization", "high", 1, 100, "%"),
        Column("Gini", "low", 2),
        Column("intra-code similarity", "high", 3),
        Column("of any two items", None, 3),
        Column("code recall@50", None, 3),
        Column("by chance", None, 3),
        Column("codes per item", None, 2),
        Column("tokens per item", None, 2),
        Column("fit, s", None, 0),
    )
    notes = (
        "Collisions are on codes, before any policy; utilization and Gini are means over depths.",
        "Similarity is that of the vectors that ids are made from; rows with other vectors are not marked best.",
        "Code recall@50: how often the first code is among the 50 most probable; compare only rows with equal chance.",
        "Fit: wall-clock time on the machine that ran the cell, without item vectors and without joint training.",
        *remarks(cells, [BEAUTY], [row.label for row in rows]),
    )
    return Table("tokenizer-quality", "Quality of ids on Beauty", columns, tuple(rows), "tokenizer", notes)


def datasets_table(source: Source) -> Table:
    """Sizes as the runs saw them."""
    rows = []
    cells = source.plan("main")
    for dataset, short in DATASETS.items():
        theirs = paper()["datasets"][short]
        seen = [c.data for c in cells.select(dataset=dataset)][:1]
        ours = [tuple(float(d[n]) for d in seen) for n in ("users", "items", "interactions")]
        mean = tuple(float(d["interactions"]) / float(d["users"]) for d in seen)
        rows.append(Row(short, (*(Entry(v, float(p)) for v, p in zip(ours, theirs)), Entry(mean))))
    columns = (
        *(Column(n, None, 0) for n in ("users", "items", "interactions")),
        Column("interactions per user", None, 1),
    )
    return Table("datasets", "Datasets", columns, tuple(rows), "dataset")


def tiers_table(source: Source) -> Table:
    """Recall@10 by the popularity of the target, Beauty."""
    cells = source.plan("main")
    rows = []
    run = [c.label for c in cells.select(dataset=BEAUTY)]
    for label in in_order(run):
        tiers = tier_values(cells, label, BEAUTY, "recall@10", source.evaluation)
        theirs = (None, None, paper()["tail"].get(label))
        rows.append(_beside(label, tiers, theirs))
    columns = tuple(Column(t) for t in TIERS)
    notes = (
        "Head: the most popular 20 % of the items; torso: the next 40 %; tail: the rest (docs/protocol.md).",
        *remarks(cells, [BEAUTY]),
    )
    return Table(
        "tiers", "Recall@10 by popularity on Beauty", columns, tuple(rows), notes=notes, absent=_rows_beyond(run)
    )


def cold_start_table(source: Source) -> Table:
    """Users whose next item had fewer than five training interactions, Beauty."""
    cells = source.plan("main")
    rows = []
    shown = in_order((*paper()["cold-start"], *(c.label for c in cells.select(dataset=BEAUTY))))
    for label in shown:
        whole, cold = [], []
        for cell in by_seed(cells, label, BEAUTY):
            values = cells.values(cell, source.evaluation, "recall@10")
            rare = cells.values(cell, source.evaluation, "target_count") < COLD
            whole.append(float(values.mean()))
            cold.append(float(values[rare].mean()) if rare.any() else 0.0)
        kept = tuple(c / w for c, w in zip(cold, whole) if w)
        entries = (tuple(whole), tuple(cold), kept)
        theirs = [number("cold-start", label, place) for place in range(3)]
        rows.append(_beside(label, entries, theirs))
    columns = (Column("Recall@10"), Column("cold Recall@10"), Column("kept", "high", 1, 100, "%"))
    notes = (
        f"Cold: the next item has fewer than {COLD} training interactions. Kept: cold Recall@10 over Recall@10.",
        *remarks(cells, [BEAUTY]),
    )
    return Table("cold-start", "Cold items on Beauty", columns, tuple(rows), notes=notes, absent=_rows_beyond(shown))


def positions_table(source: Source) -> Table:
    """Top-1 and top-5 accuracy of the codes, position by position, Beauty."""
    cells = source.plan("main")
    rows = []
    most = 6
    seen = [c.label for c in cells.select(dataset=BEAUTY) if POSITIONS in c.evaluations]
    for label in in_order((*paper()["per-position"], *seen)):
        found = [c.evaluations.get("positions") for c in by_seed(cells, label, BEAUTY)]
        theirs = paper()["per-position"].get(label, [])
        entries = []
        for place in range(most):
            for which, name in enumerate(("top1", "top5")):
                ours = tuple(float(p[name][place]) for p in found if p and place < len(p[name]))
                entries.append(Entry(ours, theirs[place][which] if place < len(theirs) else None))
        rows.append(Row(label, tuple(entries)))
    columns = tuple(Column(f"{p} {t}", "high", 1, 100) for p in range(1, most + 1) for t in ("top 1", "top 5"))
    notes = (
        "Percent of the targets that reach the position, measured on codes even if tokens are merged.",
        "A code's probability is that of all items that continue the correct prefix with it; exact, on some users.",
        f"Only cells that the plan evaluates by position ({POSITIONS!r}) can be here.",
        *remarks(cells, [BEAUTY], [row.label for row in rows]),
    )
    return Table("per-position", "Accuracy by position on Beauty", columns, tuple(rows), notes=notes)


def design_space_table(source: Source) -> Table:
    """The design of each recipe, read from its parts."""
    rows = [Row(name, tuple(Entry(text=t) for t in _design(recipe))) for name, recipe in RECIPES.items()]
    heads = ("soft assignment", "rounds of agreement", "length", "subwords", "ids alone")
    return Table("design-space", "Design space", tuple(Column(h, None) for h in heads), tuple(rows))


def hyperparameters_table(source: Source) -> Table:
    """The full system's settings beside the paper's."""
    recipe = RECIPES[FULL]
    t: Any = recipe.tokenizer
    m: Any = recipe.merges
    pairs = [
        ("capsules per depth", t.codebooks[0], "256"),
        ("capsule width", t.dim or "as the vectors", "64"),
        ("rounds T", t.rounds, "3"),
        ("longest id", len(t.codebooks), "6"),
        ("confidence tau", t.confidence if not t.max_sharing else f"{t.confidence:g} and a unique prefix", "0.82"),
        ("residual epsilon", t.residual, "0.08"),
        ("alpha", " to ".join(f"{a:g}" for a in m.alpha), "0.6"),
        ("theta", " to ".join(f"{v:g}" for v in m.theta), "0.90 to 0.55"),
        ("least pair count", m.min_count, "20"),
        ("merges", m.size, "not said"),
        ("weight of reconstruction", f"1, of the codes {t.codes_weight:g}", "1"),
        ("weight of spread", t.spread_weight, "0.1"),
        ("weight of length", t.length_weight, "0.05"),
        ("weight of balance", t.balance_weight, "none"),
    ]
    rows = tuple(Row(name, (Entry(text=str(ours)), Entry(text=f"[{theirs}]"))) for name, ours, theirs in pairs)
    notes = ("The right column is the paper's.",)
    columns = (Column(FULL, None), Column("paper", None))
    return Table("hyperparameters", "Settings of the full system", columns, rows, "setting", notes)


def patching_table(source: Source) -> Table:
    """Dense patches against better ids, with the cost of a recommendation relative to the baseline."""
    cells = source.plan("main")
    costs = source.costs()
    rows = []
    # The paper's rows, and whatever else has something beside ids.
    for label in in_order((*paper()["patching"], *(label for label in main_rows() if "†" in mark_of(label)))):
        found = [metric_values(cells, label, BEAUTY, m, source.evaluation) for m in ("recall@10", "ndcg@10")]
        cost = (costs[label],) if label in costs else ()
        theirs = [number("patching", label, place) for place in range(3)]
        rows.append(Row(label, tuple(map(Entry, (*found, cost), theirs))))
    columns = (Column("Recall@10"), Column("NDCG@10"), Column("cost", "low", 2, 1, "x"))
    notes = [COST_NOTE]
    unmeasured = [row.label for row in rows if row.measured and not row.entries[2].values]
    if unmeasured:
        notes.append(f"Cost not measured: {'; '.join(unmeasured)}.")
    notes += remarks(cells, [BEAUTY], [row.label for row in rows])
    title = "Patching against better ids, Beauty"
    return Table("patching", title, columns, tuple(rows), "configuration", tuple(notes), _only_cost(rows))


TABLES: dict[str, Callable[[Source], Table]] = {
    "design-space": design_space_table,
    "datasets": datasets_table,
    "hyperparameters": hyperparameters_table,
    "main": main_table,
    "significance": significance_table,
    "published": published_table,
    "patching": patching_table,
    "ablation": ablation_table,
    "tokenizer-quality": quality_table,
    "sensitivity": sensitivity_table,
    "per-position": positions_table,
    "cold-start": cold_start_table,
    "tiers": tiers_table,
}


def _beside(label: str, values: Iterable[tuple[float, ...]], theirs: Iterable[float | None]) -> Row:
    """A row with the paper's numbers beside ours."""
    return Row(label, tuple(map(Entry, values, theirs)), context=not comparable(label))


def _rows_beyond(run: Collection[str]) -> tuple[str, ...]:
    """The rows of the main table that were not run."""
    return tuple(label for label in main_rows() if label not in run)


def _plan_labels(name: str) -> list[str]:
    return list(dict.fromkeys(c.label for c in read_plan(name).cells))


def _design(recipe: Recipe) -> tuple[str, ...]:
    tokenizer: Mapping[str, Any] = recipe.to_dict()["tokenizer"]
    routes = tokenizer["kind"] == "capsules"
    soft = "routing" if routes and tokenizer["winner"] == "soft" else "no"
    if routes and tokenizer["max_sharing"]:
        length = "ends where it is unique"
    elif tokenizer.get("crowd"):
        length = "more for popular prefixes"
    elif tokenizer["kind"] == "mixture":
        length = "more for much behaviour"
    else:
        length = "confidence" if routes else "fixed"
    merges = recipe.merges
    by_count = isinstance(merges, SemanticBPE) and merges.frequency_only
    subwords = "no" if merges is None else ("frequency" if by_count else "frequency and meaning")
    if isinstance(merges, Pieces):
        subwords = "frequency, across items"
    alone = "no" if recipe.to_dict()["decoder"].get("kind") == "fusion" else "yes"
    return soft, str(tokenizer["rounds"]) if routes else "none", length, subwords, alone
