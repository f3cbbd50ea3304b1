"""A picture of a search as SVG text: a column for each depth, kept prefixes joined to what they came from, results at
the right, and below each column how many prefixes were cut and why. No script, no outside font, nothing to load.
"""

from __future__ import annotations

from html import escape

from capsid.explaining.values import Influence, Prefix, Step

Paths = tuple[tuple[int, ...], ...]

COLUMN, ROW, GAP, TOP, LEFT = 250, 34, 40, 56, 16
# Maximum number of prefixes drawn per column; the line below the column shows the total.
DRAWN = 14
_COLOURS = {"kept": "#d7e3f4", "result": "#cfe8cf"}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2733}.small{font-size:11px;fill:#51606f}"
    ".edge{fill:none;stroke:#9fb0c3;stroke-width:1.2}.head{font-weight:600}"
)


def draw(paths: Paths, steps: tuple[Step, ...], influences: tuple[Influence, ...]) -> str:
    """The whole picture. `paths` are the tokens of each result."""
    columns = [_drawn(step, paths) for step in steps]
    tallest = max([1, len(influences[:DRAWN]), *map(len, columns)])
    height = TOP + tallest * ROW + 60
    width = LEFT + max(len(columns), 1) * (COLUMN + GAP) + COLUMN
    body = [_column(step, prefixes, number, height) for number, (step, prefixes) in enumerate(zip(steps, columns))]
    edges = _edges(columns)
    side = _influence(influences, LEFT + len(columns) * (COLUMN + GAP))
    title = f"How {len(paths)} items were found"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join([edges, *body, side])}</svg>'
    )


def _drawn(step: Step, paths: Paths) -> list[Prefix]:
    """The prefixes that survived this step, those on the paths to the results first."""
    ways = {path[: step.depth + 1] for path in paths}
    survived = [p for p in step.prefixes if p.fate in _COLOURS]
    return sorted(survived, key=lambda p: (p.tokens not in ways, -p.score))[:DRAWN]


def _place(column: int, row: int) -> tuple[int, int]:
    return LEFT + column * (COLUMN + GAP), TOP + row * ROW


def _column(step: Step, prefixes: list[Prefix], number: int, height: int) -> str:
    x, _ = _place(number, 0)
    parts = [f'<text class="head" x="{x}" y="24">depth {step.depth + 1}</text>']
    total = sum(step.counts.values())
    parts.append(f'<text class="small" x="{x}" y="42">{total:,} prefixes weighed</text>')
    for row, prefix in enumerate(prefixes):
        x, y = _place(number, row)
        parts.append(
            f"<g><title>{escape(prefix.example)}: tokens {' '.join(map(str, prefix.tokens))}, score"
            f" {prefix.score:.3f}, {prefix.items:,} items</title>"
            f'<rect x="{x}" y="{y}" width="{COLUMN}" height="{ROW - 6}" rx="6" fill="{_COLOURS[prefix.fate]}"/>'
            f'<text x="{x + 8}" y="{y + 13}">{escape(_short(prefix.example, 36))}</text>'
            f'<text class="small" x="{x + 8}" y="{y + 25}">{prefix.tokens[-1]} · {prefix.items:,} items ·'
            f" {prefix.score:.2f}</text></g>"
        )
    survived = step.counts["kept"] + step.counts["result"]
    cut = ", ".join(f"{step.counts[why]:,} by {why}" for why in ("width", "bound", "filter") if step.counts[why])
    more = f"{len(prefixes)} of {survived:,} survivors" + (f"; cut: {cut}" if cut else "")
    parts.append(f'<text class="small" x="{x}" y="{height - 18}">{more}</text>')
    return "".join(parts)


def _edges(columns: list[list[Prefix]]) -> str:
    out = []
    for number in range(1, len(columns)):
        rows = {prefix.tokens: row for row, prefix in enumerate(columns[number - 1])}
        for row, prefix in enumerate(columns[number]):
            if prefix.tokens[:-1] in rows:
                x0, y0 = _place(number - 1, rows[prefix.tokens[:-1]])
                x1, y1 = _place(number, row)
                x0, y0, y1, middle = x0 + COLUMN, y0 + 14, y1 + 14, x1 - GAP // 2
                out.append(f'<path class="edge" d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}"/>')
    return "".join(out)


def _influence(influences: tuple[Influence, ...], x: int) -> str:
    """Bars: how much leaving an item of the history out lowers (blue) or raises (red) the results."""
    parts = [f'<text class="head" x="{x}" y="24">history</text>']
    shown = influences[:DRAWN]
    largest = max([abs(i.mean) for i in shown], default=0.0) or 1.0
    for row, one in enumerate(shown):
        _, y = _place(0, row)
        bar = max(1, round(abs(one.mean) / largest * (COLUMN - 60)))
        colour = "#7aa6d8" if one.mean >= 0 else "#d99a8b"
        parts.append(
            f'<text x="{x}" y="{y + 12}">{escape(_short(one.title, 38))}</text>'
            f'<rect x="{x}" y="{y + 17}" width="{bar}" height="6" rx="3" fill="{colour}"/>'
            f'<text class="small" x="{x + bar + 6}" y="{y + 25}">{one.mean:+.2f}</text>'
        )
    return "".join(parts)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
