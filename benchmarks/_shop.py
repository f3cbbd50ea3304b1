"""A synthetic shop of any size as two CSV files, with structure that a recommender can learn.

Products belong to a tree of departments and shelves. A customer prefers a few shelves, buys popular products more
often, and often follows a product with the one that goes with it. A model that knows the tree and the pairs beats
popularity by far; the random purchases cannot be predicted.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

# Shares of purchases: what goes with the last product, the same shelf, another shelf the customer likes, anything.
FOLLOWS, SAME_SHELF, OWN_SHELVES = 0.35, 0.35, 0.2
SHELF = 20
SHELVES_IN_DEPARTMENT = 8
_KINDS = ("mug", "lamp", "rug", "tea", "soap", "pen", "vase", "towel", "knife", "bowl", "candle", "chair", "clock")
_STYLES = ("oak", "linen", "amber", "slate", "ivory", "cobalt", "moss", "copper", "willow", "pearl", "rust", "sand")
_BRANDS = ("Kiln", "Leaf", "Norden", "Halde", "Brook", "Atlas", "Ember", "Fjord")


def write_shop(folder: Path, *, items: int, users: int, mean_length: float = 8.0, seed: int = 0) -> int:
    """Write `interactions.csv` and `items.csv`; returns the number of interactions."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    _write_items(folder / "items.csv", items, rng)
    walks = _walks(items, users, mean_length, rng)
    start = rng.integers(0, 300, size=users)
    with open(folder / "interactions.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "timestamp"])
        for user, (walk, day) in enumerate(zip(walks, start)):
            # Days since the start of 2024; purchases of one customer are in order.
            writer.writerows(
                (f"c{user}", f"p{item}", 1_704_067_200 + 86_400 * (int(day) + 3 * n)) for n, item in enumerate(walk)
            )
    return sum(map(len, walks))


def write_earlier(now: Path, before: Path, *, items: int, share: float = 0.9) -> int:
    """The shop `now` as it was when it had the first `items` products and a share of the purchases; returns those."""
    before.mkdir(parents=True, exist_ok=True)
    with open(now / "items.csv", newline="", encoding="utf-8") as file:
        head, *products = list(csv.reader(file))
    with open(now / "interactions.csv", newline="", encoding="utf-8") as file:
        names, *purchases = list(csv.reader(file))
    cut = sorted(int(time) for _, _, time in purchases)[int(share * (len(purchases) - 1))]
    known = {row[0] for row in products[:items]}
    kept = [row for row in purchases if int(row[2]) <= cut and row[1] in known]
    for path, rows in (
        (before / "items.csv", [head, *products[:items]]),
        (before / "interactions.csv", [names, *kept]),
    ):
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    return len(kept)


def _write_items(path: Path, items: int, rng: np.random.Generator) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title", "brand", "categories", "price"])
        for item in range(items):
            shelf = item // SHELF
            department = shelf // SHELVES_IN_DEPARTMENT
            kind, style = _KINDS[shelf % len(_KINDS)], _STYLES[int(rng.integers(len(_STYLES)))]
            title = f"{style} {kind} no. {item % SHELF + 1}"
            brand = _BRANDS[int(rng.integers(len(_BRANDS)))]
            price = round(float(rng.lognormal(2.5, 0.6)), 2)
            writer.writerow([f"p{item}", title, brand, f"department {department}|{kind} {shelf}", price])


def _walks(items: int, users: int, mean_length: float, rng: np.random.Generator) -> list[list[int]]:
    """Purchases of every customer, without repeats; at least three, so that two can be held out."""
    shelves = max(1, items // SHELF)
    # One product of a shelf is bought about twenty times as often as the last one.
    weight_P = 1.0 / (1 + np.arange(SHELF))
    weight_P /= weight_P.sum()
    partner_N = rng.permutation(items)
    lengths = np.clip(rng.geometric(1.0 / (mean_length - 2), size=users) + 2, 3, 50)
    walks = []
    for length in lengths:
        own = rng.integers(0, shelves, size=3)
        walk: list[int] = []
        for draw in rng.random(int(length)):
            shelf = int(walk[-1] // SHELF if walk else own[0])
            if walk and draw < FOLLOWS:
                item = int(partner_N[walk[-1]])
            elif draw < FOLLOWS + SAME_SHELF:
                item = shelf * SHELF + int(rng.choice(SHELF, p=weight_P))
            elif draw < FOLLOWS + SAME_SHELF + OWN_SHELVES:
                item = int(rng.choice(own)) * SHELF + int(rng.choice(SHELF, p=weight_P))
            else:
                item = int(rng.integers(items))
            if item < items and item not in walk:
                walk.append(item)
        walks.append(walk)
    return [walk for walk in walks if walk]
