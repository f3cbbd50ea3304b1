"""Wrong types and unusual values in Python: a CapsidError with a hint, never another exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _cases import Case, World, python

from capsid import Dataset, ItemTokenizer, Recommender, load_dataset
from capsid.tokenize.rivals.lookup import Atomic
from capsid.train.options import Training

Call = Callable[[World], Any]
HISTORIES: tuple[Any, ...] = (
    None,
    "i0",
    b"i0",
    7,
    1.5,
    ["no-such"],
    [None],
    [[1]],
    object(),
    {"a": 1},
    ["i0", "x" * 10**6],
    [10**5_000],
)
COUNTS: tuple[Any, ...] = (0, -1, 1.5, "3", None, True, 2**63, float("nan"), 10**30, 10**5_000)
FRAMES: tuple[Any, ...] = (
    7,
    object(),
    [],
    {},
    "no such folder",
    Path("no/such"),
    pl.DataFrame(),
    {"user": ["u"]},
    [1, 2],
    {"user": ["u"], "item": ["i"], "timestamp": [None]},
    np.zeros((3, 3)),
    {"user": [1], "item": [1, 2]},
)


def _fine_frame() -> dict[str, list[Any]]:
    rows = [(u, (u + t) % 6, t) for u in range(12) for t in range(4)]
    return {name: [row[i] for row in rows] for i, name in enumerate(("user", "item", "timestamp"))}


def _fit(**data: Any) -> Recommender:
    return Recommender.from_recipe("popularity").fit(**data)


WRONG: dict[str, Callable[[World, Any], Any]] = {
    "recommend history": lambda w, v: w.loaded.recommend(v, 3),
    "recommend allow": lambda w, v: w.loaded.recommend(["i0"], 3, allow=v),
    "recommend deny": lambda w, v: w.loaded.recommend(["i0"], 3, deny=v),
    "explain history": lambda w, v: w.loaded.explain(v, 3),
    "recommend_many": lambda w, v: w.loaded.recommend_many([["i0"], v], 3),
    "retire": lambda w, v: w.loaded.retire(v),
    "restore": lambda w, v: w.loaded.restore(v),
}
COUNTED: dict[str, Callable[[World, Any], Any]] = {
    "recommend k": lambda w, v: w.loaded.recommend(["i0"], v),
    "recommend_many k": lambda w, v: w.loaded.recommend_many([["i0"]], v),
    "explain k": lambda w, v: w.loaded.explain(["i0"], v),
    "predict k": lambda w, v: list(w.loaded.predict(k=v)),
    "evaluate ks": lambda w, v: w.loaded.evaluate(ks=(v,)),
    "evaluate ks alone": lambda w, v: w.loaded.evaluate(ks=v),
    "a setting": lambda w, v: Training(steps=v),
}
FRAMED: dict[str, Callable[[World, Any], Any]] = {
    "fit data": lambda w, v: _fit(data=v),
    "fit interactions": lambda w, v: _fit(interactions=v),
    "from_frames": lambda w, v: Dataset.from_frames(v),
    "ItemTokenizer.fit": lambda w, v: ItemTokenizer(tokenizer=Atomic()).fit(v),
    "add_items": lambda w, v: w.loaded.add_items(v),
}
SINGLE: dict[str, Call] = {
    "fit nothing": lambda w: _fit(),
    "fit both": lambda w: _fit(data="planted", interactions=_fine_frame()),
    "not fitted recommend": lambda w: Recommender.from_recipe("popularity").recommend(["i0"]),
    "not fitted save": lambda w: Recommender.from_recipe("popularity").save_pretrained(w.fresh() / "x"),
    "not fitted evaluate": lambda w: Recommender.from_recipe("popularity").evaluate(),
    "not fitted predict": lambda w: list(Recommender.from_recipe("popularity").predict()),
    "not fitted tokenizer": lambda w: ItemTokenizer(tokenizer=Atomic()).encode({"item_id": ["x"]}),
    "no such recipe": lambda w: Recommender.from_recipe("tigre"),
    "no such setting": lambda w: Recommender.from_recipe("tiger", settings=["x=1"]),
    "no such split": lambda w: w.loaded.evaluate("train"),
    "no such split to predict": lambda w: list(w.loaded.predict("train")),
    "unknown=ignore": lambda w: w.loaded.recommend(["i0"], 3, unknown="ignore"),  # type: ignore[arg-type]
    "allow nothing": lambda w: w.loaded.recommend(["i0"], 3, allow=[]),
    "deny all": lambda w: w.loaded.recommend(["i0"], 3, deny=list(w.loaded.catalogue_.items)),
    "from_pretrained nothing": lambda w: Recommender.from_pretrained(w.fresh()),
    "from_pretrained a dataset": lambda w: Recommender.from_pretrained(w.shop),
    "from_pretrained a file": lambda w: Recommender.from_pretrained(w.items),
    "tokenizer from a dataset": lambda w: ItemTokenizer.from_pretrained(w.shop),
    "load nothing": lambda w: load_dataset(w.fresh()),
    "load a file": lambda w: load_dataset(w.items),
    "load min_rating without ratings": lambda w: load_dataset(w.shop, min_rating=3),
    "save over a dataset": lambda w: w.loaded.save_pretrained(w.shop),
    "save over a file": lambda w: w.loaded.save_pretrained(w.items),
    "vectors for sasrec": lambda w: Recommender.from_recipe("sasrec", vectors="v.npy"),
    "no such vectors": lambda w: Recommender.from_recipe("rq-kmeans", vectors="no.npy").fit(w.shop),
    **{
        f"added ids {ids!r}": lambda w, i=ids: w.loaded.add_items({"item_id": i, "title": ["x"] * len(i)})
        for ids in ([None, "x"], ["", "x"], [" "], [1.5], ["i0"], ["x", "x"], ["a\tb"], [["x"]], [True])
    },
    "added without ids": lambda w: w.loaded.add_items({"title": ["x"]}),
}
FINE: dict[str, Call] = {
    "Path": lambda w: _fit(data=w.shop),
    "text": lambda w: _fit(data=str(w.shop)),
    "a name": lambda w: _fit(data="planted"),
    "dict": lambda w: _fit(interactions=_fine_frame()),
    "polars": lambda w: _fit(interactions=pl.DataFrame(_fine_frame())),
    "lazy polars": lambda w: _fit(interactions=pl.DataFrame(_fine_frame()).lazy()),
    "Arrow": lambda w: _fit(interactions=pl.DataFrame(_fine_frame()).to_arrow()),
    **({"pandas": lambda w: _fit(interactions=pl.DataFrame(_fine_frame()).to_pandas())} if find_spec("pandas") else {}),
    "a frame first": lambda w: _fit(data=pl.DataFrame(_fine_frame())),
    "items too": lambda w: _fit(interactions=_fine_frame(), items={"item_id": list(range(6)), "title": list("abcdef")}),
    "integer ids": lambda w: _fit(interactions=_fine_frame()).recommend([1, 2], 2, allow=[3, 4], deny=[5]),  # type: ignore[list-item]
    "numpy ids": lambda w: _fit(interactions=_fine_frame()).recommend(np.array([1, 2]), 2),  # type: ignore[arg-type]
    "a tuple": lambda w: w.loaded.recommend(("i0", "i1"), 3),
    "a generator": lambda w: w.loaded.recommend((i for i in ["i0", "i1"]), 3),  # type: ignore[arg-type]
    "no history": lambda w: w.loaded.recommend([], 3),
    "unknown=drop": lambda w: w.loaded.recommend(["i0", "no"], 3, unknown="drop"),
    "numpy k": lambda w: w.loaded.recommend(["i0"], np.int64(3)),  # type: ignore[arg-type]
    "tokenizer of a folder": lambda w: ItemTokenizer(tokenizer=Atomic()).fit(str(w.shop)),
    "tokenizer of a path": lambda w: ItemTokenizer(tokenizer=Atomic()).fit(w.shop),
    "save and load": lambda w: _round_trip(w, str),
    "save and load a path": lambda w: _round_trip(w, Path),
    "many": lambda w: w.loaded.recommend_many([["i0"], [], ["i1", "i2"]], 3),
    "nobody": lambda w: w.loaded.recommend_many([], 3),
}


def _round_trip(world: World, kind: Callable[[Any], Any]) -> bool:
    place = kind(world.fresh() / "x")
    world.loaded.save_pretrained(place)
    again = Recommender.from_pretrained(place)
    assert again.recommend(["i0"], 3) == world.loaded.recommend(["i0"], 3)
    return True


def cases() -> Iterator[Case]:
    """All of them."""
    for name, call in WRONG.items():
        for value in HISTORIES:
            if not (value is None and name.endswith(("allow", "deny"))):
                yield _case(name, value, call)
    for name, call in COUNTED.items():
        for value in COUNTS:
            yield _case(name, value, call)
    for name, call in FRAMED.items():
        for value in FRAMES:
            yield _case(name, value, call)
    for name, single in SINGLE.items():
        yield Case("Python", name, lambda w, c=single: python(lambda: c(w)))
    for name, single in FINE.items():
        yield Case("Python", name, lambda w, c=single: python(lambda: c(w)), expected="success")


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.30}"
    except ValueError:
        return "a huge number"


def _case(name: str, value: Any, call: Callable[[World, Any], Any]) -> Case:
    return Case("Python", f"{name} {_shown(value)}", lambda w: python(lambda: call(w, value)))
