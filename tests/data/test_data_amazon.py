from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from data_files import write

from capsid.data import amazon
from capsid.data.amazon import fetch, load_benchmark, parse_literal
from capsid.data.check import check_path
from capsid.data.sources import load_dataset
from capsid.errors import DataError

REVIEWS = [("u1", "A", 30, 5.0), ("u2", "A", 10, 2.0), ("u1", "B", 20, 4.0), ("u2", "C", 10, 5.0), ("u1", "C", 20, 1.0)]
META: list[dict[str, Any]] = [
    {
        "asin": "A",
        "title": "Soap &amp; water",
        "categories": [["Beauty", "Bath"], ["Home"]],
        "price": 3.5,
        "brand": "It's",
    },
    {"asin": "Z", "title": "nobody reviewed it", "salesRank": {"Beauty": 3}},
    {"asin": "B", "title": "Comb", "related": {"also_bought": ["C"]}, "categories": [["Beauty"]], "brand": ""},
]


def published(folder: Path, *, meta_lines: list[str] | None = None, category: str = "Beauty") -> Path:
    reviews = [
        json.dumps({"reviewerID": u, "asin": i, "unixReviewTime": t, "overall": r, "reviewText": "x"})
        for u, i, t, r in REVIEWS
    ]
    write(folder / f"reviews_{category}_5.json.gz", reviews)
    write(folder / f"meta_{category}.json.gz", [repr(m) for m in META] if meta_lines is None else meta_lines)
    return folder


def test_published_files(tmp_path: Path) -> None:
    data = load_dataset(published(tmp_path))
    assert {u: data.items.ids(r) for u, r in zip(data.users, data.sequences)} == {
        "u1": ["B", "C", "A"],
        "u2": ["A", "C"],
    }
    assert data.times is not None
    assert data.times.tolist() == [20, 20, 30, 10, 10]
    assert list(data.items) == ["A", "B", "C"]  # Reviewed items only, C without any meta line.
    rows = dict(zip(data.items, data.attributes.to_dicts()))
    assert rows["A"] == {"title": "Soap & water", "brand": "It's", "categories": ["Beauty", "Bath"], "price": 3.5}
    assert rows["B"] == {"title": "Comb", "brand": None, "categories": ["Beauty"], "price": None}
    assert rows["C"]["title"] is None
    assert load_dataset(tmp_path, min_rating=4).interactions == 3


def test_a_few_broken_meta_lines_warn_and_many_are_an_error(tmp_path: Path) -> None:
    good = [repr({"asin": f"X{i}"}) for i in range(300)] + [repr(m) for m in META]
    data = load_dataset(published(tmp_path / "few", meta_lines=[*good, "{'asin': 'C', 'title': "]))
    assert data.attributes["title"].to_list() == ["Soap & water", "Comb", None]
    report = check_path(tmp_path / "few")
    assert report.ok
    assert [f.where for f in report.findings if f.code == "broken-meta-line"] == ["meta_Beauty.json.gz:304"]
    with pytest.raises(DataError, match=r"2 of 5 lines are broken \(lines 4, 5\), more than 1%"):
        load_dataset(published(tmp_path / "many", meta_lines=[repr(m) for m in META] + ["{", "nonsense("]))


def test_meta_lines_are_never_evaluated(tmp_path: Path) -> None:
    marker = tmp_path / "evil"
    for line in (
        f"{{'asin': open({str(marker)!r}, 'w')}}",
        f"__import__('pathlib').Path({str(marker)!r}).touch()",
        "(" * 5000,
    ):
        with pytest.raises(ValueError, match="neither"):
            parse_literal(line.encode())
    assert not marker.exists()
    assert parse_literal(b'{"asin": "A", "x": null}') == {"asin": "A", "x": None}
    with pytest.raises(ValueError, match="list"):
        parse_literal(b"[1]")


def test_broken_reviews_and_missing_meta(tmp_path: Path) -> None:
    published(tmp_path)
    write(
        tmp_path / "reviews_Beauty_5.json.gz",
        ['{"reviewerID": "u", "asin": "A", "unixReviewTime": 1}', "{", '{"asin": "A"}'],
    )
    with pytest.raises(DataError, match=r"reviews_Beauty_5\.json\.gz:2: broken review.*1 more"):
        load_dataset(tmp_path)
    (tmp_path / "meta_Beauty.json.gz").unlink()
    with pytest.raises(DataError, match=r"no meta_Beauty\.json\.gz"):
        load_dataset(tmp_path)


@dataclass
class Server:
    """A file server that can cut connections, ignore ranges and damage bytes."""

    folder: Path
    url: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    cut_after: int | None = None
    cuts_left: int = 0
    ranges: bool = True
    etag: str | None = '"one"'


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(amazon.time, "sleep", lambda seconds: None)
    state = Server(tmp_path / "remote")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range") if state.ranges and self.headers.get("If-Range") == state.etag else None
            state.requests.append((self.path, self.headers.get("Range")))
            file = state.folder / self.path.strip("/")
            if not file.is_file():
                self.send_error(404)
                return
            data = file.read_bytes()
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if begin >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            if state.etag:
                self.send_header("ETag", state.etag)
            self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            body = data[begin:]
            if state.cut_after is not None and state.cuts_left > 0 and len(body) > state.cut_after:
                state.cuts_left -= 1
                body = body[: state.cut_after]
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def test_benchmark_by_name(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(server.folder)
    monkeypatch.setenv("CAPSID_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CAPSID_AMAZON_URL", server.url + "/")
    data = load_dataset("amazon-beauty")
    assert data.name == "amazon-beauty"
    assert data.interactions == 5
    assert [path for path, _ in server.requests] == ["/reviews_Beauty_5.json.gz", "/meta_Beauty.json.gz"]
    again = load_dataset("amazon-beauty")  # From the prepared folder: no request, the same data.
    assert len(server.requests) == 2
    assert again.fingerprint == data.fingerprint
    assert load_dataset("amazon-beauty", min_rating=4).interactions == 3
    assert len(server.requests) == 2


def test_interrupted_download_resumes_within_and_across_runs(server: Server, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    write(server.folder / "file.bin", content)
    server.cut_after, server.cuts_left = 1000, 2
    path = fetch(f"{server.url}/file.bin", tmp_path / "file.bin")
    assert path.read_bytes() == content
    assert [r for _, r in server.requests] == [None, "bytes=1000-", "bytes=2000-"]
    server.requests.clear()
    server.cuts_left = 99
    with pytest.raises(DataError, match=r"the connection was cut; 4,000 bytes are kept"):
        fetch(f"{server.url}/file.bin", tmp_path / "other.bin")
    assert not (tmp_path / "other.bin").exists()
    server.cuts_left = 0
    assert fetch(f"{server.url}/file.bin", tmp_path / "other.bin").read_bytes() == content
    assert server.requests[-1][1] == "bytes=4000-"
    assert sorted(p.name for p in tmp_path.glob("other*")) == ["other.bin", "other.bin.sha256"]


@pytest.mark.parametrize("change", ["etag", "no-ranges", "no-etag"])
def test_changed_or_plain_servers_start_again(server: Server, tmp_path: Path, change: str) -> None:
    write(server.folder / "file.bin", b"o" * 5000)
    if change == "no-etag":
        server.etag = None
    server.cut_after, server.cuts_left = 1000, 4
    if change == "no-ranges":
        server.ranges = False
    with pytest.raises(DataError, match="bytes are kept"):
        fetch(f"{server.url}/file.bin", tmp_path / "file.bin")
    if change == "etag":
        server.etag = '"two"'
    write(server.folder / "file.bin", b"n" * 4500)
    server.cuts_left = 0
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin").read_bytes() == b"n" * 4500


def test_complete_part_is_taken_as_it_is(server: Server, tmp_path: Path) -> None:
    write(server.folder / "file.bin", b"abc")
    (tmp_path / "file.bin.part").write_bytes(b"abc")
    (tmp_path / "file.bin.part.etag").write_text('"one"')
    assert fetch(f"{server.url}/file.bin", tmp_path / "file.bin").read_bytes() == b"abc"
    (tmp_path / "x.bin.part").write_bytes(b"abcdef")  # Longer than the file: of another version.
    (tmp_path / "x.bin.part.etag").write_text('"one"')
    assert fetch(f"{server.url}/file.bin", tmp_path / "x.bin").read_bytes() == b"abc"


def test_damage_on_the_way_and_on_disk(server: Server, tmp_path: Path) -> None:
    whole = gzip.compress(b"text " * 1000)
    for name, bad in (("cut.gz", whole[:-5]), ("flip.gz", whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])):
        server.folder.mkdir(exist_ok=True)
        (server.folder / name).write_bytes(bad)
        with pytest.raises(DataError, match="arrived damaged"):
            fetch(f"{server.url}/{name}", tmp_path / name)
        assert not (tmp_path / name).exists()
        assert not (tmp_path / f"{name}.part").exists()
    (server.folder / "good.gz").write_bytes(whole)
    with pytest.raises(DataError, match="expected 00"):
        fetch(f"{server.url}/good.gz", tmp_path / "good.gz", sha256="00")
    path = fetch(f"{server.url}/good.gz", tmp_path / "good.gz")
    path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
    with pytest.raises(DataError, match="was damaged after its download"):
        fetch(f"{server.url}/good.gz", path)


def test_corrupt_benchmark_file_in_the_cache(server: Server, tmp_path: Path) -> None:
    published(server.folder)
    load_benchmark("amazon-beauty", base_url=server.url, home=tmp_path / "home", min_rating=1)
    raw = tmp_path / "home" / "datasets" / "amazon-beauty" / "meta_Beauty.json.gz"
    raw.write_bytes(raw.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"meta_Beauty\.json\.gz was damaged"):
        load_benchmark("amazon-beauty", base_url=server.url, home=tmp_path / "home")


def test_offline_and_missing_files_say_what_to_do(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    for url in (closed, server.url):
        with pytest.raises(DataError) as caught:
            load_benchmark("amazon-toys", base_url=url, home=tmp_path / "home")
        assert "reviews_Toys_and_Games_5.json.gz and meta_Toys_and_Games.json.gz" in str(caught.value.hint)
        assert "--data" in str(caught.value.hint)
    with pytest.raises(DataError, match="no benchmark"):
        load_benchmark("amazon-books")
