"""One HTML page about the order of a dataset: the verdict, and the figures of `capsid.data.audit` as pictures.

The page is self-contained: bars are inline SVG, nothing is fetched. Computes nothing.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from capsid.data.audit import Audit

LOUD, QUIET, PALE = "#b2182b", "#08519c", "#9ecae1"
WIDTH, HEIGHT, LABEL = 640, 22, 240
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
.verdict { border-left: .4rem solid; padding: .6rem 1rem; font-size: 1.15rem; }
svg { max-width: 100%; height: auto; } text { font: 13px system-ui, sans-serif; }
"""


def render(found: Audit) -> str:
    """The page."""
    colour = LOUD if found.suspicious else QUIET
    parts = [
        f"<h1>The order of {html.escape(found.dataset)}</h1>",
        f'<p class="verdict" style="border-color: {colour}">{html.escape(found.verdict)}</p>',
        _ties(found),
        _accuracy(found),
        _targets(found),
        _time(found),
        _popularity(found),
    ]
    title = f"Audit of {html.escape(found.dataset)}"
    head = f'<meta charset="utf-8"><title>{title}</title><meta name="viewport" content="width=device-width">'
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def _ties(found: Audit) -> str:
    order = found.order
    shares = {
        "neighbours with equal times": order.tied,
        "targets tied with the item before": order.target_tied,
        "ascending item id within ties": order.ascending_within,
        "ascending item id between ties": order.ascending_between,
    }
    text = (
        f"{order.neighbours:,} pairs of neighbours; the data know {order.knows}. Within a tie the order is the file's. "
        "If it were drawn by chance, half of the pairs would ascend in item id."
    )
    return _section("Ties", text, _bars([(n, s) for n, s in shares.items() if s is not None], most=1.0, percent=True))


def _accuracy(found: Audit) -> str:
    rows = []
    for accuracy in found.accuracy:
        rows += [(accuracy.order, accuracy.followers), (f"{accuracy.order}, id-order probe", accuracy.with_ids)]
    text = (
        f"Recall@10 of followers alone (what came after a user's last three items in training) on {found.cases:,} "
        "users. The probe knows one thing more: whether an item's id sorts after that of the last item. What it gains "
        "comes from how the file was sorted; what is lost by shuffling ties was never known."
    )
    return _section("What survives shuffling", text, _bars(rows, marked=[name for name, _ in rows if "probe" in name]))


def _targets(found: Audit) -> str:
    def rows(name: str) -> list[tuple[str, float]]:
        return [(f"{a.order}", getattr(a, name)) for a in found.accuracy]

    known = _bars(rows("known_follower"), percent=True)
    rare = _bars(rows("rare"), percent=True)
    text = "How often the target followed the last item in training, and how often it has fewer than 5 interactions."
    return _section("Targets", text, f"<h3>Known followers</h3>{known}<h3>Rare targets</h3>{rare}")


def _time(found: Audit) -> str:
    if not found.by_time:
        return _section("Time", "Dates are not known, so it cannot be told which items are new when.", "")
    rows = [(f"tenth {n}", share) for n, share in enumerate(found.by_time, start=1)]
    text = "Interactions with items that nobody had taken before the tenth began."
    if found.later is not None:
        text += f" Leave-one-out trains on the future: {100 * found.later:.0f} % of its training interactions are "
        text += "later than the median test target."
    return _section("Time", text, _bars(rows, percent=True))


def _popularity(found: Audit) -> str:
    rows = [(f"items of tenth {n}", share) for n, share in enumerate(found.popular, start=1)]
    text = f"Share of the interactions by popularity of the item. {100 * found.repeats:.1f} % of the interactions "
    return _section("Popularity and repeats", f"{text}repeat an item of the user.", _bars(rows, percent=True))


def _section(title: str, text: str, picture: str) -> str:
    return f"<h2>{title}</h2><p>{html.escape(text)}</p>{picture}"


def _bars(
    rows: Sequence[tuple[str, float]], *, most: float | None = None, percent: bool = False, marked: Sequence[str] = ()
) -> str:
    """Horizontal bars with their values."""
    top = most or max((value for _, value in rows), default=0.0) or 1.0
    room, out = WIDTH - LABEL - 70, []
    for place, (name, value) in enumerate(rows):
        y, length = place * HEIGHT, max(room * value / top, 1)
        shown = f"{100 * value:.1f} %" if percent else f"{value:.4f}"
        colour = PALE if name in marked else QUIET
        out.append(
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="{LABEL}" y="{y + 3}" width="{length:.1f}" height="{HEIGHT - 6}" fill="{colour}"/>'
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 15}">{shown}</text>'
        )
    label = html.escape("; ".join(f"{name}: {value:.4f}" for name, value in rows), quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {len(rows) * HEIGHT}" role="img" aria-label="{label}">{"".join(out)}</svg>'
