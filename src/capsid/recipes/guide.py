"""Which recipe to use when: groups, length of ids, cost, one line each. Nothing depends on it but what people read.

Tokens and costs were measured on Beauty: tokens per item after merging, and processor time of a recommendation where
`tiger` is 1 (`results/bench/main/decode_cost.json`).
"""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = {
    "ours": "what this library recommends",
    "ablation": "ours with one thing changed",
    "rivals": "published methods with semantic ids",
    "baselines": "methods without semantic ids",
}


@dataclass(frozen=True)
class Advice:
    """The group of a recipe, and when to use it. `tokens` and `cost` are None where they were not measured."""

    group: str
    when: str
    tokens: float | None = None
    cost: float | None = None


GUIDE = {
    "capsid-two": Advice("ours", "the most accurate ids; two searches per recommendation", 1.26),
    "capsid-strong": Advice("ours", "accurate and fast; the first to try with ids", 1.26, 0.25),
    "capsid-bpe": Advice("ours", "quick to train, short ids", 1.26, 0.25),
    "capsid": Advice("ours", "ids that a reader can follow code by code", 2.38, 0.74),
    "capsid-paper": Advice("ablation", "the paper's whole system, trained"),
    "capsid-industrial": Advice("ablation", "the paper's system with the sizes of its industrial run"),
    "capsid-dense": Advice("ablation", "what dense item vectors beside ids add", 2.43, 1.84),
    "kmeans-flat": Advice("ablation", "one large codebook: what a hierarchy of codes is worth", 2.0, 0.82),
    "frequency": Advice("ablation", "codes by popularity: what vectors are worth", 3.0, 0.88),
    "tiger": Advice("rivals", "the reference of the field", 4.0, 1.0),
    "tiger-text": Advice("rivals", "tiger on text alone, as published", 4.0, 1.05),
    "tiger-dense": Advice("rivals", "tiger with item vectors beside ids", 3.0, 1.7),
    "rq-kmeans": Advice("rivals", "residual k-means: simple and hard to beat at equal length", 4.0, 0.99),
    "lc-rec": Advice("rivals", "even use of the last codebook", 4.0, 1.4),
    "letter": Advice("rivals", "codes that follow behaviour", 4.0, 1.42),
    "etegrec": Advice("rivals", "tokenizer and generator trained in turn", 4.0, 1.08),
    "ada-sid": Advice("rivals", "experts for text and behaviour; long ids", 5.86, 3.07),
    "actionpiece": Advice("rivals", "tokens that depend on their neighbours; several searches", 3.55, 5.99),
    "diger": Advice("rivals", "codes that gradients change", 4.0, 1.02),
    "sa2crq": Advice("rivals", "popular items share codes less", 2.29, 0.68),
    "rpg": Advice("rivals", "long codes, all predicted at once; scores the whole catalogue", 16.0),
    "resid": Advice("rivals", "codes of attributes", 3.0, 0.58),
    "cobra": Advice("rivals", "a sparse code and a dense vector per item", 3.0, 1.42),
    "unirec-coa": Advice("rivals", "ids that begin with categories", 6.0, 1.57),
    "ease-memory": Advice("ours", "the default of `capsid fit`: as accurate as any, fitted in seconds", 1.0),
    "sasrec-memory": Advice("ours", "a network beside the same memory; `--effort best` tries it", 1.0),
    "sasrec": Advice("baselines", "the bar to clear; small catalogues", 1.0, 0.13),
    "bert4rec": Advice("baselines", "a bidirectional network over items", 1.0, 0.16),
    "memory": Advice("baselines", "no training: followers and similar items", 1.0),
    "id-order": Advice("baselines", "a probe: what the order of item ids in a file gives away", 1.0),
    "item-knn": Advice("baselines", "items that the same users took; fitted in seconds", 1.0),
    "ease": Advice("baselines", "weights between items in closed form; strong on small catalogues", 1.0),
    "text-knn": Advice("baselines", "items with similar text: the content alone", 1.0),
    "vector-knn": Advice("baselines", "items with similar vectors: what ids are made from", 1.0),
    "popularity": Advice("baselines", "the floor of every table", 1.0, 0.08),
}
# Recipes of installed packages and those that nobody has described.
UNKNOWN = Advice("others", "see `capsid recipes show`")


def advice_on(name: str) -> Advice:
    """When to use a recipe."""
    return GUIDE.get(name, UNKNOWN)
