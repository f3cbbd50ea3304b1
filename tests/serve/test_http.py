"""Every route over a real socket; answers equal those of the library."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Served
from small_recipes import small, world

from capsid.recommender import Recommender

ITEMS = list(world().items)


def refused(answer: Any, status: int, code: str, *texts: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint", "request_id"}
    assert error["code"] == code
    assert error["request_id"] == answer.headers["x-request-id"]
    for text in texts:
        assert text in f"{error['message']} {error['hint']}"
    return error


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/recommend/batch", "/v1/explain", "/v1/items"])
@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 5000])
def test_what_is_not_json_has_one_answer(served: Served, path: str, body: bytes) -> None:
    answer = served.client.post(path, content=body, headers={"content-type": "application/json"})
    error = refused(answer, 400, "invalid_json")
    assert (error["message"], error["hint"]) == ("the body is not JSON", "send a JSON object")


def histories() -> list[list[str]]:
    return [world().items.ids(world().sequences[n][: 1 + n % 7]) for n in range(24)]


def test_one_after_the_other_or_at_once_is_as_in_python(served: Served, recommender: Recommender) -> None:
    wishes: list[dict[str, Any]] = [
        {},
        {"k": 3},
        {"k": 30, "filter_history": False},
        {"deny": ITEMS[:20]},
        {"allow": ITEMS[10:30], "k": 5},
    ]
    asked = [(h, wishes[n % len(wishes)]) for n, h in enumerate(histories())]
    wanted = [recommender.recommend(h, **{"k": 10, **w}) for h, w in asked]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda a: served.recommend(a[0], **a[1]), asked))
    for (history, wish), found, at_once in zip(asked, wanted, together):
        for answer in (at_once, served.recommend(history, **wish)):
            assert [i["item"] for i in answer["items"]] == list(found.items)
            assert [i["title"] for i in answer["items"]] == list(found.titles)
            np.testing.assert_allclose([i["score"] for i in answer["items"]], found.scores, atol=1e-5)
            assert answer["personal"]
            assert answer["unknown"] == []


def test_batch_body(served: Served, recommender: Recommender) -> None:
    body = {"histories": histories()[:9], "k": 4}
    answer = served.client.post("/v1/recommend/batch", json=body)
    results = answer.json()["results"]
    wanted = recommender.recommend_many(histories()[:9], 4)
    assert [[i["item"] for i in r["items"]] for r in results] == [list(w.items) for w in wanted]
    assert len({r["version"] for r in results}) == 1
    too_many = served.client.post("/v1/recommend/batch", json={"histories": [["i1"]] * 65})
    refused(too_many, 422, "invalid_request", "histories")


def test_explain(served: Served, recommender: Recommender) -> None:
    history = histories()[4]
    answer = served.client.post("/v1/explain", json={"history": history, "k": 5, "shown": 9}).json()
    told = recommender.explain(history, 5)
    assert [i["item"] for i in answer["items"]] == list(told.recommendation.items)
    assert [tuple(i["tokens"]) for i in answer["items"]] == list(told.paths)
    assert [s["counts"] for s in answer["steps"]] == [s.counts for s in told.steps]
    for step in answer["steps"]:
        assert sum(p["fate"] not in ("kept", "result") for p in step["prefixes"]) <= 9
    assert [i["item"] for i in answer["influences"]] == [i.item for i in told.influences]
    prefix = answer["items"][-1]["tokens"][:1]
    body = {"history": history, "k": 5, "prefix": prefix, "influence": False}
    forced = served.client.post("/v1/explain", json=body).json()
    assert all(i["tokens"][:1] == prefix for i in forced["items"])
    assert forced["influences"] == []
    assert served.client.post("/v1/explain", json={"history": []}).json()["personal"] is False
    refused(served.client.post("/v1/explain", json={"history": [], "prefix": [999]}), 404, "unknown_prefix")
    assert all(i["parts"] is None for i in answer["items"])


@pytest.mark.parametrize("decoder", ["fusion", "exact"])
def test_explain_shows_both_parts_of_a_fused_score_or_refuses(decoder: str, tmp_path: Path) -> None:
    recommender = Recommender(small("cobra", steps=4).with_settings([f"decoder={decoder}"])).fit(world())
    recommender.save_pretrained(tmp_path / "run")
    with Served(tmp_path / "run", tmp_path / "state") as served:
        answer = served.client.post("/v1/explain", json={"history": histories()[4], "k": 5})
    if decoder == "exact":
        refused(answer, 409, "does_not_fit", "'exact' does not search step by step", "decoder=fusion")
        return
    told = recommender.explain(histories()[4], 5)
    assert [i["item"] for i in answer.json()["items"]] == list(told.recommendation.items)
    for item, part in zip(answer.json()["items"], told.parts, strict=True):
        assert item["parts"] == pytest.approx(dataclasses.asdict(part), abs=1e-5)
        assert item["score"] == pytest.approx(part.ids + part.vectors, abs=1e-5)
    assert all(len(i["vectors"]) == 5 for i in answer.json()["influences"])


def test_unknown_items(served: Served) -> None:
    answer = served.recommend([ITEMS[0], "nobody"], k=3)
    assert answer["unknown"] == ["nobody"]
    assert answer["personal"]
    assert served.recommend(["nobody"], k=3)["personal"] is False
    assert served.recommend([], k=3)["personal"] is False
    strict = {"history": ["nobody"], "unknown": "raise"}
    refused(served.client.post("/v1/recommend", json=strict), 404, "unknown_item", "unknown id 'nobody'")
    nothing = {"history": [], "allow": [ITEMS[0]], "deny": [ITEMS[0]]}
    refused(served.client.post("/v1/recommend", json=nothing), 409, "does_not_fit", "leave no item")
    counted = served.client.get("/metrics").text
    assert "capsid_not_personal_total 2.0" in counted


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, ""),
        (b"[]", 422, ""),
        (b"{}", 422, "history"),
        (b'{"history": "i1"}', 422, "history"),
        (b'{"history": [1]}', 422, "history.0"),
        (b'{"history": ["i1"], "k": 0}', 422, "k: "),
        (b'{"history": ["i1"], "k": "5"}', 422, "k: "),
        (b'{"history": ["i1"], "k": 5.5}', 422, "k: "),
        (b'{"history": ["i1"], "k": true}', 422, "k: "),
        (b'{"history": ["i1"], "k": 1e999}', 422, "k: "),
        (b'{"history": ["i1"], "filter_history": 0}', 422, "filter_history"),
        (b'{"history": ["i1"], "filter": true}', 422, "filter"),
        (b'{"history": ["i\\u00001"]}', 422, "history.0"),
        (b'{"history": ["' + b"x" * 201 + b'"]}', 422, "history.0"),
    ],
)
def test_bad_bodies(served: Served, body: bytes, status: int, text: str) -> None:
    answer = served.client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
    refused(answer, status, "invalid_json" if status == 400 else "invalid_request", text)


def test_wrong_places(served: Served) -> None:
    refused(served.client.get("/v1/nothing"), 404, "not_found")
    refused(served.client.get("/v1/recommend"), 405, "method_not_allowed")
    refused(served.client.get("/v1/items/nobody"), 404, "unknown_item", "there is no item 'nobody'")
    refused(served.client.get("/v1/items/i1x"), 404, "unknown_item", "did you mean 'i1'")
    refused(served.client.get("/v1/tree?prefix=7777"), 404, "unknown_prefix", "7777")
    refused(served.client.get("/v1/tree?prefix=a"), 422, "invalid_request")
    refused(served.client.delete("/v1/items/nobody"), 404, "unknown_item")
    # A newline at the end is part of the name.
    refused(served.client.delete("/v1/items/i1%0A"), 404, "not_found")
    refused(served.client.get("/v1/items/%0A"), 404, "not_found")
    refused(served.client.get("/v1/items?limit=101"), 422, "invalid_request", "limit")
    plain = served.client.post("/v1/recommend", content=b'{"history": []}', headers={"content-type": "text/plain"})
    refused(plain, 422, "invalid_request")


def test_bodies_that_are_too_large(served: Served) -> None:
    large = b'{"history": ["' + b"x" * (1 << 20) + b'"]}'
    refused(served.client.post("/v1/recommend", content=large), 413, "body_too_large")
    chunks = (b"x" * 65536 for _ in range(40))
    headers = {"content-type": "application/json"}
    refused(served.client.post("/v1/recommend", content=chunks, headers=headers), 413, "body_too_large")
    assert served.recommend([ITEMS[0]], k=1)["personal"], "the next request is served"


def test_headers(served: Served) -> None:
    one = served.client.get("/health/live", headers={"x-request-id": "mine-1"})
    assert one.headers["x-request-id"] == "mine-1"
    other = served.client.get("/health/live", headers={"x-request-id": "not mine\t" + "x" * 99})
    assert other.headers["x-request-id"] != "mine-1"
    assert len(other.headers["x-request-id"]) == 16
    version = served.client.get("/v1/info").json()["version"]
    assert other.headers["x-catalogue-version"] == str(version)


def test_looking_around(served: Served, recommender: Recommender) -> None:
    info = served.client.get("/v1/info").json()
    assert (info["recipe"], info["dataset"]) == ("capsid", "planted")
    title = world().attributes["title"][8]
    found = served.client.get("/v1/items", params={"q": title.upper(), "limit": 3}).json()
    assert found["items"][0] == {"item": ITEMS[8], "title": title, "retired": False}
    by_id = served.client.get("/v1/items", params={"q": ITEMS[9]}).json()
    assert by_id["items"][0]["item"] == ITEMS[9]
    everything = served.client.get("/v1/items").json()
    assert everything["total"] >= len(ITEMS)
    assert len(everything["items"]) == 20
    about = served.client.get(f"/v1/items/{ITEMS[8]}").json()
    tokens = list(recommender.fitted.tokenizer.ids[ITEMS[8]])
    assert about["tokens"] == tokens
    assert about["attributes"]["title"] == about["title"] == title
    assert about["prefixes"][0]["items"] >= 1
    assert {"depths", "stopped"} <= set(about)


def test_reports(served: Served, recommender: Recommender) -> None:
    report = served.client.get("/v1/report").json()
    assert report["items"] == len(ITEMS)
    wanted = recommender.fitted.tokenizer.ids.statistics()
    assert report["collision_rate"] == pytest.approx(wanted.collision_rate)
    facets = served.client.get("/v1/facets", params={"depth": 1, "count": 3}).json()
    assert facets["depth"] == 1
    assert len(facets["items"]) <= 3
    refused(served.client.get("/v1/facets?depth=9"), 409, "does_not_fit", "depth must be 1 to 3, got 9")
    refused(served.client.get("/v1/merges"), 409, "does_not_fit", "no merges")


def test_events_come_once_a_second(served: Served) -> None:
    with served.client.stream("GET", "/v1/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in stream.iter_lines() if line)
        first, second = (json.loads(next(lines).removeprefix("data: ")) for _ in range(2))
    assert first["ready"]
    assert second["version"] == first["version"]
    assert second["requests"] >= first["requests"] > 0
    assert set(first) == {"ready", "version", "queue", "requests", "searched", "batches", "refused", "p50", "p99"}
    assert 0 < second["p50"] <= second["p99"]


def test_the_tree_is_the_ids(served: Served, recommender: Recommender) -> None:
    rows = [tuple(r.tolist()) for r in recommender.fitted.tokenizer.ids.prefix_free]
    waiting: list[tuple[int, ...]] = [()]
    seen = 0
    while waiting:
        prefix = waiting.pop()
        text = ",".join(map(str, prefix))
        node = served.client.get("/v1/tree", params={"prefix": text, "limit": 200}).json()
        assert node["items"] == sum(row[: len(prefix)] == prefix for row in rows)
        assert node["leaf"] == (prefix in rows)
        children = {row[len(prefix)] for row in rows if row[: len(prefix)] == prefix and len(row) > len(prefix)}
        assert {c["token"] for c in node["children"]} == children
        assert node["total_children"] == len(children)
        sizes = [c["items"] for c in node["children"]]
        assert sizes == sorted(sizes, reverse=True)
        waiting += [tuple(c["prefix"]) for c in node["children"]]
        seen += 1
    assert seen == recommender.fitted.model.trie.nodes


def test_the_page_may_load_nothing_from_elsewhere(served: Served) -> None:
    page = served.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    file = served.client.get("/page/index.html")
    assert (file.text, file.headers["content-security-policy"]) == (page.text, page.headers["content-security-policy"])
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/nothing.js"):
        assert served.client.get(path).status_code == 404


def test_metrics_tell_what_happened(served: Served) -> None:
    def value(name: str) -> float:
        lines = served.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    name = 'capsid_requests_total{code="200",route="/v1/recommend"}'
    before, searched = value(name), value("capsid_batch_size_sum")
    for _ in range(3):
        served.recommend([ITEMS[1]])
    assert value(name) == before + 3
    assert value("capsid_batch_size_sum") == searched + 3
    assert value("capsid_queue_depth") == 0
    text = served.client.get("/metrics").text
    assert not any(item in text for item in ("i71", "amber"))
    for name in ("capsid_request_seconds", "capsid_queue_seconds", "capsid_search_seconds", "capsid_catalogue_items"):
        assert name in text
    assert "capsid_build_info{version=" in text


def test_the_document_names_every_route(served: Served) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    assert {
        "/health/live",
        "/health/ready",
        "/metrics",
        "/v1/info",
        "/v1/recommend",
        "/v1/recommend/batch",
        "/v1/explain",
        "/v1/items",
        "/v1/items/{item_id}",
        "/v1/items/{item_id}/restore",
        "/v1/tree",
        "/v1/catalogue/rollback",
        "/v1/reload",
        "/v1/report",
        "/v1/facets",
        "/v1/merges",
    } <= set(paths)
    assert set(paths["/v1/items/{item_id}"]) == {"get", "delete"}
