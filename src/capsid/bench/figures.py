"""The paper's figures from our own store, as PNG or SVG. Uses the results of the lowest seed.

A figure without results is not drawn; the error says what to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from capsid.base.plots import COLOURS, figure_bytes
from capsid.base.popularity import TIERS
from capsid.bench.results import Result, Results
from capsid.bench.rows import BASELINE, BEAUTY, DATASETS, FULL, Source, first_seed, has_ids, in_order, number
from capsid.errors import ConfigError
from capsid.ragged import Ragged

TOP = 32


def draw(name: str, source: Source, form: str = "svg") -> bytes:
    """Draw one figure and return the bytes of the file."""
    cells = source.plan("main")
    style = {"font_size": 9, "axes_titlesize": 11}
    return figure_bytes(lambda figure: FIGURES[name](figure, cells, source), (6.4, 3.8), form, 150, **style)


def _lengths(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    found = _needed([(d, first_seed(cells, "capsid", d)) for d in DATASETS], "capsid")
    for place, (dataset, cell) in enumerate(found):
        counts = {int(k): int(v) for k, v in cell.ids["length_histogram"].items()}
        total = sum(counts.values())
        x = np.array(sorted(counts)) + (place - (len(found) - 1) / 2) * 0.25
        label = f"{DATASETS[dataset]}, mean {cell.ids['mean_length']:.2f}"
        axes.bar(x, [counts[k] / total for k in sorted(counts)], 0.23, color=COLOURS[place], label=label)
    axes.set(xlabel="codes per id", ylabel="share of the items", title="Lengths of capsid's ids")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _stop_causes(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    found = _needed([(d, first_seed(cells, "capsid", d)) for d in DATASETS], "capsid")
    left = np.zeros(len(found))
    for place, cause in enumerate(("confidence", "residual", "cap", "prefix")):
        shares = np.array([float((cell.ids.get("stop_causes") or {}).get(cause, 0.0)) for _, cell in found])
        axes.barh([DATASETS[d] for d, _ in found], shares, left=left, color=COLOURS[place], label=cause)
        left = left + shares
    axes.set(xlabel="share of the items", title="Why capsid's ids end")
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, -0.45))


def _tiers(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    labels = list(dict.fromkeys(c.label for c in cells.select(dataset=BEAUTY)))
    found = _needed([(label, first_seed(cells, label, BEAUTY)) for label in labels], "the main plan")
    width = 0.8 / len(found)
    for place, (label, cell) in enumerate(found):
        tiers = cell.evaluations[source.evaluation]["recall@10_by_tier"]
        x = np.arange(3) + (place - (len(found) - 1) / 2) * width
        axes.bar(x, [tiers[t] for t in TIERS], width, color=_colour(place), label=label)
    axes.set_xticks(range(len(TIERS)), TIERS)
    axes.set(ylabel="Recall@10", yscale="log", title="Recall@10 by popularity of the target, Beauty")
    axes.legend(frameon=False, fontsize=7, ncols=2)


def _collisions(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    found = _needed(_tokenized(cells), "the main plan")
    names = [label for label, _ in found]
    axes.barh(names, [100 * float(c.ids["collision_rate"]) for _, c in found], color=COLOURS[0], label="ours")
    theirs = [number("tokenizer-quality", n, 0) for n in names]
    dots = [(100 * t, n) for t, n in zip(theirs, names) if t is not None]
    if dots:
        axes.plot([x for x, _ in dots], [n for _, n in dots], "D", color="black", label="the paper's")
    axes.set(xlabel="colliding codes, %", title="Collisions, Beauty")
    axes.legend(frameon=False)


def _purity(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    found = [(n, c) for n, c in _tokenized(cells) if c is not None and c.ids.get("intra_code_similarity") is not None]
    for place, (label, cell) in enumerate(_needed(found, "the main plan")):
        recall = float(cell.evaluations[source.evaluation]["code_recall@50"])
        _named_dot(axes, label, float(cell.ids["intra_code_similarity"]), recall, place)
    axes.set(xlabel="intra-code similarity", ylabel="code recall@50", title="Purity and predictability, Beauty")


def _convergence(figure: Any, cells: Results, source: Source) -> None:
    left, right = figure.subplots(1, 2)
    rows = [(n, first_seed(source.plan("sensitivity"), f"T={n}", BEAUTY)) for n in (1, 2, 3, 5)]
    recall = [(n, c.metric("recall@10", source.evaluation)) for n, c in rows if c is not None]
    ours = first_seed(cells, "capsid", BEAUTY)
    routing = None if ours is None else ours.ids.get("routing_convergence")
    if not recall and not routing:
        raise _nothing("the plan sensitivity, or capsid of the main plan")
    if recall:
        left.plot([n for n, _ in recall], [r for _, r in recall], "o-", color=COLOURS[0])
    left.set(xlabel="rounds T", ylabel="Recall@10", title=f"{FULL}, Beauty")
    if routing:
        mass = np.array(routing["winner_mass"], dtype=float)
        for depth in range(mass.shape[1]):
            line = mass[:, depth]
            right.plot(range(1, len(line) + 1), line, "o-", color=COLOURS[depth], label=f"depth {depth + 1}")
        right.legend(frameon=False, fontsize=7)
    right.set(xlabel="rounds done", ylabel="mean winner mass", title="Routing of capsid")


def _pareto(figure: Any, cells: Results, source: Source) -> None:
    axes = figure.subplots()
    costs = source.costs()
    found = [
        (label, first_seed(cells, label, BEAUTY))
        for label in dict.fromkeys(c.label for c in cells.select(dataset=BEAUTY))
        if label in costs
    ]
    for place, (label, cell) in enumerate(_needed(found, f"decode costs with {BASELINE} among them")):
        recall = cell.metric("recall@10", source.evaluation)
        _named_dot(axes, label, costs[label], recall, place)
    axes.set(
        xlabel=f"cost of a recommendation, {BASELINE} = 1", ylabel="Recall@10", title="Accuracy against cost, Beauty"
    )


def _usage(figure: Any, cells: Results, source: Source) -> None:
    left, right = figure.subplots(1, 2)
    cell = first_seed(cells, "capsid", BEAUTY)
    if cell is None:
        raise _nothing("capsid of the main plan")
    codes = Ragged(*(cells.values(cell, "ids", n) for n in ("codes", "offsets")))
    depth = codes.positions
    rows = []
    for d in range(int(codes.lengths.max())):
        counts = np.sort(np.bincount(codes.values[depth == d]))[::-1][:TOP]
        rows.append(np.pad(counts / max(counts.sum(), 1), (0, TOP - len(counts))))
    image = left.imshow(np.log10(np.maximum(np.array(rows), 1e-4)), aspect="auto", cmap="viridis")
    left.set(xlabel=f"the {TOP} most used codes", ylabel="depth", title="Use of codes, log10 share")
    left.set_yticks(range(len(rows)), [str(d + 1) for d in range(len(rows))])
    figure.colorbar(image, ax=left)
    measured = [c.label for c in cells.select(dataset=BEAUTY) if "positions" in c.evaluations]
    for place, label in enumerate(in_order(measured)):
        own = first_seed(cells, label, BEAUTY)
        seen = None if own is None else own.evaluations.get("positions")
        if seen:
            x = range(1, len(seen["top5"]) + 1)
            right.plot(x, seen["top5"], "o-", color=_colour(place), label=f"{label}, top 5")
            right.plot(x, seen["top1"], "s--", color=_colour(place), label=f"{label}, top 1")
    right.set(xlabel="position", ylabel="accuracy", title="Accuracy of the codes")
    if right.lines:
        right.legend(frameon=False, fontsize=7)


FIGURES: dict[str, Callable[[Any, Results, Source], None]] = {
    "lengths": _lengths,
    "stop-causes": _stop_causes,
    "tiers": _tiers,
    "collisions": _collisions,
    "purity-predictability": _purity,
    "routing-convergence": _convergence,
    "pareto": _pareto,
    "usage": _usage,
}


def _named_dot(axes: Any, label: str, x: float, y: float, place: int) -> None:
    axes.plot(x, y, "o", color=_colour(place))
    axes.annotate(label, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.margins(0.2)


def _tokenized(cells: Results) -> list[tuple[str, Result | None]]:
    labels = dict.fromkeys(c.label for c in cells.select(dataset=BEAUTY) if c.ids.get("utilization_by_depth"))
    return [(label, first_seed(cells, label, BEAUTY)) for label in labels if has_ids(label)]


def _needed(found: Sequence[tuple[str, Result | None]], what: str) -> list[tuple[str, Result]]:
    kept = [(name, cell) for name, cell in found if cell is not None]
    if not kept:
        raise _nothing(what)
    return kept


def _nothing(what: str) -> ConfigError:
    return ConfigError(f"nothing to draw: {what} was not run", hint="capsid bench run main, then draw again")


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
