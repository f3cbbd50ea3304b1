"""Measures the size of the explorer page, when it can be used, and the size of the answers that it requests.

    python benchmarks/page.py [RUN] [--items 1000000] [--only VIEW,VIEW] [--out FILE]
    python benchmarks/page.py --quick

Drives chromium (`make browser` installs it) over a service in its own process. Without RUN, a synthetic catalogue of
that many items with titles of 150 letters is made: ids from residual k-means over planted vectors, nothing learnt.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gzip
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from _client import Service
from common import machine, write_result

import capsid.serve
from capsid.data.planted import planted_dataset, planted_vectors
from capsid.recommender import Recommender

PAGE = Path(capsid.serve.__file__).parent / "page"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TITLE, REPEAT = 150, 3
VIEWS = ("catalogue", "zoomed", "item", "recommend", "compare", "health")


def made_run(folder: Path, items: int) -> Path:
    """A run over about this many items, in a tree of four levels."""
    side = max(2, round((items / 5) ** (1 / 3)))
    size = {"branching": (side, side, math.ceil(items / 5 / side**2)), "items_per_leaf": 5}
    data = planted_dataset(**size, users=2_000, length=12)
    filler = " with a title as long as those of real shops, which say everything twice" * 2
    title = (pl.col("title") + filler).str.slice(0, TITLE)
    data = dataclasses.replace(data, attributes=data.attributes.with_columns(title))
    np.savez(folder / "vectors.npz", ids=np.array(list(data.items)), vectors=planted_vectors(**size))
    settings = ["encoder=precomputed", f"encoder.path={folder / 'vectors.npz'}", "tokenizer.restarts=1"]
    settings += ["schedule.0.training.steps=1", "schedule.0.training.validate_every=1"]
    settings += ["generator.width=32", "generator.heads=2", "generator.feedforward=32"]
    Recommender.from_recipe("rq-kmeans", settings=settings).fit(data).save_pretrained(folder / "run")
    return folder / "run"


def weight() -> dict[str, int]:
    """Bytes of all files, as they are and compressed one by one."""
    files = [file.read_bytes() for file in PAGE.rglob("*") if file.is_file()]
    return {
        "files": len(files),
        "bytes": sum(map(len, files)),
        "gzipped_bytes": sum(len(gzip.compress(file)) for file in files),
    }


def addresses(port: int, browser: Browser) -> dict[str, str]:
    """A state of every view that has something to show."""
    context = browser.new_context()
    get = context.request.get
    told = get(f"http://127.0.0.1:{port}/v1/histories/0").json()
    root = get(f"http://127.0.0.1:{port}/v1/tree?limit=1").json()
    context.close()
    history = "&".join(f"h={one['item']}" for one in told["history"])
    return {
        "catalogue": "catalogue",
        "zoomed": f"catalogue?prefix={root['children'][0]['token']}",
        "item": f"item?id={told['next']['item']}",
        "recommend": f"recommend?{history}",
        "compare": f"compare?{history}",
        "health": "health",
    }


def processor(pid: int) -> float:
    """Processor seconds of a process and of all that it started, ended ones included."""
    seconds = 0.0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            children = (task / "children").read_text().split()
            seconds += sum(processor(int(child)) for child in children)
    return seconds


def visit(browser: Browser, one: Service, address: str) -> dict[str, Any]:
    """Open an address in a browser that has never seen it: seconds until the view is there, and its answers.

    The processor's seconds (browser, service and this script) are what the clock would say on one quiet core.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    answers: dict[str, int] = {}
    page = context.new_page()
    page.on("requestfinished", lambda r: answers.update({r.url: r.sizes()["responseBodySize"]}))
    # The service is a child of this process too.
    worked, began = processor(os.getpid()), time.perf_counter()
    page.goto(f"http://127.0.0.1:{one.port}/#/{address}")
    page.wait_for_selector("main:not([aria-busy])[data-view] h1", state="attached", timeout=120_000)
    seconds, worked = time.perf_counter() - began, processor(os.getpid()) - worked
    found = page.locator("[role=alert]").count()
    context.close()
    data = {url.partition("/v1/")[2].partition("?")[0]: size for url, size in answers.items() if "/v1/" in url}
    return {"seconds": seconds, "processor_seconds": worked, "failed": found, "answers": data}


def search(browser: Browser, port: int) -> dict[str, float]:
    """Seconds and bytes of a search in titles."""
    context = browser.new_context()
    seconds, size = [], 0
    for text in ("amber 7", "birch 3 item", "nothing like it", ""):
        began = time.perf_counter()
        body = context.request.get(f"http://127.0.0.1:{port}/v1/items", params={"q": text, "limit": 8}).body()
        seconds.append(time.perf_counter() - began)
        size = max(size, len(body))
    context.close()
    return {"seconds": statistics.median(seconds), "largest_bytes": size}


@contextlib.contextmanager
def service(run: Path, folder: Path) -> Iterator[Service]:
    """A service over the run."""
    one = asyncio.run(Service(run, folder / "state", "--deadline", "60").ready())
    try:
        yield one
    finally:
        asyncio.run(one.end(signal.SIGKILL))


def measure(run: Path, folder: Path, repeat: int, only: list[str]) -> dict[str, Any]:
    """All views, the first visit apart from the later ones: it fills what the service keeps of a version."""
    with service(run, folder) as one, sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        views = {}
        chosen = addresses(one.port, browser)
        for name, address in {name: chosen[name] for name in only}.items():
            seen = [visit(browser, one, address) for _ in range(repeat + 1)]
            if any(v["failed"] for v in seen):
                raise SystemExit(f"the view {name} shows an error")
            views[name] = {
                "first_seconds": round(seen[0]["seconds"], 3),
                "seconds": round(statistics.median(v["seconds"] for v in seen[1:]), 3),
                "processor_seconds": round(statistics.median(v["processor_seconds"] for v in seen[1:]), 3),
                "largest_answer_bytes": max(seen[-1]["answers"].values()),
                "answers": seen[-1]["answers"],
            }
            print(f"{name}: {json.dumps(views[name])}", flush=True)
        found = search(browser, one.port)
        browser.close()
    return {"views": views, "search": found}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=REPEAT, help="visits of each view after the first")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(VIEWS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if CHROMIUM is None:
        print("there is no chromium: `make browser` installs it", file=sys.stderr)
        return {}
    torch.set_num_threads(1)
    facts = machine(threads=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = args.run or made_run(folder, 500 if args.quick else args.items)
        items = len(Recommender.from_pretrained(run).catalogue_.items)
        result = {"page": weight(), **measure(run, folder, 1 if args.quick else args.repeat, args.only.split(","))}
    result["largest_answer_bytes"] = max(view["largest_answer_bytes"] for view in result["views"].values())
    config = {"run": args.run.name if args.run else "made", "items": items, "quick": args.quick, "repeat": args.repeat}
    if args.out or not args.quick:
        write_result("page", args.out, config, {"machine": facts, **result})
    return result


if __name__ == "__main__":
    main()
