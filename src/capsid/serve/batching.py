"""Many requests, one model thread: queries that wait together are searched together.

A batch holds at most `most` queries of one length class and one search group, oldest first. A single request never
waits; only after a batch of several does the thread wait briefly for their clients to ask again. What was submitted
together is searched in one version of the catalogue, even where it takes several batches. Requests past the
deadline and requests of disconnected clients are dropped when a batch forms. Calls of the service itself come before
all that wait. Knows nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from capsid.answering import Query
from capsid.serve.errors import Refused, too_many
from capsid.serve.metrics import Metrics
from capsid.serve.snapshot import Snapshot

_SMOOTHING = 0.2
# Seconds per query before the first search of a class.
_FIRST = 0.005
# After a batch of several, its clients ask again within this time; without the wait, batches of 1 and 15 alternate.
LINGER = 0.003
# A search that takes longer than this means that the model thread hangs.
SILENCE = 30.0
# A request is queued if its search should begin within this share of its deadline. A longer queue would serve no more
# requests, only later; and searches may take twice as long as before without missing deadlines.
_SHARE = 0.5


class Backlog:
    """Counts waiting queries by class and estimates when the last of them will be searched.

    Seconds go by class and size of batch: a query costs less in a large batch than alone, and an explanation costs more
    than a search, so one average would refuse a burst after quiet minutes and accept too many explanations.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: Counter[Hashable] = Counter()
        # Seconds per query, by class and by the number of bits of the batch's size.
        self._seconds: dict[Hashable, dict[int, float]] = {}
        self._ends = 0.0

    def enter(self, kind: Hashable) -> None:
        """A query waits."""
        self._waiting[kind] += 1

    def leave(self, kind: Hashable) -> None:
        """A query no longer waits."""
        self._waiting[kind] -= 1

    def begin(self, kind: Hashable, size: int, now: float) -> None:
        """A batch is searched from now on."""
        self._ends = now + size * self._each(kind, size)

    def end(self, kind: Hashable, size: int, seconds: float) -> None:
        """A batch has been searched."""
        self._ends = 0.0
        known = self._seconds.setdefault(kind, {})
        bits = size.bit_length()
        before = known.get(bits, seconds / size)
        known[bits] = before + _SMOOTHING * (seconds / size - before)

    def wait(self, now: float) -> float:
        """Seconds until all waiting queries have been searched."""
        queued = sum(n * self._each(kind, n) for kind, n in self._waiting.items() if n)
        return queued + max(self._ends - now, 0.0)

    def _each(self, kind: Hashable, count: int) -> float:
        """Seconds per query when `count` wait: from batches of that size, else from the nearest smaller or larger."""
        known = self._seconds.get(kind)
        if not known:
            return _FIRST
        bits = min(count, self._most).bit_length()
        return known[max((b for b in known if b <= bits), default=min(known))]


Work = Query | Callable[[Snapshot], Any]


@dataclass(eq=False)
class Pin:
    """The version that the first of the queries submitted together was searched in; for the model thread only."""

    snapshot: Snapshot | None = None


@dataclass(eq=False)
class Ticket:
    """One query (or call) in the queue. `taken` once it is searched; `gone` when its client no longer waits.

    The answer comes with the version that was searched, which is that of all tickets with the same `pin`.
    """

    work: Work
    answer: asyncio.Future[tuple[Any, Snapshot]]
    deadline: float
    group: tuple[Any, ...]
    kind: int
    pin: Pin
    since: float = field(default_factory=time.monotonic)
    taken: bool = False
    gone: bool = False

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless it is answered; for the event loop only."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Batcher:
    """`submit` is for the event loop; a separate thread searches. `snapshot` is called once per batch."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        group: Callable[[Query], tuple[Any, ...]],
        gauges: Metrics,
        *,
        most: int,
        queue: int,
    ) -> None:
        self._snapshot, self._group_of, self._gauges = snapshot, group, gauges
        self._most, self._limit = most, queue
        self._queue: deque[Ticket] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._backlog = Backlog(most)
        self._ready = threading.Condition()
        self._closing = False
        self._busy_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="capsid-model", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        return len(self._queue)

    @property
    def silent(self) -> bool:
        """Whether the model thread has died or hangs."""
        busy = self._busy_since
        return not self._thread.is_alive() or (busy > 0 and time.monotonic() - busy > SILENCE)

    def admit(self, count: int, seconds: float) -> None:
        """Refuse now what `submit` would refuse; cheap enough to ask before a body is read."""
        with self._ready:
            self._check_open()
            while self._queue and self._queue[0].gone:
                self._leave(self._queue.popleft(), "cancelled")
            now, waiting = time.monotonic(), len(self._queue)
            # The oldest has waited for what is to be expected; it tells when searches have become slower.
            wait = max(self._backlog.wait(now), now - self._queue[0].since) if waiting else 0.0
            if waiting + count > self._limit or wait > _SHARE * seconds:
                raise too_many("queue_full", f"{waiting} requests are already waiting", wait)

    def submit(self, works: list[Work], seconds: float) -> list[Ticket]:
        """Queue all of these or none; a full queue is a 429 with a Retry-After."""
        with self._ready:
            try:
                self.admit(len(works), seconds)
            except Refused as refusal:
                self._gauges.dropped(refusal.code)
                raise
            deadline = time.monotonic() + seconds
            pin = Pin()
            tickets = [self._ticket(work, deadline, pin) for work in works]
            self._queue.extend(tickets)
            for ticket in tickets:
                self._backlog.enter(ticket.kind)
            self._gauges.waiting(len(self._queue))
            self._ready.notify()
        return tickets

    def call_next(self, call: Callable[[], Any]) -> Future[Any]:
        """Run this in the model thread before the next search; for any thread."""
        result: Future[Any] = Future()
        with self._ready:
            self._check_open()
            self._calls.append((call, result))
            self._ready.notify()
        return result

    def withdraw(self, ticket: Ticket) -> None:
        """Cancel a request whose client has gone; a search that has begun still ends."""
        ticket.gone = True

    def close(self) -> None:
        """Answer the queued queries, then end the thread; blocks."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()

    def _check_open(self) -> None:
        if self._closing:
            raise Refused(503, "draining", "the service is stopping", headers={"retry-after": "1"})

    def _ticket(self, work: Work, deadline: float, pin: Pin) -> Ticket:
        """Only queries of one group are searched together: similar history length, same allow list, similar k."""
        answer = self._loop.create_future()
        if not isinstance(work, Query):
            return Ticket(work, answer, deadline, ("call", id(work)), 0, pin)
        kind = length_class(len(work.history))
        return Ticket(work, answer, deadline, (kind, *self._group_of(work)), kind, pin)

    def _run(self) -> None:
        last = 0
        while True:
            batch = self._next(last)
            if batch is None:
                return
            last = len(batch)
            if batch:
                self._search(batch)
            while self._calls:
                self._call(*self._calls.popleft())

    def _next(self, last: int) -> list[Ticket] | None:
        """The next batch, empty if all clients have gone or there are calls; None at the end."""
        with self._ready:
            if last > 1 and len(self._queue) < min(last, self._most):
                end = time.monotonic() + LINGER
                while len(self._queue) < min(last, self._most) and not self._closing and not self._calls:
                    if not self._ready.wait(max(end - time.monotonic(), 0.0)):
                        break
            while not self._queue and not self._calls:
                if self._closing:
                    return None
                self._ready.wait()
            return [] if self._calls else self._form()

    def _call(self, call: Callable[[], Any], result: Future[Any]) -> None:
        self._busy_since = time.monotonic()
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)
        self._busy_since = 0.0

    def _form(self) -> list[Ticket]:
        now = time.monotonic()
        batch: list[Ticket] = []
        kept: list[Ticket] = []
        while self._queue and len(batch) < self._most:
            ticket = self._queue.popleft()
            if ticket.gone:
                self._leave(ticket, "cancelled")
            elif now > ticket.deadline:
                self._leave(ticket, "deadline")
                self._tell([(ticket, late())])
            elif batch and ticket.group != batch[0].group:
                kept.append(ticket)
            else:
                self._leave(ticket)
                ticket.taken = True
                batch.append(ticket)
        self._queue.extendleft(reversed(kept))
        if batch:
            self._backlog.begin(batch[0].kind, len(batch), now)
        self._gauges.waiting(len(self._queue))
        return batch

    def _leave(self, ticket: Ticket, reason: str = "") -> None:
        """A ticket has left the queue; with a reason, it is not searched."""
        self._backlog.leave(ticket.kind)
        if reason:
            self._gauges.dropped(reason)

    def _search(self, batch: list[Ticket]) -> None:
        self._busy_since = start = time.monotonic()
        waited = [start - ticket.since for ticket in batch]
        try:
            told = [one for part in _parts(batch, self._snapshot()) for one in _searched(*part)]
        except Exception as error:
            told = [(ticket, error) for ticket in batch]
        self._busy_since = 0.0
        seconds = time.monotonic() - start
        with self._ready:
            self._backlog.end(batch[0].kind, len(batch), seconds)
        self._gauges.batch(len(batch), waited, seconds)
        self._tell(told)

    def _tell(self, told: list[tuple[Ticket, Any]]) -> None:
        """All answers of a batch in one call to the event loop."""
        try:
            self._loop.call_soon_threadsafe(_settle, told)
        except RuntimeError:
            return  # the event loop has ended, so no client waits


def _parts(batch: list[Ticket], current: Snapshot) -> list[tuple[Snapshot, list[Ticket]]]:
    """The tickets of a batch by version: the current one, unless a query submitted with them was searched before."""
    parts: dict[int, tuple[Snapshot, list[Ticket]]] = {}
    for ticket in batch:
        ticket.pin.snapshot = snapshot = ticket.pin.snapshot or current
        parts.setdefault(id(snapshot), (snapshot, []))[1].append(ticket)
    return list(parts.values())


def _searched(snapshot: Snapshot, tickets: list[Ticket]) -> list[tuple[Ticket, Any]]:
    """The tickets with their answers and the version of these, or with exceptions."""
    try:
        results = _answers(snapshot, [ticket.work for ticket in tickets])
    except Exception as error:
        results = [error] * len(tickets)
    return [
        (ticket, result if isinstance(result, Exception) else (result, snapshot))
        for ticket, result in zip(tickets, results)
    ]


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
        return [_called(lambda s, q=q: s.answerer.answer([q])[0], snapshot) for q in queries]


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
