"""One HTML page that compares fitted methods: metrics, training curves, ids, exposure, and users with item titles.

The page is self-contained: plots are inline SVG, nothing is fetched. Takes results and writes a file; computes no
metrics.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.base.plots import figure_bytes
from capsid.base.storage.artifacts import write_bytes
from capsid.evaluate.evaluator import Evaluation
from capsid.evaluate.significance import Comparison, paired_bootstrap
from capsid.evaluate.tokenizer_quality import TokenizerQuality
from capsid.progress import duration
from capsid.stored import generator_entries

COLOURS = ("#0072b2", "#e69f00", "#8a8a8a", "#009e73", "#cc79a7")
# fill colour, and a text colour that is readable on it
TIER_COLOURS = (("#08519c", "white"), ("#6baed6", "black"), ("#c6dbef", "black"))


@dataclass(frozen=True, eq=False)
class MethodResult:
    """A fitted method on the test split, without and with the history filter. `log` has one entry per phase."""

    name: str
    about: str
    log: tuple[dict[str, Any], ...]
    plain: Evaluation
    filtered: Evaluation


@dataclass(frozen=True)
class Person:
    """A user's last items, their recommendations, and their actual next item."""

    user: str
    took: tuple[str, ...]
    recommended: tuple[str, ...]
    next_item: str


@dataclass(frozen=True)
class Difference:
    """The first method minus another one in `metric`, user by user, on the same cases."""

    first: str
    second: str
    metric: str
    found: Comparison

    @property
    def interval(self) -> str:
        return f"{self.found.low:+.4f} to {self.found.high:+.4f}"

    @property
    def verdict(self) -> str:
        """Whether these users suffice to tell the two apart."""
        if not self.found.significant:
            return "no clear difference"
        return f"{self.first} is {'above' if self.found.difference > 0 else 'below'}"

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.first, "against": self.second, "metric": self.metric, **self.found.to_dict()}


def differences(methods: Sequence[MethodResult]) -> tuple[Difference, ...]:
    """The first method against every other one, with the history filter."""
    metric, (first, *others) = "recall@10", methods
    return tuple(
        Difference(
            first.name,
            other.name,
            metric,
            paired_bootstrap([first.filtered.values[metric]], [other.filtered.values[metric]]),
        )
        for other in others
    )


@dataclass(frozen=True, eq=False)
class Report:
    """The content of the page. `sharing[n]` counts items whose codes n items share, before the collision policy."""

    title: str
    dataset: dict[str, Any]
    methods: tuple[MethodResult, ...]
    differences: tuple[Difference, ...]
    quality: TokenizerQuality
    sharing: dict[int, int]
    people: tuple[Person, ...]
    notes: tuple[str, ...] = ()


# Draws a panel.
Draw = Callable[[Any, Report], None]


def write_report(path: Path, report: Report) -> None:
    """Write the page atomically."""
    write_bytes(path, render(report).encode())


def overview_png(report: Report) -> bytes:
    """The page's four plots as one image."""
    return _drawn(report, tuple(PANELS.values()), 2, (10.0, 6.4), "png")


def render(report: Report) -> str:
    """The page as HTML text."""
    about = report.dataset
    head = (
        f"{about['users']:,} users, {about['items']:,} items, {about['interactions']:,} interactions. "
        "The last item of every user is the test, the one before it the validation; all items are ranked."
    )
    plots = "".join(f"<figure>{_svg(report, draw)}</figure>" for draw in PANELS.values())
    sections = [
        f"<h1>{_text(report.title)}</h1><p>{_text(head)}</p>",
        f"<h2>Test metrics</h2>{_metrics(report)}{_differences(report.differences)}",
        f'<div class="plots">{plots}</div>',
        f"<h2>The ids</h2>{_ids(report.quality)}",
        f"<h2>People</h2>{''.join(_person(p) for p in report.people)}",
        "".join(f"<p class='note'>{_text(note)}</p>" for note in report.notes),
    ]
    return PAGE.replace("@title@", _text(report.title)).replace("@body@", "\n".join(sections))


def standard_error(share: float, users: int) -> float:
    """The standard error of a share of users."""
    return math.sqrt(max(share * (1 - share), 0.0) / max(users, 1))


def _metrics(report: Report) -> str:
    names = ("recall@10", "ndcg@10")
    rows = []
    for method in report.methods:
        cells = [f"<th title='{_text(method.about)}'>{_text(method.name)}</th>"]
        for result in (method.plain, method.filtered):
            cells += [f"<td>{result.metrics[name]:.4f}</td>" for name in names]
        cells.append(f"<td>{method.filtered.extras['coverage@10']:.1%}</td>")
        seconds = sum(phase["seconds"] for phase in method.log)
        cells.append(f"<td>{duration(seconds) if method.log else '-'}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    users = report.methods[0].plain.users
    recall = report.methods[0].plain.metrics["recall@10"]
    return (
        "<table><tr><th></th><th colspan='2'>history not filtered</th><th colspan='2'>history filtered</th>"
        "<th></th><th></th></tr><tr><th></th><th>Recall@10</th><th>NDCG@10</th><th>Recall@10</th><th>NDCG@10</th>"
        f"<th>coverage@10</th><th>training</th></tr>{''.join(rows)}</table>"
        f"<p class='note'>{users:,} users: the standard error of a Recall@10 of {recall:.3f} is "
        f"{standard_error(recall, users):.3f}.</p>"
    )


def _differences(differences: Sequence[Difference]) -> str:
    rows = "".join(
        f"<tr><th>{_text(d.first)} - {_text(d.second)}</th><td>{d.found.difference:+.4f}</td>"
        f"<td>{_text(d.interval)}</td><td>{_text(d.verdict)}</td></tr>"
        for d in differences
    )
    return (
        "<table><tr><th></th><th>Recall@10 filtered</th><th>95 % interval</th><th></th></tr>"
        f"{rows}</table><p class='note'>Differences of the same users, from a paired bootstrap. An interval that "
        "includes zero: chance may explain the difference. Other seeds would differ as well.</p>"
    )


def _ids(quality: TokenizerQuality) -> str:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rows = {
        "codes per item": f"{quality.mean_length:.2f}",
        "colliding codes, before the policy": f"{quality.collision_rate:.1%}",
        "colliding ids, after it": f"{quality.collision_rate_final:.1%}",
        "codes in use, by depth": ", ".join(f"{u:.1%}" for u in quality.utilization_by_depth),
        "Gini of their use, by depth": ", ".join(number(g) for g in quality.gini_by_depth),
        "mean cosine of items with the same first code": number(quality.intra_code_similarity),
        "mean cosine of any two items": number(quality.mean_similarity),
        "norm left unexplained, by depth": ", ".join(number(h) for h in quality.reconstruction.hard or ()) or "-",
    }
    return "<table>" + "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in rows.items()) + "</table>"


def _person(person: Person) -> str:
    def items(titles: Sequence[str]) -> str:
        marked = (f"<b>{_text(t)}</b>" if t == person.next_item else _text(t) for t in titles)
        return "<ol>" + "".join(f"<li>{t}</li>" for t in marked) + "</ol>"

    return (
        f"<div class='person'><div><h3>last items of user {_text(person.user)}</h3>{items(person.took)}</div>"
        f"<div><h3>recommended</h3>{items(person.recommended)}</div>"
        f"<div><h3>actual next item</h3><p>{_text(person.next_item)}</p></div></div>"
    )


def _draw_metrics(axis: Any, report: Report) -> None:
    bars = (("recall@10", "Recall@10"), ("ndcg@10", "NDCG@10"))
    width = 0.8 / len(report.methods)
    for i, method in enumerate(report.methods):
        values, errors = [], []
        for metric, _ in bars:
            for result in (method.plain, method.filtered):
                values.append(result.metrics[metric])
                errors.append(float(result.values[metric].std()) / math.sqrt(max(result.users, 1)))
        places = [group + (i - (len(report.methods) - 1) / 2) * width for group in range(4)]
        axis.bar(places, values, width, yerr=errors, color=COLOURS[i], label=method.name, ecolor="#555", capsize=2)
    labels = [f"{name}\n{kind}" for _, name in bars for kind in ("not filtered", "history\nfiltered")]
    axis.set_xticks(range(4), labels)
    axis.set_title("Test metrics (bars: standard error)")
    axis.legend(frameon=False)


def _draw_training(axis: Any, report: Report) -> None:
    for i, method in enumerate(report.methods):
        steps, metrics, before = [], [], 0
        for phase in generator_entries(method.log):
            # An entry that goes on in the middle of a phase counts its steps from the phase's first.
            begun = before - phase.get("from_step", 0)
            steps += [begun + point["step"] for point in phase["curve"]]
            metrics += [point["metric"] for point in phase["curve"]]
            before += phase["steps"]
        if steps:
            axis.plot(steps, metrics, "o-", ms=3, color=COLOURS[i], label=method.name)
    axis.set_title("Validation Recall@10 while training")
    axis.set_xlabel("training steps")
    axis.set_ylim(bottom=0)
    if axis.lines:
        axis.legend(frameon=False)


def _draw_sharing(axis: Any, report: Report) -> None:
    sizes = sorted(report.sharing)
    shown = [n for n in sizes if n < 8]
    counts = [report.sharing[n] for n in shown]
    labels = [str(n) for n in shown]
    if len(shown) < len(sizes):
        counts.append(sum(report.sharing[n] for n in sizes if n >= 8))
        labels.append("8 or more")
    axis.bar(labels, counts, color=COLOURS[0])
    lengths = ", ".join(f"{count:,} of length {n}" for n, count in report.quality.length_histogram.items())
    axis.set_title("How many items have the same codes")
    axis.set_xlabel(f"items that share their codes, before the collision policy ({lengths})")
    axis.set_ylabel("items")


def _draw_exposure(axis: Any, report: Report) -> None:
    first = report.methods[0].filtered.extras
    real = first["users_by_tier"]
    rows = [("really taken", {tier: n / max(sum(real.values()), 1) for tier, n in real.items()})]
    rows += [(m.name, m.filtered.extras["exposure@10"]) for m in reversed(report.methods)]
    left = [0.0] * len(rows)
    for tier, (colour, ink) in zip(real, TIER_COLOURS):
        values = [shares[tier] for _, shares in rows]
        axis.barh([name for name, _ in rows], values, left=left, color=colour)
        # The tiers are labelled once, in the row of the items really taken.
        axis.text(left[0] + values[0] / 2, 0, tier, ha="center", va="center", color=ink, fontsize=9)
        left = [a + b for a, b in zip(left, values)]
    axis.set_title("Exposure: which items fill the top 10")
    axis.set_xlabel("head: the most popular 20 % of the items, torso: the next 40 %, tail: the rest")
    axis.set_xlim(0, 1)


PANELS: dict[str, Draw] = {
    "metrics": _draw_metrics,
    "training": _draw_training,
    "sharing": _draw_sharing,
    "exposure": _draw_exposure,
}


def _drawn(report: Report, draws: Sequence[Draw], rows: int, size: tuple[float, float], form: str) -> bytes:
    def fill(figure: Any) -> None:
        for axis, draw in zip(figure.subplots(rows, rows, squeeze=False).ravel(), draws):
            axis.spines[["top", "right"]].set_visible(False)
            draw(axis, report)

    # Text of an SVG is small, sharp and searchable in the browser.
    sizes: dict[str, Any] = {"axes_titlesize": 11, "axes_labelsize": 8.5, "xtick_labelsize": 8, "ytick_labelsize": 8.5}
    return figure_bytes(fill, size, form, **sizes, legend_fontsize=8.5)


def _svg(report: Report, draw: Draw) -> str:
    text = _drawn(report, (draw,), 1, (5.2, 3.4), "svg").decode()
    return text[text.index("<svg") :]


def _text(value: object) -> str:
    return html.escape(str(value))


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@title@</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: .9rem; color: #666; margin: 0; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; font-weight: normal; }
td { font-variant-numeric: tabular-nums; } tr + tr { border-top: 1px solid #ddd; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 460px; }
svg { width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; }
.person { display: flex; flex-wrap: wrap; gap: 2rem; border-top: 1px solid #ddd; padding: .8rem 0; }
.person > div { flex: 1 1 260px; } ol { margin: .2rem 0; padding-left: 1.4rem; } .note { color: #666; }
</style></head><body>
@body@
</body></html>
"""
