"""The routes of the service: check a body, call the service, return its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi import Query as InQuery
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from capsid.answering import Query, Recommendation
from capsid.serve import schema
from capsid.serve.edge import VERSION, App, Receive, Scope, Send
from capsid.serve.errors import Refused, invalid
from capsid.serve.questions import about_item, compared, example_history, explained, info, listed, search_items, tree
from capsid.serve.reports import Reports
from capsid.serve.service import Service
from capsid.serve.snapshot import Edit, Snapshot

_TOKENS = r"^(\d{1,9}(,\d{1,9}){0,63})?$"
ItemInPath = Annotated[str, InPath(min_length=1, max_length=200)]


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Which errors a route may answer with, for the OpenAPI document."""
    about = {
        400: "The body is not JSON.",
        401: "The key is missing or wrong.",
        403: "The key does not allow this.",
        404: "Not found.",
        408: "The body did not arrive in time.",
        409: "The edit does not fit the current catalogue.",
        413: "The body is too large.",
        422: "The request breaks a rule.",
        429: "Too many requests; Retry-After says when to try again.",
        500: "Internal error of the service.",
        503: "Not loaded yet, behind the edits of other processes, or stopping.",
        504: "The request waited past its deadline.",
    }
    usual = {401, 403, 422, 429, 500, 503}
    return {code: {"model": schema.ErrorAnswer, "description": about[code]} for code in sorted({*usual, *codes})}


class Routes:
    """All handlers, over one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.reports = Reports(service)

    def router(self) -> APIRouter:
        """Every route with its answers documented."""
        router = APIRouter()
        searched = _errors(400, 404, 408, 409, 413, 504)
        add = router.add_api_route
        add("/health/live", self.live, response_model=schema.Health, tags=["health"])
        unready: dict[int | str, dict[str, Any]] = {503: {"model": schema.Health, "description": "Not ready."}}
        add("/health/ready", self.ready, response_model=schema.Health, responses=unready, tags=["health"])
        plain: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
        add("/metrics", self.metrics, response_class=Response, responses={**_errors(), **plain}, tags=["health"])
        add("/v1/info", self.info, response_model=schema.InfoAnswer, responses=_errors())
        post = {"methods": ["POST"], "responses": searched}
        add("/v1/recommend", self.recommend, response_model=schema.RecommendAnswer, **post)  # type: ignore[arg-type]
        add("/v1/recommend/batch", self.recommend_batch, response_model=schema.BatchAnswer, **post)  # type: ignore[arg-type]
        add("/v1/explain", self.explain, response_model=schema.ExplainAnswer, **post)  # type: ignore[arg-type]
        add("/v1/items", self.items, response_model=schema.ItemsAnswer, responses=_errors())
        add(
            "/v1/items",
            self.add_items,
            methods=["POST"],
            status_code=201,
            response_model=schema.EditAnswer,
            responses=_errors(400, 408, 409, 413),
        )
        edited = {"response_model": schema.EditAnswer, "responses": _errors(404)}
        add("/v1/items/{item_id:path}/restore", self.restore, methods=["POST"], **edited)  # type: ignore[arg-type]
        add("/v1/items/{item_id:path}", self.item, response_model=schema.ItemAnswer, responses=_errors(404, 504))
        add("/v1/items/{item_id:path}", self.retire, methods=["DELETE"], **edited)  # type: ignore[arg-type]
        add("/v1/runs", self.runs, response_model=schema.RunsAnswer, responses=_errors())
        add("/v1/compare", self.compare, response_model=schema.CompareAnswer, **post)  # type: ignore[arg-type]
        add("/v1/report", self.report, response_model=dict[str, Any], responses=_errors())
        add("/v1/facets", self.facets, response_model=dict[str, Any], responses=_errors(409))
        add("/v1/merges", self.merges, response_model=dict[str, Any], responses=_errors(409))
        # Left out of the document: the stream never ends, so a client generated from it would hang.
        add("/v1/events", self.events, include_in_schema=False)
        add("/v1/histories/{number}", self.history, response_model=schema.HistoryAnswer, responses=_errors(404))
        add("/v1/tree", self.tree, response_model=schema.TreeAnswer, responses=_errors(404))
        add(
            "/v1/catalogue/rollback",
            self.rollback,
            methods=["POST"],
            response_model=schema.EditAnswer,
            responses=_errors(400, 408, 409, 413),
        )
        add("/v1/reload", self.reload, methods=["POST"], response_model=schema.EditAnswer, responses=_errors())
        return router

    async def live(self) -> Response:
        """Whether the process is alive; true also while it drains."""
        return _json({"status": "live"})

    async def ready(self) -> Response:
        """Whether queries are answered now."""
        ready = self.service.ready
        status = "ready" if ready else "draining" if self.service.draining else "not ready"
        return _json({"status": status}, 200 if ready else 503)

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        catalogue = self.service.snapshot.recommender.catalogue_
        on_offer = len(catalogue.items) - len(catalogue.retired)
        text = self.service.metrics.text(items=on_offer, version=self.service.version)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def info(self, request: Request) -> Response:
        """What is served, and its limits."""
        options = self.service.options
        limits = {
            "k": schema.MOST_K,
            "history": schema.MOST_HISTORY,
            "histories": schema.MOST_HISTORIES,
            "body_bytes": options.body_limit,
            "queue": options.queue,
            "deadline_seconds": options.deadline,
        }
        live = self.service.live
        return await self._look(request, lambda snapshot: info(snapshot, Path(options.run), live.versions, limits))

    async def recommend(self, body: schema.RecommendRequest, request: Request) -> Response:
        """The next items after a history."""
        (found,) = await self._ask(request, [_query(body, body.history)])
        return _json(self._shown(body.history, *found))

    def quick(self) -> dict[tuple[str, str], App]:
        """Probes and `/v1/recommend` as plain ASGI; the routes of the same names document them."""

        async def live(scope: Scope, receive: Receive, send: Send) -> None:
            await (await self.live())(scope, receive, send)

        async def ready(scope: Scope, receive: Receive, send: Send) -> None:
            await (await self.ready())(scope, receive, send)

        async def recommend(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            if not _is_json(request.headers.get("content-type", "")):
                raise Refused(422, "invalid_request", "the body must be JSON", hint="content-type: application/json")
            try:
                body = schema.RecommendRequest.model_validate_json(await request.body())
            except ValidationError as error:
                raise invalid(error.errors(include_url=False)) from None
            await (await self.recommend(body, request))(scope, receive, send)

        return {("GET", "/health/live"): live, ("GET", "/health/ready"): ready, ("POST", "/v1/recommend"): recommend}

    async def recommend_batch(self, body: schema.BatchRequest, request: Request) -> Response:
        """The next items after each of several histories."""
        count, most = len(body.histories), self.service.options.queue
        if count > most:
            # No 429: it would never fit, however often it is sent again.
            raise Refused(422, "invalid_request", f"histories: at most {most} (--queue), got {count}")
        answers = await self._ask(request, [_query(body, history) for history in body.histories])
        return _json({"results": [self._shown(h, *found) for h, found in zip(body.histories, answers)]})

    async def explain(self, body: schema.ExplainRequest, request: Request) -> Response:
        """The next items after a history, and how they were found."""
        query = _query(body, body.history)

        def work(snapshot: Snapshot) -> dict[str, Any]:
            return explained(snapshot, query, body.prefix, body.influence, body.shown)

        ((answer, _),) = await self._ask(request, [work])
        return _json(answer)

    async def items(
        self,
        request: Request,
        q: Annotated[str, InQuery(max_length=200)] = "",
        limit: Annotated[int, InQuery(ge=1, le=100)] = 20,
        offset: Annotated[int, InQuery(ge=0, le=10_000)] = 0,
    ) -> Response:
        """Items by id or by words of their titles; without a text, the most popular ones."""
        return await self._look(request, lambda snapshot: search_items(snapshot, q, limit, offset))

    async def item(self, item_id: ItemInPath, request: Request) -> Response:
        """An item, its attributes, and what its id means."""
        ((about, _),) = await self._ask(request, [lambda snapshot: about_item(snapshot, item_id)])
        return _json(about)

    async def tree(
        self,
        request: Request,
        prefix: Annotated[
            str, InQuery(pattern=_TOKENS, description="Tokens separated by commas; empty is the root.")
        ] = "",
        limit: Annotated[int, InQuery(ge=1, le=200)] = 50,
        offset: Annotated[int, InQuery(ge=0, le=10**9)] = 0,
        levels: Annotated[
            int, InQuery(ge=1, le=3, description="How many levels of children; deeper ones get few.")
        ] = 1,
        of: Annotated[
            Literal["tokens", "codes"], InQuery(description="The ids that the search walks, or those before merging.")
        ] = "tokens",
    ) -> Response:
        """A prefix of the ids, and its largest children."""
        tokens = [int(token) for token in prefix.split(",")] if prefix else []
        ask = partial(tree, prefix=tokens, limit=limit, offset=offset, levels=levels, of=of)
        return await self._look(request, ask)

    async def history(self, number: Annotated[int, InPath(ge=0, le=10**9)], request: Request) -> Response:
        """A history of the test split, to try the service with; users are not named."""
        return await self._look(request, lambda snapshot: example_history(snapshot, number))

    async def runs(self, request: Request) -> Response:
        """The served run and those it is compared with, with their metrics."""
        run, others = Path(self.service.options.run), self.service.others
        return await self._look(request, lambda snapshot: listed(run, snapshot, others))

    async def compare(self, body: schema.RecommendRequest, request: Request) -> Response:
        """What every run recommends after one history."""
        query, run = _query(body, body.history), Path(self.service.options.run)

        def work(snapshot: Snapshot) -> dict[str, Any]:
            return compared(run, snapshot, self.service.others, query)

        ((answer, _),) = await self._ask(request, [work])
        return _json(answer)

    async def report(self, request: Request) -> Response:
        """What `capsid tokenizer report --json` prints, for the served version."""
        return await self._look(request, self.reports.quality)

    async def facets(
        self,
        request: Request,
        depth: Annotated[int, InQuery(ge=1, le=64)] = 1,
        count: Annotated[int, InQuery(ge=1, le=100)] = 10,
    ) -> Response:
        """Items of two facets, if the tokenizer routes."""
        return await self._look(request, partial(self.reports.facets, depth=depth, count=count))

    async def merges(self, request: Request, top: Annotated[int, InQuery(ge=1, le=200)] = 20) -> Response:
        """The most used merged tokens, if ids are merged."""
        return await self._look(request, partial(self.reports.merges, top=top))

    async def events(self) -> Response:
        """Live counts once per second, as server-sent events."""
        return StreamingResponse(self.reports.watch(), media_type="text/event-stream")

    async def add_items(self, body: schema.AddRequest, request: Request) -> Response:
        """Add new items to the catalogue, without retraining."""
        rows = tuple({"item_id": item.item_id, **(item.__pydantic_extra__ or {})} for item in body.items)
        names = [row["item_id"] for row in rows]
        if len(set(names)) < len(names):
            raise Refused(409, "does_not_fit", "an item_id occurs twice", hint="ids must be unique")
        return await self._edit(request, lambda _: Edit("add", rows=rows), 201)

    async def retire(self, item_id: ItemInPath, request: Request) -> Response:
        """Stop recommending an item, effective with the answer; histories may still contain it."""
        return await self._edit(request, lambda _: Edit("retire", items=(item_id,)))

    async def restore(self, item_id: ItemInPath, request: Request) -> Response:
        """Let a retired item be recommended again."""
        return await self._edit(request, lambda _: Edit("restore", items=(item_id,)))

    async def rollback(self, body: schema.RollbackRequest, request: Request) -> Response:
        """Serve an earlier version of the catalogue, under a new number."""

        def make(snapshot: Snapshot) -> Edit:
            return Edit("rollback", to=snapshot.version - 1 if body.version is None else body.version)

        return await self._edit(request, make)

    async def reload(self, request: Request) -> Response:
        """Read the run's folder again and serve it with the edits made so far."""
        return await self._edit(request, lambda _: Edit("reload"))

    async def _edit(self, request: Request, make: Any, status: int = 200) -> Response:
        edit, after = await self.service.edit(make)
        request.scope[VERSION] = after.version
        return _json({"version": after.version, "items": list(edit.named)}, status)

    async def _ask(self, request: Request, works: list[Any]) -> list[tuple[Any, Snapshot]]:
        """Ask the service, and cancel when the client disconnects. All answers are from one version."""
        answers = await self.service.ask(works, lambda: _hung_up(request))
        request.scope[VERSION] = answers[0][1].version
        return answers

    async def _look(self, request: Request, question: Callable[[Snapshot], dict[str, Any]]) -> Response:
        """Answer a question that needs no search."""
        answer, snapshot = await self.service.look(question)
        request.scope[VERSION] = snapshot.version
        return _json(answer)

    def _shown(self, history: list[str], answer: Recommendation, snapshot: Snapshot) -> dict[str, Any]:
        if not answer.personal:
            self.service.metrics.not_personal()
        known = snapshot.recommender.catalogue_.items
        ranked = zip(answer.items, answer.titles, answer.scores)
        return {
            "items": [{"item": item, "title": title, "score": score} for item, title, score in ranked],
            "personal": answer.personal,
            "unknown": [item for item in history if item not in known],
            "version": snapshot.version,
        }


def _query(body: schema.RecommendRequest | schema.BatchRequest, history: list[str]) -> Query:
    allow = None if body.allow is None else tuple(body.allow)
    return Query(tuple(history), body.k, body.filter_history, allow, tuple(body.deny), body.unknown)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(value: Any, status: int = 200) -> Response:
    return Response(_ENCODER.encode(value), status, media_type="application/json")


# Values of attribute tables that JSON cannot express become texts.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str, allow_nan=False, separators=(",", ":"))
