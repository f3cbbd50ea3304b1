"""Draw `docs/images/architecture.svg`: the rooms as floors, ordered by the import rules, and what leaves each floor.

    python tools/draw_architecture.py [--print]

Needs a checkout: the floors are those of `tests/architecture/import_rules.py`, without rooms that have no code yet.
"""

from __future__ import annotations

import itertools
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
sys.path.insert(0, str(ROOT / "tests" / "architecture"))

# What each room does, in a few words.
ABOUT = {
    "data": "files, splits, item table",
    "ids": "ids, trie, readings",
    "train": "the one training loop, checkpoints",
    "encode": "item vectors: text, behaviour, attributes",
    "tokenize": "vectors to codes; merges",
    "generate": "networks over tokens; loss terms",
    "decode": "rankers: beam search, exact scoring",
    "evaluate": "metrics, reports, significance",
    "memory": "followers and similar items",
    "recipe": "the Recipe value, tables of kinds",
    "recipes": "methods by name",
    "stored": "a run's folder",
    "answering": "queries to answers",
    "explain": "what an id means, what a search weighed, pages",
    "recommender": "the Python front",
    "fit": "a recipe's schedule; folders of runs",
    "bench": "plans, tables",
    "scale": "many machines",
    "serve": "HTTP service",
    "cli": "one file per verb",
}
# What leaves a floor, named by the first room of the floor.
GIVES = {
    "data": "Dataset, Split, ItemTable; SemanticIds, Trie",
    "encode": "item vectors, one block per view",
    "tokenize": "codes; ItemTokenizer with SemanticIds",
    "generate": "scores of the tokens that may come next",
    "decode": "RankedItems: item numbers and scores",
    "answering": "Recommendation in your own item ids",
    "recommender": "Recommender: fit, recommend, explain",
    "cli": "data on stdout, progress on stderr",
}
STYLE = """
    .page { fill: #ffffff; stroke: #d5dae1 } .room { fill: #e8effa; stroke: #5b7fb4 }
    .base { fill: #eceef1; stroke: #8a94a3 } .thing { fill: #fdf1dd; stroke: #c08a2d }
    .way { stroke: #c08a2d; fill: none; stroke-width: 2 } .tip { fill: #c08a2d }
    text { fill: #1d2530 } .name { font-weight: bold } .soft { fill: #51607a; font-size: 12.5px }
    .head { font-size: 16px; font-weight: bold }
    @media (prefers-color-scheme: dark) {
      .page { fill: #12161c; stroke: #333c48 } .room { fill: #1d2b42; stroke: #6f96d1 }
      .base { fill: #232931; stroke: #7c8797 } .thing { fill: #3a2d14; stroke: #d7a24a }
      .way { stroke: #d7a24a } .tip { fill: #d7a24a } text { fill: #e6eaf0 } .soft { fill: #a9b6c9 }
    }"""
LEFT, WIDE, RIGHT, PILL, FLOOR, BOX, TOP = 32, 580, 660, 330, 48, 40, 92


def draw() -> str:
    """The picture as SVG text."""
    from import_rules import LAYERS

    package = ROOT / "src" / "capsid"
    there = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    floors = [tuple(room for room in row if room in there) for row in reversed(LAYERS) if row != ("__main__",)]
    out, y = [], TOP
    pills: list[int] = []
    for row in floors:
        out += _floor(row, y)
        if row[0] in GIVES:
            out += _pill(GIVES[row[0]], y)
            pills.append(y)
        y += FLOOR
    out += _box(
        "base",
        "foundation",
        "base (storage, blocks, config, ...), errors, settings, ragged",
        LEFT,
        y + 6,
        WIDE,
    )
    out += _pill("interactions and items in files", y + 6)
    out += _way([*pills, y + 6])
    height = y + BOX + 30
    return "\n".join([*_head(height), *out, "</svg>", ""])


def _head(height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1022 {height}" role="img" aria-labelledby="title desc"',
        '     font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif" font-size="14">',
        '  <title id="title">The rooms of capsid and what each hands on</title>',
        '  <desc id="desc">Left: the rooms as floors; a room imports only floors below it. Right: what leaves a floor,',
        "    from files at the bottom to answers at the top.</desc>",
        f"  <style>{STYLE}\n  </style>",
        f'  <rect class="page" x="1" y="1" width="1020" height="{height - 2}" rx="12"/>',
        f'  <text class="head" x="{LEFT}" y="44">Rooms</text>',
        f'  <text class="soft" x="{LEFT}" y="66">a room imports only floors below it and the foundation</text>',
        f'  <text class="head" x="{RIGHT}" y="44">What leaves a floor</text>',
        f'  <text class="soft" x="{RIGHT}" y="66">read upwards: from a file to an answer</text>',
    ]


def _floor(row: tuple[str, ...], y: int) -> list[str]:
    width = (WIDE - 10 * (len(row) - 1)) // len(row)
    boxes = (_box("room", room, ABOUT[room], LEFT + n * (width + 10), y, width) for n, room in enumerate(row))
    return [line for box in boxes for line in box]


def _box(look: str, name: str, about: str, x: int, y: int, width: int) -> list[str]:
    return [
        f'  <rect class="{look}" x="{x}" y="{y}" width="{width}" height="{BOX}" rx="6"/>',
        f'  <text class="name" x="{x + 12}" y="{y + 25}">{escape(name)}</text>',
        f'  <text class="soft" x="{x + 24 + round(9.2 * len(name))}" y="{y + 25}">{escape(about)}</text>',
    ]


def _pill(text: str, y: int) -> list[str]:
    return [
        f'  <rect class="thing" x="{RIGHT}" y="{y}" width="{PILL}" height="{BOX}" rx="20"/>',
        f'  <text x="{RIGHT + PILL // 2}" y="{y + 25}" text-anchor="middle">{escape(text)}</text>',
    ]


def _way(pills: list[int]) -> list[str]:
    """Arrows upwards from each thing to the next."""
    x = RIGHT + PILL // 2
    return [
        f'  <path class="way" d="M{x} {below} V{above + BOX + 5}"/>'
        f'<path class="tip" d="M{x - 4} {above + BOX + 7} L{x} {above + BOX} L{x + 4} {above + BOX + 7} Z"/>'
        for above, below in itertools.pairwise(pills)
    ]


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(draw())
    else:
        PICTURE.write_text(draw(), encoding="utf-8")
