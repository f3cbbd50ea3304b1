"""What serving a run over HTTP costs beside the search itself, and whether it keeps its promises under load.

    python benchmarks/serve.py [RUN] [--seconds 20] [--long] [--only NAME,NAME] [--out FILE]
    python benchmarks/serve.py --quick

Client, service and the bare search share one machine, so what counts are ratios inside one run. Without RUN a
recommender of Beauty's size is made here with nothing learnt. `--long` takes the counts of the goals (10 minutes of
overload, 1,000 edits, 100 SIGTERMs, 50 kills, 100,000 bodies); `--quick` proves the way only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from _client import (
    Control,
    Nursery,
    Outcome,
    Service,
    ask_by_document,
    closed_loop,
    connected,
    many_connected,
    open_loop,
)
from common import machine, side_by_side, write_result

from capsid.answering import Query
from capsid.data.planted import planted_dataset
from capsid.decode.watch import Recorder
from capsid.ragged import Ragged
from capsid.recommender import Recommender

BATCH, CLIENTS = 16, 32
# Connections of an overload: three times the queue of a service, so that it has to refuse.
CROWD = 768
# Seconds of overload between two measurements of the peak.
SLICE = 15.0


@dataclass(frozen=True)
class Amounts:
    """How much of everything."""

    seconds: float
    overload: float
    edits: int
    answers: int
    terminations: int
    kills: int
    bodies: int


QUICK = Amounts(1.0, 1.0, 6, 50, 1, 1, 200)
USUAL = Amounts(20.0, 30.0, 100, 2_000, 5, 5, 5_000)
LONG = Amounts(60.0, 600.0, 1_000, 100_000, 100, 50, 100_000)


def made_run(folder: Path, *, quick: bool) -> Path:
    """A run of Beauty's size (12,000 items, ids of 3 x 256 codes) whose generator has seen one step."""
    size: dict[str, Any] = {"branching": (4, 3), "items_per_leaf": 5, "users": 60, "length": 9}
    settings = ["encoder=hashing", "schedule.0.training.steps=1", "schedule.0.training.validate_every=1"]
    if quick:
        settings += ["tokenizer.codebooks=8,8,8", "generator.width=16", "generator.heads=2", "generator.feedforward=16"]
    else:
        size = {"branching": (24, 20, 5), "items_per_leaf": 5, "users": 3_000, "length": 12}
    recommender = Recommender.from_recipe("rq-kmeans", settings=settings).fit(planted_dataset(**size))
    recommender.save_pretrained(folder / "run")
    return folder / "run"


class Bench:
    """All measurements over one run."""

    def __init__(self, run: Path, folder: Path, amounts: Amounts) -> None:
        self.run, self.folder, self.amounts = run, folder, amounts
        self.recommender = Recommender.from_pretrained(run)
        cases = self.recommender.catalogue_.split.test
        items = self.recommender.catalogue_.items
        rows = np.linspace(0, len(cases) - 1, min(512, len(cases))).astype(np.int64)
        self.histories = [items.ids(cases.histories[int(row)][-50:]) for row in rows]
        self.results: dict[str, Any] = {}
        self.nursery = Nursery()
        self._states = 0

    def ask(self, number: int) -> tuple[str, str, Any]:
        """The request with this number."""
        return "POST", "/v1/recommend", {"history": self.histories[number % len(self.histories)], "k": 10}

    @contextlib.asynccontextmanager
    async def service(self, *options: str, nursery: Nursery | None = None) -> Any:
        """A service with a state of its own."""
        self._states += 1
        service = await Service(self.run, self.folder / f"state{self._states}", *options, nursery=nursery).ready()
        try:
            yield service
        finally:
            await service.end(signal.SIGKILL)

    def raw(self) -> dict[str, float]:
        """The search alone, one thread: a user in batches of 16, a batch of 16, and a lone user."""
        queries = [Query(tuple(h)) for h in self.histories]
        answerer = self.recommender.answerer
        end, users, walls, cpus = time.monotonic() + self.amounts.seconds, 0, [], []
        while time.monotonic() < end or not walls:
            part = [queries[(users + n) % len(queries)] for n in range(BATCH)]
            wall, cpu = time.perf_counter(), time.process_time()
            answerer.answer(part)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            users += BATCH
        lone = side_by_side({"lone": lambda: answerer.answer(queries[:1])}, 15)["lone"]
        return {
            "users_per_second": users / sum(walls),
            "cpu_ms_per_user": 1e3 * sum(cpus) / users,
            "batch_ms": 1e3 * float(np.median(walls)),
            "lone_ms": 1e3 * lone.seconds,
        }

    async def peak(self) -> dict[str, Any]:
        """32 clients as fast as they can, and one alone; before and after it the search alone."""
        before = self.raw()
        async with self.service() as service:
            await closed_loop(service.port, self.ask, clients=CLIENTS, seconds=min(2.0, self.amounts.seconds))
            cpu = service.processor_seconds()
            many = await closed_loop(service.port, self.ask, clients=CLIENTS, seconds=self.amounts.seconds)
            cpu = 1e3 * (service.processor_seconds() - cpu) / max(many.codes[200], 1)
            one = ("POST", "/v1/recommend", {"history": self.histories[0], "k": 10})
            lone = await closed_loop(service.port, lambda _: one, clients=1, seconds=self.amounts.seconds / 2)
        after = self.raw()
        raw = {name: (before[name] + after[name]) / 2 for name in before}
        self.results["raw"] = raw
        return {
            **many.summary(),
            "cpu_ms_per_user": cpu,
            "of_raw": many.rate / raw["users_per_second"],
            "cpu_of_raw": cpu / raw["cpu_ms_per_user"],
            "lone_p50_ms": 1e3 * lone.quantile(0.5),
            "lone_over_raw_ms": 1e3 * lone.quantile(0.5) - raw["lone_ms"],
        }

    async def steady(self) -> dict[str, Any]:
        """60 % of the peak at a constant rate."""
        rate = 0.6 * self.results["peak"]["served_per_second"]
        async with self.service() as service, many_connected(service.port, 64) as clients:
            await closed_loop(service.port, self.ask, clients=4, seconds=1.0)
            met = await open_loop(clients, self.ask, rate=max(rate, 1.0), seconds=self.amounts.seconds)
        return {**met.summary(), "p99_of_a_batch": 1e3 * met.quantile(0.99) / self.results["raw"]["batch_ms"]}

    async def overload(self) -> dict[str, Any]:
        """Twice the peak: what is served, what is refused, memory, and how fast the live probe answers meanwhile.

        The peak is measured again before each slice, because other programs take a changing share of the machine.
        """
        slices = max(round(self.amounts.overload / SLICE), 1)
        seconds = self.amounts.overload / slices
        peak, over, probed, control = Outcome(), Outcome(), Outcome(), Outcome()
        cpu_peak = cpu_over = 0.0
        async with self.service() as service, many_connected(service.port, CROWD) as clients:
            await closed_loop(service.port, self.ask, clients=CLIENTS, seconds=min(2.0, self.amounts.seconds))
            memory = [service.memory()]
            for _ in range(slices):
                at = service.processor_seconds()
                part = await closed_loop(service.port, self.ask, clients=CLIENTS, seconds=max(seconds / 4, 0.5))
                cpu_peak += service.processor_seconds() - at
                peak.add(part)
                at = service.processor_seconds()
                probing = asyncio.create_task(self._probe(service.port, seconds))
                over.add(await open_loop(clients, self.ask, rate=max(2 * part.rate, 2.0), seconds=seconds))
                cpu_over += service.processor_seconds() - at
                for sum_, one in zip((probed, control), await probing):
                    sum_.add(one)
                memory.append(service.memory())
        return {
            **over.summary(),
            "slices": slices,
            "peak_per_second": peak.rate,
            "goodput_of_peak": over.rate / peak.rate,
            "goodput_of_peak_per_processor_second": (over.codes[200] / cpu_over) / (peak.codes[200] / cpu_peak),
            "service_processor_share": {"peak": cpu_peak / peak.elapsed, "overload": cpu_over / over.elapsed},
            "memory_mb": [round(m / 1e6, 1) for m in memory],
            "probe": probed.summary(),
            "bare_server_probe": control.summary(),
        }

    async def _probe(self, port: int, seconds: float) -> list[Outcome]:
        """20 probes per second of the service, and as many of a bare server that has nothing else to do."""
        ask, control = ("GET", "/health/live", None), Control()
        try:
            async with many_connected(port, 4) as own, many_connected(control.port, 4) as bare:
                loops = (open_loop(clients, lambda _: ask, rate=20, seconds=seconds) for clients in (own, bare))
                return await asyncio.gather(*loops)
        finally:
            control.end()

    async def edits(self) -> dict[str, Any]:
        """Edits while 8 clients ask: every answer must be one that its version allows."""
        everything, versions = set(self.recommender.catalogue_.items), {1: set()}
        seen: list[tuple[int, frozenset[str]]] = []

        def check(body: bytes) -> None:
            answer = json.loads(body)
            seen.append((answer["version"], frozenset(item["item"] for item in answer["items"])))

        async with self.service() as service:
            quiet = await closed_loop(service.port, self.ask, clients=8, seconds=min(5.0, self.amounts.seconds))
            start, load = service.memory(), asyncio.Event()
            busy = asyncio.create_task(self._until(service.port, load, check))
            codes, took = Counter[int](), []
            popular = [i for h in self.histories for i in h]
            async with connected(service.port) as client:
                retired: set[str] = set()
                for number in range(self.amounts.edits):
                    item = popular[number // 2 % len(popular)]
                    since = time.perf_counter()
                    undo = item in retired
                    path = f"/v1/items/{item}/restore" if undo else f"/v1/items/{item}"
                    code, _, body = await client.ask("POST" if undo else "DELETE", path)
                    took.append(time.perf_counter() - since)
                    codes[code] += 1
                    retired ^= {item}
                    versions[json.loads(body)["version"]] = set(retired)
            load.set()
            met = await busy
            grown = service.memory() - start
        mixed = sum(bool(items & versions[version]) or not items <= everything for version, items in seen)
        return {
            "edits": {str(code): count for code, count in codes.items()},
            "edit_p50_ms": 1e3 * float(np.median(took)),
            "edit_p99_ms": 1e3 * float(np.quantile(took, 0.99)),
            "answers": len(seen),
            "answers_not_of_their_version": mixed,
            "p99_of_quiet": met.quantile(0.99) / quiet.quantile(0.99),
            "memory_growth_mb": grown / 1e6,
            "load": met.summary(),
        }

    async def _until(self, port: int, stop: asyncio.Event, check: Any) -> Outcome:
        out = Outcome()
        while not stop.is_set():
            out.add(await closed_loop(port, self.ask, clients=8, seconds=0.5, check=check))
        return out

    async def adding(self) -> dict[str, Any]:
        """New items one by one, each asked for at once."""
        attributes = self.recommender.catalogue_.attributes
        took, missing = [], 0
        async with self.service() as service, connected(service.port) as client:
            for number in range(max(self.amounts.edits // 4, 2)):
                row = {k: v for k, v in attributes.row(number, named=True).items() if v is not None}
                item = {"item_id": f"new {number}", **row}
                since = time.perf_counter()
                code, _, body = await client.ask("POST", "/v1/items", {"items": [item]})
                took.append(time.perf_counter() - since)
                assert code == 201, body
                wanted = {"history": self.histories[0], "k": 1, "allow": [item["item_id"]]}
                found = json.loads((await client.ask("POST", "/v1/recommend", wanted))[2])
                missing += [i["item"] for i in found["items"]] != [item["item_id"]]
        return {"added": len(took), "add_p50_ms": 1e3 * float(np.median(took)), "not_found_at_once": missing}

    async def retired(self) -> dict[str, Any]:
        """The best items are retired; no later answer may hold one."""
        gone = set(self.recommender.recommend(self.histories[0], 20).items)
        again = 0

        def check(body: bytes) -> None:
            nonlocal again
            again += any(item["item"] in gone for item in json.loads(body)["items"])

        answers = 0
        async with self.service() as service:
            async with connected(service.port) as client:
                for item in gone:
                    assert (await client.ask("DELETE", f"/v1/items/{item}"))[0] == 200
            while answers < self.amounts.answers:
                met = await closed_loop(service.port, self.ask, clients=16, seconds=1.0, check=check)
                answers += met.codes[200]
        return {"answers": answers, "answers_with_a_retired_item": again}

    async def terminations(self) -> dict[str, Any]:
        """SIGTERM while 16 clients ask: every request is answered, or its connection was never taken."""
        lost, codes, seconds = Counter[str](), Counter[int](), []
        for _ in range(self.amounts.terminations):
            async with self.service(nursery=self.nursery) as service:
                clients = [asyncio.create_task(self._ask_until_told(service.port)) for _ in range(16)]
                await asyncio.sleep(0.5)
                since = time.monotonic()
                await service.end(signal.SIGTERM)
                seconds.append(time.monotonic() - since)
                for answered, broken in await asyncio.gather(*clients):
                    lost, codes = lost + broken, codes + answered
        return {
            "terminations": len(seconds),
            "lost": lost.total(),
            "lost_by_connection": dict(lost),
            "codes": {str(c): n for c, n in sorted(codes.items())},
            "slowest_end_seconds": max(seconds),
        }

    async def _ask_until_told(self, port: int) -> tuple[Counter[int], Counter[str]]:
        """Codes of the answers, and the request without one, by the kind of its connection: new, or used before."""
        codes, number = Counter[int](), random.randrange(1000)
        while True:
            kind = "new"
            try:
                async with connected(port) as client:
                    while True:
                        number += 1
                        code, headers, _ = await client.ask(*self.ask(number))
                        codes[code] += 1
                        kind = "used"
                        if code != 200:
                            return codes, Counter()
                        if headers.get("connection") == "close":
                            break
            except ConnectionRefusedError:
                return codes, Counter()
            except (OSError, EOFError, asyncio.IncompleteReadError):
                return codes, Counter({kind: 1})

    async def kills(self) -> dict[str, Any]:
        """kill -9 while items are retired: after the restart every acknowledged one is."""
        names = list(self.recommender.catalogue_.items)
        state, acknowledged, forgotten = self.folder / "killed", 0, 0
        for number in range(self.amounts.kills):
            service = await Service(self.run, state, nursery=self.nursery).ready()
            told: list[str] = []
            own = [names[(number * 50 + n) % len(names)] for n in range(50)]
            editing = [asyncio.create_task(self._retire(service.port, own[n::4], told)) for n in range(4)]
            least = random.randrange(8)
            while len(told) < least:
                await asyncio.sleep(0.005)
            await asyncio.sleep(random.uniform(0.0, 0.3))
            await service.end(signal.SIGKILL)
            await asyncio.gather(*editing)
            acknowledged += len(told)
            again = await Service(self.run, state, nursery=self.nursery).ready()
            async with connected(again.port) as client:
                for item in told:
                    forgotten += not json.loads((await client.ask("GET", f"/v1/items/{item}"))[2])["retired"]
            await again.end(signal.SIGKILL)
        return {"kills": self.amounts.kills, "acknowledged": acknowledged, "forgotten": forgotten}

    async def _retire(self, port: int, names: list[str], told: list[str]) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
            async with connected(port) as client:
                for item in names:
                    if (await client.ask("DELETE", f"/v1/items/{item}"))[0] == 200:
                        told.append(item)

    async def bodies(self) -> dict[str, Any]:
        """Broken bodies on every route that takes one: always an answer, never a 5xx."""
        source, codes = random.Random(0), Counter[int]()
        history = self.histories[0][:3]
        good = {
            "/v1/recommend": {"history": history, "k": 3, "filter_history": False, "deny": history},
            "/v1/recommend/batch": {"histories": [history, []], "k": 3},
            "/v1/explain": {"history": history, "prefix": [], "shown": 3},
            "/v1/items": {"items": [{"item_id": "x", "title": "y"}]},
            "/v1/catalogue/rollback": {"version": 1},
        }
        async with self.service() as service, connected(service.port) as client:
            for _ in range(self.amounts.bodies):
                route = source.choice(list(good))
                data = bytearray(json.dumps(good[route]).encode())
                for _ in range(source.randrange(6)):
                    at = source.randrange(len(data))
                    data[at : at + source.randrange(4)] = source.randbytes(source.randrange(4))
                    data = data or bytearray(b"{}")
                if source.random() < 0.2:
                    data = bytearray(source.randbytes(source.randrange(1, 60)))
                codes[(await client.ask("POST", route, bytes(data)))[0]] += 1
            memory = service.memory()
        worst = sum(count for code, count in codes.items() if code >= 500)
        return {"codes": {str(c): n for c, n in sorted(codes.items())}, "server_errors": worst, "memory": memory}

    async def document(self) -> dict[str, Any]:
        """Requests that schemathesis makes from the OpenAPI document: every answer is one that the document names."""
        async with self.service() as service:
            return await asyncio.to_thread(ask_by_document, service.port, max(self.amounts.bodies // 10, 40))

    def watching(self) -> dict[str, Any]:
        """The search with and without a recorder, processor time; and whether both give the same bits."""
        retriever, items = self.recommender.retriever, self.recommender.catalogue_.items
        rows = Ragged.from_rows([items.numbers(h) for h in self.histories[:BATCH]], np.int64)
        search = retriever.ranker.leaves
        plain, watched = (search(retriever.model, rows, 10, None, w) for w in (None, Recorder()))
        same = (plain.leaves_UF == watched.leaves_UF).all() and (plain.scores_UF == watched.scores_UF).all()
        calls = {
            "plain": lambda: search(retriever.model, rows, 10),
            "watched": lambda: search(retriever.model, rows, 10, None, Recorder()),
        }
        times = side_by_side(calls, 3 if self.amounts is QUICK else 15)
        return {"same_bits": bool(same), "cost": times["watched"].cpu_seconds / times["plain"].cpu_seconds}


PARTS = [
    "peak",
    "steady",
    "overload",
    "edits",
    "adding",
    "retired",
    "terminations",
    "kills",
    "bodies",
    "document",
    "watching",
]


async def measure(bench: Bench, names: list[str]) -> dict[str, Any]:
    """All measurements that are asked for, one after the other."""
    for name in names:
        found = getattr(bench, name)()
        bench.results[name] = await found if asyncio.iscoroutine(found) else found
        print(f"{name}: {json.dumps(_rounded(bench.results[name]))}", flush=True)
    return bench.results


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(v) for name, v in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, help="of each load")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true", help="the counts of the goals; takes hours")
    parser.add_argument("--only", default=",".join(PARTS), help="steady needs peak")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    amounts = QUICK if args.quick else LONG if args.long else USUAL
    if args.seconds:
        amounts = Amounts(**{**vars(amounts), "seconds": args.seconds, "overload": args.seconds})
    torch.set_num_threads(1)
    facts = machine(threads=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = args.run or made_run(folder, quick=args.quick)
        bench = Bench(run, folder, amounts)
        try:
            result = asyncio.run(measure(bench, args.only.split(",")))
        finally:
            bench.nursery.end()
    config = {"run": args.run.name if args.run else "made", "items": len(bench.recommender.catalogue_.items)}
    config |= {"quick": args.quick, **vars(amounts)}
    if args.out or not args.quick:
        write_result("serve", args.out, config, {"machine": facts} | _rounded(result))
    return result


if __name__ == "__main__":
    main()
