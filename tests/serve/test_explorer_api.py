"""What the page asks for beyond recommendations: parts of the tree with their meaning, search, test histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HOSTILE_ID
from served import Served
from test_http import refused

from capsid.recommender import Recommender
from capsid.serve import questions
from capsid.serve.questions import tree
from capsid.serve.snapshot import Snapshot, State


@pytest.fixture(scope="module")
def snapshot(run: Path) -> Snapshot:
    return Snapshot(1, Recommender.from_pretrained(run), State())


def test_a_prefix_tells_what_its_items_share(snapshot: Snapshot) -> None:
    catalogue = snapshot.recommender.catalogue_
    vectors = snapshot.recommender.fitted.tokenizer.vectors_
    trie = snapshot.recommender.fitted.model.trie
    assert vectors is not None
    for child in tree(snapshot, [], 50)["children"]:
        node = int(trie.walk(np.array([0]), np.array([child["token"]]))[0])
        rows = trie.items[trie.low[node] : trie.high[node]]
        assert child["taken"] == int(catalogue.counts[rows].sum())
        assert child["examples"][0]["title"] == catalogue.title(rows[np.argmax(catalogue.counts[rows])])
        for word in child["words"]:
            carrying = sum(word in catalogue.title(int(r)) for r in rows) / len(rows)
            assert carrying > sum(word in title for title in catalogue.titles) / len(catalogue.titles)
        if len(rows) > 1:
            unit = vectors[rows] / np.linalg.norm(vectors[rows], axis=1, keepdims=True)
            pairs = [float(a @ b) for n, a in enumerate(unit) for b in unit[n + 1 :]]
            assert child["similarity"] == pytest.approx(np.mean(pairs), abs=1e-5)
    assert any(child["words"] for child in tree(snapshot, [], 50)["children"])
    assert tree(snapshot, [], 5)["words"] == []


def test_levels_and_pages_are_parts_of_the_same_tree(snapshot: Snapshot) -> None:
    def plain(node: dict[str, Any]) -> dict[str, Any]:
        return {name: node[name] for name in ("prefix", "codes", "items", "taken", "words", "leaf")}

    whole = tree(snapshot, [], 200)
    deep = tree(snapshot, [], 200, levels=3)
    assert [plain(c) for c in deep["children"]] == [plain(c) for c in whole["children"]]
    for child in deep["children"]:
        alone = tree(snapshot, child["prefix"], 200)
        shown = [plain(c) for c in child["children"]]
        assert shown == [plain(c) for c in alone["children"]][: len(shown)]
        assert child["total_children"] == alone["total_children"]
        assert [step["prefix"] for step in alone["path"]] == []
        if alone["children"]:
            below = tree(snapshot, alone["children"][0]["prefix"], 5)
            assert [plain(step) for step in below["path"]] == [plain(child)]
    pages = [tree(snapshot, [], 3, offset=at)["children"] for at in range(0, whole["total_children"] + 3, 3)]
    assert [plain(c) for page in pages for c in page] == [plain(c) for c in whole["children"]]


def test_codes_are_the_tree_before_merging(explored: Served) -> None:
    recommender = explored.service.snapshot.recommender
    ids = recommender.fitted.tokenizer.ids
    assert len(ids.layout.merges)
    firsts = {int(row[0]) for row in ids.unmerged}
    by_codes = explored.client.get("/v1/tree", params={"of": "codes", "limit": 200}).json()
    assert {child["token"] for child in by_codes["children"]} == firsts
    assert sum(child["items"] for child in by_codes["children"]) == len(ids)
    refused(explored.client.get("/v1/tree?of=words"), 422, "invalid_request")


def slow_search(snapshot: Snapshot, text: str) -> list[str]:
    """The definition, one item after the other."""
    catalogue = snapshot.recommender.catalogue_
    words, start = text.lower().split(), text.lower().strip()
    matches = sorted(
        (name != text, not title.lower().startswith(start), -int(count), number)
        for number, (name, title, count) in enumerate(zip(catalogue.items, catalogue.titles, catalogue.counts))
        if name == text or all(word in title.lower() for word in words)
    )
    return [catalogue.items[number] for *_, number in matches]


@pytest.mark.parametrize("text", ["", "amber", "AMBER 0", "item 1 amber", "i7", "i71", "birch 0 i", "none", " ", "."])
def test_search_finds_what_a_loop_finds(snapshot: Snapshot, text: str) -> None:
    wanted = slow_search(snapshot, text)
    for limit, offset in ((100, 0), (3, 0), (2, 3), (5, 70)):
        found = questions.search_items(snapshot, text, limit, offset)
        assert [item["item"] for item in found["items"]] == wanted[offset : offset + limit]
        assert found["total"] == len(wanted)


def test_histories_of_the_test_split(served: Served, recommender: Recommender) -> None:
    cases, items = recommender.catalogue_.split.test, recommender.catalogue_.items
    assert served.client.get("/v1/info").json()["histories"] == len(cases)
    for number in (0, len(cases) - 1):
        told = served.client.get(f"/v1/histories/{number}").json()
        assert [one["item"] for one in told["history"]] == items.ids(cases.histories[number])
        assert told["next"]["item"] == items[int(cases.targets[number])]
        assert recommender.catalogue_.users[int(cases.users[number])] not in json.dumps(told)
    refused(served.client.get(f"/v1/histories/{len(cases)}"), 404, "unknown_history", f"0 to {len(cases) - 1}")


def test_answers_stay_small_whatever_titles_are(explored: Served) -> None:
    answer = explored.client.get("/v1/tree", params={"limit": 200, "levels": 3})
    assert len(answer.content) < 200_000
    assert explored.client.get("/v1/items", params={"q": HOSTILE_ID}).json()["items"][0]["item"] == HOSTILE_ID


def test_the_page_opens_without_a_key_but_its_data_does_not(run: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a long secret\n")
    with Served(run, tmp_path / "state", api_key_file=str(key)) as server:
        for path in ("/", "/page/main.js", "/page/style.css"):
            answer = server.client.get(path)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-cache"
        refused(server.client.get("/v1/tree"), 401, "unauthorized")
        refused(server.client.get("/openapi.json"), 401, "unauthorized")
