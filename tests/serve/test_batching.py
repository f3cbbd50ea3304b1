"""Who is searched with whom, and who is not searched at all. The model is a stand-in that the test holds up."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.answering import Query
from capsid.errors import DataError
from capsid.serve.batching import Batcher, Ticket, length_class
from capsid.serve.errors import Refused


class Model:
    """Answers with the history itself, notes every batch, and waits while it is held."""

    def __init__(self) -> None:
        self.batches: list[list[Query]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()
        self.version = 1
        self.answerer = self

    def answer(self, queries: list[Query]) -> list[Any]:
        self.batches.append(list(queries))
        self.begun.set()
        assert self.free.wait(20)
        if any(query.history == ("bad",) for query in queries):
            raise DataError("a bad history")
        return [query.history for query in queries]


class Counted:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.reasons: list[str] = []
        self.depth = 0

    def batch(self, size: int, waited: list[float], seconds: float) -> None:
        assert len(waited) == size
        self.sizes.append(size)

    def dropped(self, reason: str) -> None:
        self.reasons.append(reason)

    def waiting(self, depth: int) -> None:
        self.depth = depth


def batcher(model: Model, counted: Counted, *, most: int = 4, queue: int = 100) -> Batcher:
    return Batcher(lambda: model, lambda query: (query.k,), counted, most=most, queue=queue)  # type: ignore[arg-type,return-value]


async def held(model: Model, b: Batcher) -> Ticket:
    """A first request that keeps the model thread busy until the test lets go."""
    model.free.clear()
    model.begun.clear()
    (ticket,) = b.submit([Query(("first",))], 30)
    assert await asyncio.to_thread(model.begun.wait, 20)
    return ticket


def query(number: int, items: int = 1, k: int = 10) -> Query:
    return Query((str(number),) * items, k)


@settings(max_examples=25)
@given(
    wanted=st.lists(st.tuples(st.sampled_from([1, 8, 9, 40]), st.sampled_from([5, 10])), min_size=1, max_size=30),
    most=st.integers(1, 8),
)
def test_batches_are_of_one_kind_oldest_first_and_nobody_is_lost(wanted: list[tuple[int, int]], most: int) -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted, most=most)
        first = await held(model, b)
        queries = [query(n, items, k) for n, (items, k) in enumerate(wanted)]
        tickets = b.submit(queries, 30)
        assert b.depth == counted.depth == len(queries)
        model.free.set()
        answers = await asyncio.gather(first.answer, *(t.answer for t in tickets))
        assert [a for a, _ in answers[1:]] == [q.history for q in queries]
        assert all(snapshot is model for _, snapshot in answers)
        batches = model.batches[1:]
        assert counted.sizes == [1, *map(len, batches)]
        waiting = list(queries)
        for batch in batches:
            kind = (length_class(len(waiting[0].history)), waiting[0].k)
            like = [q for q in waiting if (length_class(len(q.history)), q.k) == kind]
            assert batch == like[:most], "the oldest and those like it, as many as fit"
            waiting = [q for q in waiting if q not in batch]
        assert not waiting
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_a_lone_request_does_not_wait_and_several_gather() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted, most=16)
        for number in range(5):
            start = time.monotonic()
            (ticket,) = b.submit([query(number)], 30)
            await ticket.answer
            await asyncio.sleep(0.01)
            assert time.monotonic() - start < 2
        assert counted.sizes == [1] * 5
        await held(model, b)
        tickets = b.submit([query(n) for n in range(9)], 30)
        model.free.set()
        await asyncio.gather(*(t.answer for t in tickets))
        assert counted.sizes[-1] == 9
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_late_and_gone_are_not_searched() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted)
        first = await held(model, b)
        (late,) = b.submit([query(1)], 0.01)
        (gone, stays) = b.submit([query(2), query(3)], 30)
        b.withdraw(gone)
        await asyncio.sleep(0.05)
        model.free.set()
        assert (await stays.answer)[0] == ("3",)
        with pytest.raises(Refused, match="past its deadline") as refusal:
            await late.answer
        assert (refusal.value.status, refusal.value.headers) == (504, {"retry-after": "1"})
        await first.answer
        assert [[q.history for q in batch] for batch in model.batches] == [[("first",)], [("3",)]]
        assert sorted(counted.reasons) == ["cancelled", "deadline"]
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted, queue=5)
        await held(model, b)
        b.submit([query(n) for n in range(4)], 30)
        with pytest.raises(Refused, match="4 requests are already waiting") as refusal:
            b.submit([query(8), query(9)], 30)
        assert refusal.value.status == 429
        assert int(refusal.value.headers["retry-after"]) >= 1
        assert b.depth == 4, "all of them or none"
        (ticket,) = b.submit([query(7)], 30)
        model.free.set()
        await ticket.answer
        assert counted.reasons == ["queue_full"]
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_who_would_only_wait_past_the_deadline_is_refused_at_once() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted, queue=1000)
        first = await held(model, b)
        await asyncio.sleep(0.2)
        model.free.set()
        await first.answer
        await held(model, b)  # by now it is known how long a search takes
        waiting = b.submit([query(n) for n in range(40)], 30)
        with pytest.raises(Refused) as refusal:
            b.submit([query(99)], 0.5)
        assert refusal.value.status == 429
        b.submit([query(98)], 120)
        model.free.set()
        await asyncio.gather(*(t.answer for t in waiting))
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_one_bad_query_does_not_take_the_others_with_it() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted)
        await held(model, b)
        good, bad, other = b.submit([query(1), Query(("bad",)), query(2)], 30)
        model.free.set()
        assert (await good.answer)[0] == ("1",)
        assert (await other.answer)[0] == ("2",)
        with pytest.raises(DataError, match="a bad history"):
            await bad.answer
        (alone,) = b.submit([Query(("bad",))], 30)
        with pytest.raises(DataError):
            await alone.answer
        (call,) = b.submit([lambda snapshot: snapshot.version + 1], 30)
        assert await call.answer == (2, model)
        assert not b.silent
        await asyncio.to_thread(b.close)
        assert b.silent

    asyncio.run(main())


def test_closing_finishes_what_is_queued_and_takes_no_more() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted)
        first = await held(model, b)
        tickets = b.submit([query(n) for n in range(9)], 30)
        closing = asyncio.create_task(asyncio.to_thread(b.close))
        await asyncio.sleep(0.05)
        with pytest.raises(Refused, match="stopping"):
            b.submit([query(99)], 30)
        model.free.set()
        await asyncio.gather(first.answer, closing, *(t.answer for t in tickets))

    asyncio.run(main())


def test_calls_of_the_service_come_before_all_that_wait() -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted, queue=5)
        assert await asyncio.wrap_future(b.call_next(lambda: threading.current_thread().name)) == "capsid-model"
        await held(model, b)
        tickets = b.submit([query(n) for n in range(5)], 30)
        searched = b.call_next(lambda: len(model.batches))
        failed = b.call_next(lambda: 1 / 0)
        model.free.set()
        assert await asyncio.wrap_future(searched) == 1, "a full queue neither refuses nor delays it"
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(failed)
        await asyncio.gather(*(t.answer for t in tickets))
        assert sum(counted.sizes) == 6, "only queries are counted"
        await asyncio.to_thread(b.close)
        with pytest.raises(Refused, match="stopping"):
            b.call_next(lambda: None)

    asyncio.run(main())


def test_a_search_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        model, counted = Model(), Counted()
        b = batcher(model, counted)
        first = await held(model, b)
        assert not b.silent
        monkeypatch.setattr("capsid.serve.batching.SILENCE", 0.01)
        await asyncio.sleep(0.05)
        assert b.silent
        model.free.set()
        await first.answer
        assert not b.silent
        await asyncio.to_thread(b.close)

    asyncio.run(main())


def test_length_classes() -> None:
    assert [length_class(n) for n in (0, 1, 8, 9, 16, 17, 32, 33, 64, 2000)] == [3, 3, 3, 4, 4, 5, 5, 6, 6, 6]


def test_what_is_submitted_together_is_searched_in_one_version() -> None:
    """Also if it takes several batches, with an edit between them; what is submitted later sees the edit."""

    async def main() -> None:
        old, new, counted = Model(), Model(), Counted()
        versions = iter([old, old])
        b = Batcher(lambda: next(versions, new), lambda query: (), counted, most=4, queue=100)  # type: ignore[arg-type,return-value]
        first = await held(old, b)
        together = b.submit([query(n) for n in range(6)], 30)
        later = b.submit([query(n) for n in range(6, 8)], 30)
        old.free.set()
        await first.answer
        assert [await ticket.answer for ticket in together] == [((str(n),), old) for n in range(6)]
        assert [await ticket.answer for ticket in later] == [((str(n),), new) for n in range(6, 8)]
        assert counted.sizes == [1, 4, 4]
        await asyncio.to_thread(b.close)

    asyncio.run(main())
