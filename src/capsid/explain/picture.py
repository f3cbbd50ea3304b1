"""A picture of a search as SVG text: a column for each depth, prefixes joined to their parents, and the history.

Kept prefixes and results come first, then the best ones that were cut, with the reason. No script, no outside font,
nothing to load. Texts are shortened by their estimated width, and every box clips what it holds, so none overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from capsid.base.printable import one_line

COLUMN, NODE, GAP, BETWEEN, TOP, LEFT = 250, 38, 6, 44, 58, 16
# Maximum numbers of survivors and of cut prefixes drawn per column; the lines below the column show the totals.
DRAWN, CUT = 14, 3
_SURVIVED = ("kept", "result")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#172024}.small{font-size:11px;fill:#46545c}.head{font-weight:600}"
    ".edge{fill:none;stroke:#9fb0b8;stroke-width:1.2}.kept{fill:#e2ecf8}.result{fill:#dcefe0}.cut{fill:#f6efe2}"
    ".for{fill:#2d8a93}.against{fill:#b8493f}"
)


@dataclass(frozen=True)
class Prefix:
    """A scored prefix. `example` is the title of the most popular item below it, `fate` is one of `FATES`."""

    tokens: tuple[int, ...]
    codes: tuple[int, ...]
    score: float
    fate: str
    items: int
    example: str


@dataclass(frozen=True)
class Step:
    """One depth of the search: how many prefixes met which fate, and the best of them."""

    depth: int
    counts: dict[str, int]
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True)
class ScoreParts:
    """The two parts of a result's score where ids and item vectors are fused: score = ids + vectors.

    `ids` is the log of the softmax over the ids that the search found, `vectors` that over all their items; `cosine` is
    that of the item's vector and the expected one.
    """

    ids: float
    vectors: float
    cosine: float


@dataclass(frozen=True)
class Influence:
    """How much the results' scores fall without an item of the history: a larger fall means more support.

    `results[r]` is the fall of result r, and `steps[r]` is its split over the tokens of the id. Where item vectors are
    fused, `vectors[r]` is what they add to the fall; then falls are of both parts before their softmaxes.
    """

    item: str
    title: str
    mean: float
    results: tuple[float, ...]
    steps: tuple[tuple[float, ...], ...]
    vectors: tuple[float, ...] = ()


Paths = tuple[tuple[int, ...], ...]


def draw(paths: Paths, steps: tuple[Step, ...], influences: tuple[Influence, ...]) -> str:
    """The whole picture. `paths` are the tokens of each result."""
    columns = _columns(steps, paths)
    rows = max([1, len(influences[:DRAWN]), *map(len, columns)])
    height = TOP + rows * (NODE + GAP) + 44
    width = LEFT + len(columns) * (COLUMN + BETWEEN) + COLUMN + LEFT
    ranks = {path: rank for rank, path in reversed(list(enumerate(paths, 1)))}
    parts = [_edges(columns)]
    parts += [_column(step, drawn, number, ranks) for number, (step, drawn) in enumerate(zip(steps, columns))]
    parts.append(_history(influences, _place(len(columns), 0)[0]))
    title = f"How {len(paths)} items were found"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>'
    )


def _columns(steps: tuple[Step, ...], paths: Paths) -> list[list[Prefix]]:
    """What is drawn at each depth: survivors, those on the way to results if there are many, then the best cut ones."""
    out: list[list[Prefix]] = []
    above: dict[tuple[int, ...], int] = {}
    for step in steps:
        ways = {path[: step.depth + 1] for path in paths}
        survived = sorted(
            (p for p in step.prefixes if p.fate in _SURVIVED), key=lambda p: (p.tokens not in ways, -p.score)
        )[:DRAWN]
        # Children stand in the order of their parents, so that lines do not cross.
        survived.sort(key=lambda p: (above.get(p.tokens[:-1], len(above)), -p.score))
        drawn = survived + [p for p in step.prefixes if p.fate not in _SURVIVED][:CUT]
        above = {prefix.tokens: row for row, prefix in enumerate(drawn)}
        out.append(drawn)
    return out


def _place(column: int, row: int) -> tuple[int, int]:
    return LEFT + column * (COLUMN + BETWEEN), TOP + row * (NODE + GAP)


def _column(step: Step, drawn: list[Prefix], number: int, ranks: dict[tuple[int, ...], int]) -> str:
    x, foot = _place(number, len(drawn))
    parts = [_text(x, 22, f"Depth {step.depth + 1}", "head")]
    parts.append(_text(x, 40, f"{_counted(sum(step.counts.values()), 'prefix', 'prefixes')} weighed", "small"))
    parts += [_node(prefix, *_place(number, row), ranks) for row, prefix in enumerate(drawn)]
    survived = sum(step.counts[fate] for fate in _SURVIVED)
    shown = sum(prefix.fate in _SURVIVED for prefix in drawn)
    cut = ", ".join(f"{step.counts[why]:,} by {why}" for why in ("width", "bound", "filter") if step.counts[why])
    if shown < survived:
        parts.append(_text(x, foot + 12, f"{shown} of {survived:,} survivors drawn", "small"))
    if cut:
        parts.append(_text(x, foot + (28 if shown < survived else 12), f"cut: {cut}", "small"))
    return "".join(parts)


def _node(prefix: Prefix, x: int, y: int, ranks: dict[tuple[int, ...], int]) -> str:
    """A box that clips its texts. A result has its rank before the title."""
    rank = f"{ranks[prefix.tokens]}. " if prefix.tokens in ranks else ""
    fate = prefix.fate if prefix.fate in _SURVIVED else f"cut by {prefix.fate}"
    kind = prefix.fate if prefix.fate in _SURVIVED else "cut"
    note = f"{_counted(prefix.items, 'item')} · {prefix.score:.2f} · {fate}"
    about = f"{prefix.example}: tokens {' '.join(map(str, prefix.tokens))}, score {prefix.score:.3f}, {fate}"
    return (
        f'<svg x="{x}" y="{y}" width="{COLUMN}" height="{NODE}"><title>{_safe(about)}</title>'
        f'<rect class="{kind}" width="{COLUMN}" height="{NODE}" rx="6"/>'
        f"{_text(10, 16, _short(rank + prefix.example, COLUMN - 20))}{_text(10, 31, note, 'small')}</svg>"
    )


def _edges(columns: list[list[Prefix]]) -> str:
    out = []
    for number in range(1, len(columns)):
        rows = {prefix.tokens: row for row, prefix in enumerate(columns[number - 1])}
        for row, prefix in enumerate(columns[number]):
            if prefix.tokens[:-1] in rows:
                x0, y0 = _place(number - 1, rows[prefix.tokens[:-1]])
                x1, y1 = _place(number, row)
                x0, y0, y1, middle = x0 + COLUMN, y0 + NODE // 2, y1 + NODE // 2, x1 - BETWEEN // 2
                out.append(f'<path class="edge" d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}"/>')
    return "".join(out)


def _history(influences: tuple[Influence, ...], x: int) -> str:
    """Bars: how much the results lose without an item of the history, or gain."""
    if not influences:
        return ""
    parts = [_text(x, 22, "History", "head"), _text(x, 40, "what the results lose without the item", "small")]
    shown = influences[:DRAWN]
    largest = max(abs(one.mean) for one in shown) or 1.0
    for row, one in enumerate(shown):
        _, y = _place(0, row)
        bar = max(2, round(abs(one.mean) / largest * (COLUMN - 60)))
        parts.append(
            f'<svg x="{x}" y="{y}" width="{COLUMN}" height="{NODE}"><title>{_safe(one.title)}</title>'
            f"{_text(0, 14, _short(one.title, COLUMN))}"
            f'<rect class="{"for" if one.mean >= 0 else "against"}" y="22" width="{bar}" height="6" rx="3"/>'
            f"{_text(bar + 6, 30, f'{one.mean:+.2f}', 'small')}</svg>"
        )
    return "".join(parts)


def _text(x: int, y: int, text: str, kind: str = "plain") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{_safe(text)}</text>'


def _safe(text: str) -> str:
    """Text for XML, which has no place for control characters."""
    return escape(one_line(text))


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _width(letter: str) -> float:
    """An estimate in pixels at 12 px, on the wide side: the reader's font is not known."""
    if east_asian_width(letter) in "WF":
        return 12.0
    if letter in "iljtfrI.,:;'|!()[] ":
        return 4.6
    if letter in "mwMW" or ord(letter) > 0x2E80 or not letter.isalnum():
        return 10.4
    return 8.6 if letter.isupper() else 7.4


def _short(text: str, width: int) -> str:
    room, out = width - 12.0, []
    if sum(map(_width, text)) <= width:
        return text
    for letter in text:
        room -= _width(letter)
        if room < 0:
            break
        out.append(letter)
    return "".join(out).rstrip() + "…"
