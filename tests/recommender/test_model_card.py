"""The model card: written and hashed with the run, metrics once measured, and no name of the data becomes markup."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_recipes import small, world

from capsid.errors import ArtifactError
from capsid.explain.model_card import escaped, model_card
from capsid.ids.layout import TokenLayout
from capsid.recommender import Recommender
from capsid.stored import Stored


@cache
def fitted() -> Recommender:
    return Recommender(small("rq-kmeans")).fit(world())


def stored(dataset: str = "shop", **parts: str) -> Stored:
    r = fitted()
    recipe = dataclasses.replace(r.recipe, **parts)
    return Stored(recipe, r.seed, r.fitted, dataclasses.replace(r.catalogue_, name=dataset))


def front(card: str) -> dict[str, object]:
    head = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert head is not None
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in head[1].split("\n"))}


def test_the_card_is_part_of_the_run(tmp_path: Path) -> None:
    recommender = Recommender(small("rq-kmeans"))
    recommender.fitted_, recommender.catalogue_ = fitted().fitted, fitted().catalogue_
    recommender.save_pretrained(tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Not measured" in card
    assert "model-index" not in front(card)
    assert 'Recommender.from_pretrained("this-folder")' in card
    assert json.loads(card.split("```json\n")[1].split("\n```")[0]) == json.loads(
        (tmp_path / "run" / "recipe.json").read_text()
    )
    measured = recommender.evaluate("test", filter_history=True)
    recommender.save_pretrained(tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    (result,) = front(card)["model-index"][0]["results"]  # type: ignore[index]
    assert result["dataset"]["split"] == "test, history filtered"
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        name: pytest.approx(value, abs=1e-5) for name, value in measured.metrics.items()
    }
    values = measured.values["recall@10"]
    low = max(values.mean() - 1.96 * values.std(ddof=1) / np.sqrt(len(values)), 0)
    assert f"| {measured.metrics['recall@10']:.4f} | {low:.4f} to " in card
    Recommender.from_pretrained(tmp_path / "run")
    (tmp_path / "run" / "README.md").write_text(card + "more")
    with pytest.raises(ArtifactError, match=r"README\.md was changed"):
        Recommender.from_pretrained(tmp_path / "run")


def test_the_card_names_the_sizes_that_were_used() -> None:
    card = model_card(stored())
    assert "| codes at each depth | 8 x 8 x 8 |" in card
    assert "256" not in card.split("## Settings")[0], "that is the size of the recipe on larger data"


def test_second_ids_and_merges_are_counted() -> None:
    layout = TokenLayout((8, 9), suffix=3, others=(TokenLayout((5,), first=50),))
    ids = SimpleNamespace(layout=layout)
    fitted_ = SimpleNamespace(tokenizer=SimpleNamespace(ids=ids), log=())
    card = model_card(dataclasses.replace(stored(), fitted=fitted_))  # type: ignore[arg-type]
    assert "| tokens that tell colliding items apart | 3 |\n| merged tokens | 0 |" in card
    assert "| codes of id 2 at each depth | 5 |" in card


def test_metrics_of_another_catalogue_are_forgotten() -> None:
    recommender = Recommender(small("rq-kmeans"))
    recommender.fitted_, recommender.catalogue_ = fitted().fitted, fitted().catalogue_
    recommender.evaluate("test")
    assert recommender._evaluations
    old = world().attributes
    recommender.add_items(
        {"item_id": ["new"], "title": [old["title"][0]], "categories": [old["categories"][0].to_list()]}
    )
    assert not recommender._evaluations


NASTY = "x\n# head\n---\n<script>alert(1)</script>[a](http://b)|`c`\u2028- y\x1b[0m"


def test_names_are_text_and_not_markup() -> None:
    plain, card = model_card(stored()), model_card(stored(NASTY, name=NASTY, about=NASTY))
    assert len(card.split("\n")) == len(plain.split("\n"))
    text = card.split("---\n", 2)[2].split("```json")[0]
    assert "<" not in text.replace("\\<", "")
    assert "\x1b" not in card
    assert [line for line in card.split("\n") if line.startswith("#")][1:] == [
        line for line in plain.split("\n") if line.startswith("#")
    ][1:]


@given(st.text())
def test_escaped_text_has_no_bare_markup(text: str) -> None:
    found = escaped(text)
    assert "\n" not in found
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>\[\]`|#*_]", found)


def test_addresses_do_not_become_links() -> None:
    assert escaped("www.example.com, http://example.com") == r"www\.example.com, http\://example.com"
