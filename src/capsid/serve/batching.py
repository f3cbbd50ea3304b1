"""Many requests, one model thread: queries that wait together are searched together.

A batch holds at most `most` queries of one length class and one search group, oldest first. A single request never
waits; only after a batch of several does the thread wait briefly for their clients to ask again. Requests past the
deadline and requests of disconnected clients are dropped when a batch forms. Knows nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from capsid.answering import Query, Recommendation
from capsid.serve.errors import Refused, too_many
from capsid.serve.snapshot import Snapshot

# After a batch of several, its clients ask again within this time; without the wait, batches of 1 and 15 alternate.
LINGER = 0.003
# A search that takes longer than this means that the model thread hangs.
SILENCE = 30.0
_SMOOTHING = 0.1
# A request is queued if its search is expected to start within this share of its deadline.
_HOPE = 0.5

Work = Query | Callable[[Snapshot], Any]


class Gauges(Protocol):
    """Receives events, for metrics."""

    def batch(self, size: int, waited: list[float], seconds: float) -> None:
        """A batch was searched."""

    def dropped(self, reason: str) -> None:
        """A request left the queue unsearched."""

    def waiting(self, depth: int) -> None:
        """This many queries wait now."""


@dataclass(eq=False)
class Ticket:
    """One query (or call) in the queue. `taken` once it is searched; `gone` when its client no longer waits."""

    work: Work
    answer: asyncio.Future[tuple[Any, int]]
    deadline: float
    group: tuple[Any, ...]
    since: float = field(default_factory=time.monotonic)
    taken: bool = False
    gone: bool = False


class Batcher:
    """`submit` is for the event loop; a separate thread searches. `snapshot` is called once per batch."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        group: Callable[[Query], tuple[Any, ...]],
        gauges: Gauges,
        *,
        most: int,
        queue: int,
    ) -> None:
        self._snapshot, self._group_of, self._gauges = snapshot, group, gauges
        self._most, self._limit = most, queue
        self._queue: deque[Ticket] = deque()
        self._ready = threading.Condition()
        self._closing = False
        self._busy_since = 0.0
        self._per_user = 0.005
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="capsid-model", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def silent(self) -> bool:
        """Whether the model thread has died or hangs."""
        busy = self._busy_since
        return not self._thread.is_alive() or (busy > 0 and time.monotonic() - busy > SILENCE)

    def submit(self, works: list[Work], seconds: float) -> list[Ticket]:
        """Queue all of these or none; a full queue is a 429 with a Retry-After."""
        with self._ready:
            if self._closing:
                raise Refused(503, "draining", "the service is stopping", headers={"retry-after": "1"})
            wait = len(self._queue) * self._per_user
            # A request that would miss its deadline is refused now, not after the wait.
            if len(self._queue) + len(works) > self._limit or wait > _HOPE * seconds:
                self._gauges.dropped("queue_full")
                raise too_many("queue_full", f"{len(self._queue)} requests are already waiting", wait)
            deadline = time.monotonic() + seconds
            tickets = [Ticket(w, self._loop.create_future(), deadline, self._group(w)) for w in works]
            self._queue.extend(tickets)
            self._gauges.waiting(len(self._queue))
            self._ready.notify()
        return tickets

    def withdraw(self, ticket: Ticket) -> None:
        """Cancel a request whose client has gone; a search that has begun still ends."""
        ticket.gone = True

    def close(self) -> None:
        """Answer the queued queries, then end the thread; blocks."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()

    def _group(self, work: Work) -> tuple[Any, ...]:
        """Only queries of one group are searched together: similar history length, same allow list, similar k."""
        if not isinstance(work, Query):
            return ("call", id(work))
        return length_class(len(work.history)), *self._group_of(work)

    def _run(self) -> None:
        last = 0
        while True:
            batch = self._next(last)
            if batch is None:
                return
            last = len(batch)
            if batch:
                self._search(batch)

    def _next(self, last: int) -> list[Ticket] | None:
        """The next batch, empty if all clients have gone; None at the end."""
        with self._ready:
            if last > 1 and len(self._queue) < min(last, self._most):
                end = time.monotonic() + LINGER
                while len(self._queue) < min(last, self._most) and not self._closing:
                    if not self._ready.wait(max(end - time.monotonic(), 0.0)):
                        break
            while not self._queue:
                if self._closing:
                    return None
                self._ready.wait()
            return self._form()

    def _form(self) -> list[Ticket]:
        now = time.monotonic()
        batch: list[Ticket] = []
        kept: list[Ticket] = []
        while self._queue and len(batch) < self._most:
            ticket = self._queue.popleft()
            if ticket.gone:
                self._gauges.dropped("cancelled")
            elif now > ticket.deadline:
                self._gauges.dropped("deadline")
                self._tell([(ticket, late())])
            elif batch and ticket.group != batch[0].group:
                kept.append(ticket)
            else:
                ticket.taken = True
                batch.append(ticket)
        self._queue.extendleft(reversed(kept))
        self._gauges.waiting(len(self._queue))
        return batch

    def _search(self, batch: list[Ticket]) -> None:
        self._busy_since = start = time.monotonic()
        waited = [start - ticket.since for ticket in batch]
        try:
            snapshot = self._snapshot()
            results = _answers(snapshot, [ticket.work for ticket in batch])
            told = [
                (ticket, result if isinstance(result, Exception) else (result, snapshot.version))
                for ticket, result in zip(batch, results)
            ]
        except Exception as error:
            told = [(ticket, error) for ticket in batch]
        self._busy_since = 0.0
        seconds = time.monotonic() - start
        self._per_user += _SMOOTHING * (seconds / len(batch) - self._per_user)
        self._gauges.batch(len(batch), waited, seconds)
        self._tell(told)

    def _tell(self, told: list[tuple[Ticket, Any]]) -> None:
        """All answers of a batch in one call to the event loop."""
        try:
            self._loop.call_soon_threadsafe(_settle, told)
        except RuntimeError:
            return  # the event loop has ended, so no client waits


def _answers(snapshot: Snapshot, works: list[Work]) -> list[Any]:
    """An answer or an exception per query. A query that cannot be answered does not fail the others."""
    queries = [work for work in works if isinstance(work, Query)]
    if len(queries) < len(works):
        return [_called(work, snapshot) for work in works]
    try:
        return list(snapshot.answerer.answer(queries))
    except Exception:
        if len(queries) == 1:
            raise
        return [_called(lambda s, q=q: _alone(s, q), snapshot) for q in queries]


def _alone(snapshot: Snapshot, query: Query) -> Recommendation:
    return snapshot.answerer.answer([query])[0]


def _called(work: Any, snapshot: Snapshot) -> Any:
    try:
        return work(snapshot)
    except Exception as error:
        return error


def length_class(items: int) -> int:
    """Histories up to 8 items, 16, 32, or more: padding short ones to a long one costs more than a second search."""
    return (min(max(items, 8), 64) - 1).bit_length()


def late() -> Refused:
    """The error for a request that waited too long."""
    return Refused(
        504, "deadline", "the request waited past its deadline and was not searched", headers={"retry-after": "1"}
    )


def _settle(told: list[tuple[Ticket, Any]]) -> None:
    for ticket, result in told:
        if ticket.answer.done():
            continue
        if isinstance(result, Exception):
            ticket.answer.set_exception(result)
        else:
            ticket.answer.set_result(result)
