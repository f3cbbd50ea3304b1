"""Keys, rate limit, cross-origin rules, addresses, full queues and deadlines, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from served import Served
from small_recipes import world
from test_http import refused

from capsid.errors import ArtifactError, ConfigError
from capsid.serve.edge import Edge, Keys, RateLimit, Receive, Scope, Send, read_key
from capsid.serve.errors import Refused
from capsid.serve.metrics import Metrics
from capsid.serve.options import ServeOptions, is_loopback
from capsid.serve.reports import MOST_WATCHERS, Reports
from capsid.serve.service import PAUSE

ITEM = world().items[0]
ASK = {"history": [ITEM], "k": 1}


def whole(raw: socket.socket) -> bytes:
    """An answer with its JSON body: head and body may arrive one after the other."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += (part := raw.recv(4096))
        assert part, f"the answer ends early: {answer!r}"
    return answer


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_keys(run: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("reader-key\n")
    (tmp_path / "admin").write_text("writer-key\n")
    files = {"api_key_file": str(tmp_path / "key"), "admin_key_file": str(tmp_path / "admin")}
    with Served(run, tmp_path / "state", **files) as served:
        client = served.client
        for headers in ({}, bearer("wrong"), {"authorization": "Basic reader-key"}, bearer("reader-key2")):
            answer = client.post("/v1/recommend", json=ASK, headers=headers)
            refused(answer, 401, "unauthorized", "Bearer")
            assert answer.headers["www-authenticate"] == "Bearer"
            refused(client.delete(f"/v1/items/{ITEM}", headers=headers), 401, "unauthorized")
            refused(client.get("/metrics", headers=headers), 401, "unauthorized")
        assert client.get("/health/live").status_code == client.get("/health/ready").status_code == 200
        for key in ("reader-key", "writer-key"):
            assert client.post("/v1/recommend", json=ASK, headers=bearer(key)).status_code == 200
            assert client.get("/metrics", headers=bearer(key)).status_code == 200
        refused(client.delete(f"/v1/items/{ITEM}", headers=bearer("reader-key")), 403, "forbidden", "admin key")
        assert client.delete(f"/v1/items/{ITEM}", headers=bearer("writer-key")).status_code == 200
        other = client.get("/v1/info", headers={**bearer("reader-key"), "host": "shop.example"})
        assert other.status_code == 200, "with keys, any name"


def test_without_an_admin_key_nothing_can_be_changed() -> None:
    keys = Keys(api="reader-key")
    keys.check("POST", "/v1/recommend", "reader-key")
    with pytest.raises(Refused, match="need the admin key") as refusal:
        keys.check("POST", "/v1/items", "reader-key")
    assert refusal.value.hint == "start the service with --admin-key-file"
    only_admin = Keys(admin="writer-key")
    only_admin.check("GET", "/v1/items", "")
    only_admin.check("DELETE", "/v1/items/x", "writer-key")
    with pytest.raises(Refused, match="missing or wrong"):
        only_admin.check("DELETE", "/v1/items/x", "")
    Keys().check("DELETE", "/v1/items/x", "")


def test_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("  long-enough  \nsecond line\n")
    monkeypatch.setenv("KEY", "environment\n")
    assert read_key(str(file), "KEY") == "long-enough"
    assert read_key("", "KEY") == "environment"
    assert read_key("", "NO_KEY") == ""
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_key(str(tmp_path / "nothing"), "KEY")


def test_keys_that_nobody_could_send_or_everybody_could_guess_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    for bad, message in (
        ("short", "at least 8 characters, got 5"),
        (" \n", "at least 8 characters, got 0"),
        ("schlüssel-123", "printable ASCII characters only, got another at place 5"),
        ("tab\tin the key", "printable ASCII characters only, got another at place 4"),
    ):
        file.write_text(bad, encoding="utf-8")
        monkeypatch.setenv("KEY", bad)
        with pytest.raises(ConfigError, match=message):
            read_key(str(file), "")
        with pytest.raises(ConfigError, match=f"in KEY must have {message}"):
            read_key("", "KEY")


def test_addresses(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPSID_API_KEY", raising=False)
    for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1"):
        assert is_loopback(host)
        ServeOptions(run=str(run), host=host)
    for host in ("0.0.0.0", "10.0.0.5", "::", "shop.example"):
        with pytest.raises(ConfigError, match="loopback address without an API key"):
            ServeOptions(run=str(run), host=host)
    ServeOptions(run=str(run), host="0.0.0.0", api_key_file="key")
    with pytest.raises(ConfigError, match="deadline must be"):
        ServeOptions(run=str(run), deadline=0.0)
    options = ServeOptions(run=str(run), cors=("http://a",), queue=7)
    monkeypatch.setenv("CAPSID_SERVE_OPTIONS", options.to_environment())
    assert ServeOptions.from_environment() == options
    assert options.state_folder == run.resolve().with_name("run.live")


def test_a_linked_run_keeps_its_edits_beside_the_link(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("may", "june"):
        shutil.copytree(run, tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to("may")
    with Served(link, "") as served:
        assert served.client.delete(f"/v1/items/{ITEM}").status_code == 200
        link.unlink()
        link.symlink_to("june")
        assert served.client.post("/v1/reload").status_code == 200
    with Served(link, "") as served:
        assert ITEM not in [i["item"] for i in served.recommend([], k=100)["items"]]
    assert [folder.name for folder in tmp_path.glob("*.live")] == ["current.live"]
    monkeypatch.chdir(tmp_path)
    options = ServeOptions(run="current").for_workers()
    assert options.state == str(tmp_path.resolve() / "current.live")
    assert ServeOptions(run="june", state="s").for_workers().state_folder == tmp_path / "s"


def test_edits_beside_the_target_of_a_link_are_not_forgotten(tmp_path: Path) -> None:
    """Earlier versions kept them there."""
    link, target = tmp_path / "current", tmp_path / "may"
    target.mkdir()
    link.symlink_to("may")
    ServeOptions(run=str(link)).for_workers()
    (tmp_path / "may.live").mkdir()
    with pytest.raises(ConfigError, match=r"there is only .*may\.live") as refusal:
        ServeOptions(run=str(link)).for_workers()
    assert refusal.value.hint is not None
    assert refusal.value.hint.startswith(f"mv {tmp_path / 'may.live'} {tmp_path / 'current.live'}")
    ServeOptions(run=str(target)).for_workers()
    ServeOptions(run=str(link), state=str(tmp_path / "state")).for_workers()
    (tmp_path / "current.live").mkdir()
    ServeOptions(run=str(link)).for_workers()


def test_without_keys_only_this_machine_is_served(served: Served) -> None:
    """A page elsewhere whose name was pointed at this machine must not get in."""
    refused(served.client.get("/v1/info", headers={"host": "evil.example"}), 403, "forbidden", "only this machine")
    assert served.client.get("/v1/info", headers={"host": "localhost:1"}).status_code == 200


def test_an_admin_key_alone_does_not_let_other_names_in(run: Path, tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("writer-key\n")
    with Served(run, tmp_path / "state", admin_key_file=str(tmp_path / "admin"), rate_limit=1.0) as served:
        refused(served.client.get("/v1/info", headers={"host": "evil.example"}), 403, "forbidden", "only this machine")
        codes = [served.client.get("/v1/info", headers=bearer(f"invented-{n}")).status_code for n in range(5)]
        assert 429 in codes, "a key that is not ours is no caller of its own"
        allowed = served.client.get("/v1/info", headers=bearer("writer-key"))
        assert allowed.status_code == 200, "a key has a bucket of its own"


def test_foreign_pages_cannot_edit_without_a_key(run: Path, tmp_path: Path) -> None:
    """A browser sends a POST without a body to any address, and asks nobody."""
    with Served(run, tmp_path / "state", cors=("https://shop.example",)) as served:

        def reload(**headers: str) -> httpx.Response:
            return served.client.post("/v1/reload", headers={n.replace("_", "-"): v for n, v in headers.items()})

        for origin in ("https://evil.example", "null", "http://localhost:1"):
            refused(reload(origin=origin), 403, "forbidden", "--cors-origin")
        refused(reload(sec_fetch_site="cross-site"), 403, "forbidden", "cross-site")
        foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
        refused(served.client.delete(f"/v1/items/{ITEM}", headers=foreign), 403, "forbidden")
        assert served.service.version == 1
        assert reload(origin=served.url, sec_fetch_site="same-origin").status_code == 200
        assert reload(origin="https://shop.example", sec_fetch_site="cross-site").status_code == 200
        assert reload().status_code == 200


def test_a_key_allows_edits_from_any_page(run: Path, tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("writer-key\n")
    with Served(run, tmp_path / "state", admin_key_file=str(tmp_path / "admin")) as served:
        headers = {**bearer("writer-key"), "origin": "https://other.example"}
        assert served.client.post("/v1/reload", headers=headers).status_code == 200


def test_rate_limit_refills() -> None:
    limit = RateLimit(2.0, callers=2)
    for now in (0.0, 0.0, 0.6):
        limit.take("a", now)
    with pytest.raises(Refused, match="more than 2 requests per second") as refusal:
        limit.take("a", 0.7)
    assert refusal.value.headers == {"retry-after": "1"}
    limit.take("b", 0.7)
    limit.take("a", 1.2)
    for caller in ("b", "c", "d"):
        limit.take(caller, 1.2)
    RateLimit(0.0).take("a", 0.0)


def test_rate_limit_and_cross_origin(run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state", rate_limit=1.0, cors=("http://shop.example",)) as served:
        origin = {"origin": "http://shop.example"}
        answers = [served.client.post("/v1/recommend", json=ASK, headers=origin) for _ in range(4)]
        assert {a.status_code for a in answers} == {200, 429}
        last = answers[-1]
        refused(last, 429, "rate_limited")
        assert int(last.headers["retry-after"]) >= 1
        assert {a.headers["access-control-allow-origin"] for a in answers} == {"http://shop.example"}
        asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        assert served.client.options("/v1/recommend", headers=asked).status_code == 200
        elsewhere = {**asked, "origin": "http://evil.example"}
        assert served.client.options("/v1/recommend", headers=elsewhere).status_code == 400
        assert served.client.get("/health/live").status_code == 200


def hold(served: Served) -> threading.Event:
    """Keep the model thread busy until the event is set."""
    free, begun = threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        free.wait(30)

    loop = served.service._batcher._loop
    asyncio.run_coroutine_threadsafe(served.service.ask([work]), loop)
    assert begun.wait(30)
    return free


def test_full_queue_deadline_and_who_has_gone(run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state", queue=3, deadline=0.5) as served:
        free = hold(served)
        with httpx.Client(base_url=served.url) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post("/v1/recommend", json=ASK, timeout=0.2)
        too_large = served.client.post("/v1/recommend/batch", json={"histories": [[ITEM]] * 4})
        refused(too_large, 422, "invalid_request", "histories: at most 3 (--queue), got 4")
        assert "retry-after" not in too_large.headers
        waiting = threading.Thread(target=served.client.post, args=("/v1/recommend",), kwargs={"json": ASK})
        waiting.start()
        while served.service.depth == 0:
            time.sleep(0.01)
        with httpx.Client(base_url=served.url, timeout=30) as other:
            many = other.post("/v1/recommend/batch", json={"histories": [[ITEM]] * 3})
        refused(many, 429, "queue_full")
        assert int(many.headers["retry-after"]) >= 1
        waiting.join()
        start = time.monotonic()
        late = served.client.post("/v1/recommend", json=ASK)
        refused(late, 504, "deadline")
        assert 0.4 < time.monotonic() - start < 5
        assert served.client.get("/health/live").status_code == 200
        free.set()
        assert served.client.post("/v1/recommend", json=ASK).status_code == 200
        text = served.client.get("/metrics").text
        assert "capsid_cancelled_total 3.0" in text, "neither who had gone nor who was told 504 was searched"
        assert 'capsid_rejected_total{reason="queue_full"} 1.0' in text


def test_a_full_queue_refuses_before_the_body_is_read(run: Path, tmp_path: Path) -> None:
    """The body of the request never ends, so whoever reads it first never answers."""
    with Served(run, tmp_path / "state", queue=1, deadline=30.0) as served:
        free = hold(served)
        waiting = threading.Thread(target=served.client.post, args=("/v1/recommend",), kwargs={"json": ASK})
        waiting.start()
        while served.service.depth == 0:
            time.sleep(0.01)
        head = b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", served.options.port), timeout=20) as raw:
            raw.sendall(head)
            answer = whole(raw)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"1 requests are already waiting" in answer
        free.set()
        waiting.join()
        text = served.client.get("/metrics").text
        assert 'capsid_requests_total{code="429",route="/v1/recommend"} 1.0' in text
        assert 'capsid_rejected_total{reason="queue_full"} 1.0' in text


BEGUN = (
    b"POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
)


def test_a_body_that_does_not_arrive_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.serve.edge.BODY_SECONDS", 1.0)
    with Served(run, tmp_path / "state") as served:
        address = ("127.0.0.1", served.options.port)
        with socket.create_connection(address, timeout=20) as silent, socket.create_connection(address) as slow:
            silent.sendall(BEGUN)
            slow.sendall(BEGUN)
            slow.settimeout(0.3)
            answer = b""
            for _ in range(60):
                slow.sendall(b" ")
                try:
                    answer = slow.recv(4096)
                    break
                except TimeoutError:
                    continue
            assert answer.startswith(b"HTTP/1.1 408"), "a byte now and then gains no time"
            told = whole(silent)
            assert told.startswith(b"HTTP/1.1 408")
            assert b"a body must arrive within 1 s" in told
            assert b"connection: close" in told


BODIES = (
    ("POST", "/v1/recommend"),
    ("POST", "/v1/recommend/batch"),
    ("POST", "/v1/explain"),
    ("POST", "/v1/compare"),
    ("POST", "/v1/items"),
)


@pytest.mark.parametrize(("method", "path"), BODIES, ids=str)
@pytest.mark.parametrize("sent", [0, 5])
def test_a_client_that_hangs_up_is_no_failure(
    served: Served, method: str, path: str, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    def count(code: int) -> float:
        text = served.client.get("/metrics").text
        found = re.findall(rf'capsid_requests_total{{code="{code}",route="{path}"}} (\S+)', text)
        return float(found[0]) if found else 0.0

    gone, failed = count(499), count(500)
    with socket.create_connection(("127.0.0.1", served.options.port)) as connection:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += "content-length: 40\r\n"
        connection.sendall(f"{head}\r\n".encode() + b'{"history": ["a"]'[:sent])
        time.sleep(0.1)
    end = time.monotonic() + 20
    while count(499) == gone and time.monotonic() < end:
        time.sleep(0.05)
    assert (count(499), count(500)) == (gone + 1, failed)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_two_hosts_are_one_too_many(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.options.port)) as connection:
        connection.settimeout(20)
        connection.sendall(b"GET /v1/info HTTP/1.1\r\nhost: localhost\r\nhost: elsewhere\r\n\r\n")
        answer = whole(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"a request must have one host header, got 2" in answer


def test_a_body_that_does_not_arrive_cannot_hold_up_the_end(run: Path, tmp_path: Path) -> None:
    with (
        Served(run, tmp_path / "state", drain=0.2) as served,
        socket.create_connection(("127.0.0.1", served.options.port), timeout=20) as raw,
    ):
        raw.sendall(BEGUN)
        while len(served.server.server_state.tasks) == 0:
            time.sleep(0.01)
        served.service.draining = True
        start = time.monotonic()
        assert raw.recv(4096).startswith(b"HTTP/1.1 503")
        assert time.monotonic() - start < 10


def test_a_live_page_too_many_is_told_when_to_come_back(served: Served) -> None:
    reports = Reports(served.service)
    reports._watchers = MOST_WATCHERS
    with pytest.raises(Refused, match="too many live pages: 32 are open") as refusal:
        reports.watch()
    assert refusal.value.headers == {"retry-after": "10"}


def test_a_full_queue_refuses_in_bursts_and_takes_edits(run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state", queue=1, deadline=30.0) as served:
        free = hold(served)
        waiting = threading.Thread(target=served.client.post, args=("/v1/recommend",), kwargs={"json": ASK})
        waiting.start()
        while served.service.depth == 0:
            time.sleep(0.01)
        start = time.monotonic()
        for _ in range(10):
            refused(served.client.post("/v1/recommend", json=ASK), 429, "queue_full")
        assert time.monotonic() - start > 9 * PAUSE, "after each refusal the search has its time"
        assert served.client.get("/health/live").status_code == 200
        threading.Timer(0.2, free.set).start()
        edit = served.client.delete(f"/v1/items/{ITEM}")
        assert (edit.status_code, edit.json()["version"]) == (200, 2), "its trial search does not need a place"
        waiting.join()


def test_what_is_loaded_is_not_searched_for_garbage(served: Served) -> None:
    loaded = served.service.snapshot.recommender.catalogue_.users
    tracked = gc.get_objects()
    assert gc.get_freeze_count() > 10_000
    assert not any(one is loaded for one in tracked)
    served.client.post("/v1/reload")
    again = served.service.snapshot.recommender.catalogue_.users
    assert again is not loaded
    assert not any(one is again for one in gc.get_objects())


def test_nobody_is_queued_behind_one_who_has_waited_long(run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state", deadline=1.0) as served:
        free = hold(served)
        first = threading.Thread(target=served.client.post, args=("/v1/recommend",), kwargs={"json": ASK})
        first.start()
        time.sleep(0.7)
        refused(served.client.post("/v1/recommend", json=ASK), 429, "queue_full")
        free.set()
        first.join()


def test_a_failure_inside_a_route_is_one_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.serve.routes.search_items", lambda *_: 1 / 0)
    monkeypatch.setattr("capsid.serve.routes.schema.RecommendRequest.model_validate_json", lambda *_: 1 / 0)
    for answer in (served.client.get("/v1/items"), served.client.post("/v1/recommend", json=ASK)):
        refused(answer, 500, "internal", "see the log")


def test_a_stream_is_as_quick_as_its_beginning() -> None:
    """Events are sent until the client leaves; the Health view would show that as the time of a request."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(1.0)
        await send({"type": "http.response.body", "body": b"data: 1"})

    async def nothing(*_: object) -> dict[str, object]:
        return {}

    metrics = Metrics()
    edge = Edge(stream, metrics=metrics, version=lambda: 1, draining=lambda: False)
    asyncio.run(edge({"type": "http", "path": "/v1/events", "headers": []}, nothing, nothing))
    assert metrics.totals()["requests"] == 1
    assert 0 < metrics.latencies()["p99"] < 1.0


def test_draining_refuses_and_ends(run: Path, tmp_path: Path) -> None:
    with Served(run, tmp_path / "state") as served:
        served.service.draining = True
        assert served.client.get("/health/live").status_code == 200
        assert served.client.get("/health/ready").status_code == 503
        answer = served.client.post("/v1/recommend", json=ASK)
        refused(answer, 503, "draining")
        assert answer.headers["connection"] == "close"
