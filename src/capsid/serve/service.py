"""A served run: loads it outside the event loop, queues queries, applies edits, drains. Knows nothing about HTTP
except error responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from capsid.answering import Query
from capsid.errors import CapsidError
from capsid.recommender import Recommender
from capsid.serve.batching import Batcher, Ticket, Work, late
from capsid.serve.errors import Refused, refused, too_many
from capsid.serve.journal import Journal
from capsid.serve.live import LiveCatalogue, Made, Make
from capsid.serve.metrics import SHARED, Metrics
from capsid.serve.options import ServeOptions
from capsid.serve.questions import OtherRun
from capsid.serve.replay import COMING, Ahead
from capsid.serve.snapshot import Snapshot
from capsid.serve.workers import Peers

logger = logging.getLogger("capsid.serve")
T = TypeVar("T")
# Maximum number of waiting edits; further ones are refused with a 429.
MOST_EDITS = 64
# Seconds between two versions: building and trying one takes time away from searches, however small the edit.
TOGETHER = 0.2
# Seconds that the event loop sleeps after it refused requests because the queue is full. A refusal itself is cheap, but
# waking up for each of them takes the interpreter lock and the caches from the search; so they are refused in bursts.
PAUSE = 0.01
# Seconds between looks at the journal and at what other processes have announced. A worker that sees an announcement
# late builds the version while its searches wait.
LOOK = 0.05


class Service:
    """`start` returns at once; `ready` is true when a first search has run, in all workers where there are several."""

    def __init__(self, options: ServeOptions, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        self.draining = False
        self._pausing = False
        shared = os.environ.get(SHARED)
        self._peers = Peers(Path(shared) if shared else None, options.workers)
        self._live: LiveCatalogue | None = None
        self._batcher: Batcher | None = None
        self._journals: list[Journal] = []
        self._editor = ThreadPoolExecutor(1, thread_name_prefix="capsid-edit")
        self._edits: list[tuple[Make, asyncio.Future[Made]]] = []
        self._editing: asyncio.Task[None] | None = None
        self._edited = float("-inf")
        self._loading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self.others: list[OtherRun] = []

    @property
    def ready(self) -> bool:
        """Whether queries are answered, whichever worker gets them."""
        if self._live is None or self._live.stuck or self.draining:
            return False
        return self._batcher is not None and not self._batcher.silent and self._peers.complete

    @property
    def depth(self) -> int:
        return 0 if self._batcher is None else self._batcher.depth

    @property
    def live(self) -> LiveCatalogue:
        if self._live is None:
            raise _not_ready()
        return self._live

    @property
    def snapshot(self) -> Snapshot:
        return self.live.current

    @property
    def version(self) -> int:
        """The current version's number; 0 before the run is loaded."""
        return self._live.current.version if self._live is not None else 0

    def start(self, failed: Callable[[BaseException], None]) -> None:
        """Load the run and warm up, outside the event loop. `failed` is called if that fails."""
        self._loading = asyncio.get_running_loop().create_task(self._load(failed))

    async def _load(self, failed: Callable[[BaseException], None]) -> None:
        try:
            live = await asyncio.to_thread(self._open)
        except Exception as error:
            failed(error)
            return
        options = self.options
        self._live = live
        self._batcher = Batcher(
            live.catch_up,
            lambda query: live.current.answerer.group(query),
            self.metrics,
            most=options.batch,
            queue=options.queue,
        )
        self._following = asyncio.get_running_loop().create_task(self._follow(live))
        self._peers.join()
        logger.info("ready: version %d, %d items", live.current.version, len(live.current.recommender.catalogue_.items))

    async def _follow(self, live: LiveCatalogue) -> None:
        """Make the edits of other processes also while there are no queries, and prepare for those to come."""
        loop = asyncio.get_running_loop()
        while not self.draining:
            await asyncio.sleep(LOOK)
            if live.behind or live.announced:
                with contextlib.suppress(Refused):
                    await loop.run_in_executor(self._editor, live.keep_up)

    def _open(self) -> LiveCatalogue:
        torch.set_num_threads(1)
        run = Path(self.options.run)
        folder = self.options.state_folder
        self._journals = [Journal(folder), Journal(folder, COMING, marked=False)]
        journal, coming = self._journals
        live = LiveCatalogue(lambda: Recommender.from_pretrained(run), journal, Ahead(coming))
        self.others = [OtherRun.load(path) for path in self.options.compare]
        # The first searches allocate and compile; no client should wait for that.
        catalogue = live.current.recommender.catalogue_
        known = tuple(catalogue.items[: min(8, len(catalogue.items))])
        for count in (1, min(4, self.options.batch), self.options.batch):
            live.current.answerer.answer([Query(known)] * count)
        _spare_collector()
        return live

    def admit(self) -> None:
        """Refuse a query that could not be queued now, before anything of it is read."""
        if self._batcher is None:
            raise _not_ready()
        try:
            self._batcher.admit(1, self.options.deadline)
        except Refused:
            if not self._pausing:
                self._pausing = True
                # After the refusals that are due now have been sent.
                asyncio.get_running_loop().call_soon(self._pause)
            raise

    def _pause(self) -> None:
        """Let the search run undisturbed; meanwhile requests wait in the sockets."""
        time.sleep(PAUSE)
        self._pausing = False

    async def ask(
        self, works: list[Work], gone: Callable[[], Awaitable[None]] | None = None
    ) -> list[tuple[Any, Snapshot]]:
        """The answers, all from one version, with that version. `gone` returns when the client has disconnected."""
        if self._batcher is None:
            raise _not_ready()
        tickets = self._batcher.submit(works, self.options.deadline)
        expiry = asyncio.get_running_loop().call_later(self.options.deadline, _expire, tickets)
        listener = None if gone is None else asyncio.ensure_future(_listen(gone, tickets))
        try:
            return [await ticket.answer for ticket in tickets]
        except CapsidError as error:
            raise refused(error) from error
        finally:
            expiry.cancel()
            if listener is not None:
                listener.cancel()
            for ticket in tickets:
                if not ticket.answer.done():
                    self._batcher.withdraw(ticket)
                elif not ticket.answer.cancelled():
                    ticket.answer.exception()  # retrieved, so that asyncio does not warn about an unhandled exception

    async def look(self, question: Callable[[Snapshot], T]) -> tuple[T, Snapshot]:
        """Answer a question that needs no search, in a thread, about the newest version that any process has made."""
        live = self.live

        def answer() -> tuple[T, Snapshot]:
            snapshot = live.catch_up()
            return question(snapshot), snapshot

        return await asyncio.to_thread(answer)

    async def edit(self, make: Make) -> Made:
        """Make an edit; returns when it is on disk and served. `make` gets the catalogue that the edit applies to.

        A first edit is made at once; those that come within `TOGETHER` after it are made together.
        """
        if self._live is None:
            raise _not_ready()
        if len(self._edits) >= MOST_EDITS:
            raise too_many("edits_full", f"too many edits: {len(self._edits)} are waiting", 2 * TOGETHER)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Made] = loop.create_future()
        self._edits.append((make, done))
        if self._editing is None or self._editing.done():
            self._editing = loop.create_task(self._edit_together(self._live))
        try:
            # Shielded: a client that disconnects must not interrupt an edit.
            return await asyncio.shield(done)
        except CapsidError as error:
            raise refused(error) from error

    async def _edit_together(self, live: LiveCatalogue) -> None:
        loop = asyncio.get_running_loop()
        while self._edits:
            while not self.draining and (left := self._edited + TOGETHER - loop.time()) > 0:
                await asyncio.sleep(left)
            taken, self._edits = self._edits, []
            makes = [make for make, _ in taken]
            try:
                results = await loop.run_in_executor(self._editor, live.edit_all, makes, self._tried)
            except Exception as error:
                results = [error] * len(taken)
            if any(not isinstance(one, Exception) and one[0].operation == "reload" for one in results):
                await loop.run_in_executor(self._editor, _spare_collector)
            self._edited = loop.time()
            for (_, done), result in zip(taken, results):
                if isinstance(result, Exception):
                    done.set_exception(result)
                    done.exception()  # retrieved: its client may have gone
                else:
                    done.set_result(result)

    def _tried(self, check: Callable[[], None]) -> None:
        """Run a trial search in the model thread and wait for it; two searches at a time would slow each other down."""
        assert self._batcher is not None
        self._batcher.call_next(check).result()

    async def stop(self) -> None:
        """Make the edits and answer the queries that are queued, then end the threads."""
        self.draining = True
        if self._loading is not None:
            await asyncio.wait([self._loading])
        if self._following is not None:
            self._following.cancel()
        if self._editing is not None:
            await asyncio.wait([self._editing])
        if self._batcher is not None:
            await asyncio.to_thread(self._batcher.close)
        await asyncio.to_thread(self._editor.shutdown, True)
        for journal in self._journals:
            journal.close()


def _not_ready() -> Refused:
    return Refused(503, "not_ready", "the run is still being loaded", headers={"retry-after": "1"})


def _spare_collector() -> None:
    """Exempt what is loaded from garbage collection: searching all of it takes 0.1 s, in which nothing is answered."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _expire(tickets: list[Ticket]) -> None:
    """Refuse a request at its deadline. Searches that have begun are waited for, unless a part was not begun."""
    if not all(ticket.taken for ticket in tickets):
        for ticket in tickets:
            ticket.gone = True
            ticket.fail(late())


async def _listen(gone: Callable[[], Awaitable[None]], tickets: list[Ticket]) -> None:
    await gone()
    for ticket in tickets:
        ticket.gone = True
        ticket.fail(Refused(499, "client_gone", "the client has gone"))
