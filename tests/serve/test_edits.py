"""The catalogue changes while it serves: over HTTP, under load, across restarts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, until_ready
from small_recipes import world
from test_http import refused

from capsid.serve.snapshot import Edit

ITEMS = list(world().items)


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Iterator[Served]:
    """A server whose edits nobody else sees."""
    with Served(run, tmp_path / "state") as server:
        yield server


def new(name: str, like: int = 5) -> dict[str, Any]:
    old = world().attributes
    return {"item_id": name, "title": f"{old['title'][like]} {name}", "categories": old["categories"][like].to_list()}


def names(answer: dict[str, Any]) -> list[str]:
    return [item["item"] for item in answer["items"]]


def test_add_retire_restore_and_go_back(own: Served, run: Path, tmp_path: Path) -> None:
    client, history = own.client, ITEMS[:3]
    added = client.post("/v1/items", json={"items": [new("n/1"), new("n 2", 9)]})
    assert (added.status_code, added.json()) == (201, {"version": 2, "items": ["n/1", "n 2"]})
    assert added.headers["x-catalogue-version"] == "2"
    assert set(names(own.recommend(history, allow=["n/1", "n 2"]))) == {"n/1", "n 2"}
    assert own.recommend(["n/1"])["personal"]
    about = client.get("/v1/items/n%2F1").json()
    assert about["attributes"]["title"].endswith("n/1")
    assert client.get("/v1/items", params={"q": "n 2"}).json()["items"][0]["item"] == "n 2"
    best = names(own.recommend(history))[0]
    assert client.delete(f"/v1/items/{best}").json() == {"version": 3, "items": [best]}
    assert best not in names(own.recommend(history, k=74))
    assert best not in names(own.recommend([], k=74))
    assert client.get(f"/v1/items/{best}").json()["retired"] is True
    refused(client.post("/v1/items", json={"items": [new(best)]}), 409, "known_item", "restore it")
    assert client.post(f"/v1/items/{best}/restore").json()["version"] == 4
    assert names(own.recommend(history))[0] == best
    assert client.post("/v1/catalogue/rollback", json={"version": 3}).json()["version"] == 5
    assert best not in names(own.recommend(history, k=74))
    assert client.post("/v1/reload").json()["version"] == 6
    wanted = own.recommend(history, k=20)
    with Served(run, tmp_path / "state") as again:
        assert again.recommend(history, k=20) == wanted, "a restart makes the edits again"
        assert again.client.get("/v1/info").json()["versions"] == own.client.get("/v1/info").json()["versions"]


def test_edits_that_are_refused_change_nothing(own: Served) -> None:
    client = own.client
    refused(client.post("/v1/items", json={"items": [new("a"), new("a")]}), 409, "does_not_fit", "occurs twice")
    refused(client.post("/v1/items", json={"items": [new("a"), new(ITEMS[0])]}), 409, "known_item")
    refused(client.post("/v1/items", json={"items": [{"item_id": "a", "titel": "x"}]}), 409, "does_not_fit", "title")
    refused(client.post("/v1/items", json={"items": [{"item_id": "a", "title": ["x"]}]}), 409, "does_not_fit")
    refused(client.post("/v1/items", json={"items": []}), 422, "invalid_request")
    refused(client.post("/v1/items/nobody/restore"), 404, "unknown_item")
    refused(client.post("/v1/catalogue/rollback", json={}), 409, "unknown_version", "none")
    refused(client.post("/v1/catalogue/rollback", json={"version": 0}), 422, "invalid_request")
    assert client.get("/v1/info").json()["version"] == 1


def test_every_answer_under_edits_is_of_one_version(own: Served) -> None:
    """Which items may be in an answer follows from its version; a retired item is gone once the edit is answered."""
    stop, failures, count = threading.Event(), [], [0]
    allowed: dict[int, set[str]] = {1: set(ITEMS)}

    def ask(number: int) -> None:
        with httpx.Client(base_url=own.url, timeout=60) as client:
            while not stop.is_set():
                answer = client.post("/v1/recommend", json={"history": ITEMS[number : number + 3], "k": 100})
                if answer.status_code != 200:
                    failures.append(answer.text)
                    continue
                seen.append((answer.json()["version"], frozenset(names(answer.json())), number))
                count[0] += 1

    seen: list[tuple[int, frozenset[str], int]] = []
    clients = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for client in clients:
        client.start()
    on_offer = set(ITEMS)
    for number in range(12):
        item = ITEMS[30 + number // 3]
        calls = [
            lambda i=item: own.client.delete(f"/v1/items/{i}"),
            lambda i=item: own.client.post(f"/v1/items/{i}/restore"),
            lambda n=number: own.client.post("/v1/items", json={"items": [new(f"n{n}", n)]}),
        ]
        answer = calls[number % 3]()
        assert answer.status_code in (200, 201), answer.text
        changed = [lambda i=item: on_offer.discard(i), lambda i=item: on_offer.add(i)]
        (changed[number % 3] if number % 3 < 2 else lambda n=number: on_offer.add(f"n{n}"))()
        allowed[answer.json()["version"]] = set(on_offer)
        version, found, _ = (lambda a: (a["version"], set(names(a)), 0))(own.recommend(ITEMS[:3], k=100))
        assert version == answer.json()["version"]
        assert found == on_offer - set(ITEMS[:3])
    stop.set()
    for client in clients:
        client.join(60)
    assert failures == []
    assert count[0] > 12
    for version, found, number in seen:
        assert found == allowed[version] - set(ITEMS[number : number + 3]), f"an answer of version {version}"


def test_services_with_one_state_see_each_others_edits(own: Served, run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state") as other:
        assert own.client.delete(f"/v1/items/{ITEMS[0]}").json()["version"] == 2
        answer = other.recommend([], k=100)
        assert answer["version"] == 2
        assert ITEMS[0] not in names(answer)
        assert other.client.delete(f"/v1/items/{ITEMS[1]}").json()["version"] == 3
        assert ITEMS[1] not in names(own.recommend([], k=100))


def test_a_service_that_cannot_follow_is_not_ready_until_it_can(own: Served, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    with Served(copy, tmp_path / "state") as other:
        copy.rename(tmp_path / "away")
        assert own.client.post("/v1/reload").status_code == 200
        assert own.client.delete(f"/v1/items/{ITEMS[0]}").json()["version"] == 3
        message = "version 2, which another process has made, cannot be made here"
        refused(other.client.post("/v1/recommend", json={"history": []}), 503, "behind", message)
        refused(other.client.delete(f"/v1/items/{ITEMS[1]}"), 503, "behind", message)
        assert other.client.get("/health/ready").status_code == 503
        (tmp_path / "away").rename(copy)
        until_ready(other.client)
        assert ITEMS[0] not in names(other.recommend([], k=100))


def test_reads_see_the_edits_of_others(own: Served, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.serve.service.LOOK", 600.0)
    with Served(run, tmp_path / "state") as other:
        paths = ["items/n{}", "items?q=n{}", "info", "tree", "report", "runs", "histories/0"]
        for number, path in enumerate(paths):
            added = own.client.post("/v1/items", json={"items": [new(f"n{number}")]})
            answer = other.client.get(f"/v1/{path.format(number)}")
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-catalogue-version"] == str(added.json()["version"]), path
        assert other.client.get("/v1/items", params={"q": "n0"}).json()["total"] == 1


def test_what_is_unknown_is_of_the_version_that_was_searched(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = own.service.ask

    async def edited_before_the_answer(*arguments: Any) -> Any:
        answers = await ask(*arguments)
        await own.service.edit(lambda _: Edit("add", rows=(new("n0"),)))
        return answers

    monkeypatch.setattr(own.service, "ask", edited_before_the_answer)
    answer = own.recommend(["n0"])
    assert (answer["personal"], answer["unknown"], answer["version"]) == (False, ["n0"], 1)
