"""Whatever fits the OpenAPI document, and much that does not, gets an answer that the document names; never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import schemathesis
from served import Served

CASES = 25


@pytest.fixture(scope="module")
def fuzzed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(run, tmp_path_factory.mktemp("fuzzed")) as server:
        yield server


def test_the_service_keeps_to_its_document(fuzzed: Served) -> None:
    document = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    settings = hypothesis.settings(
        max_examples=CASES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
    )
    asked = 0
    for operation in document.get_all_operations():

        @settings
        @hypothesis.given(case=operation.ok().as_strategy())
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            answer = case.call_and_validate(base_url=fuzzed.url)
            assert answer.status_code < 500
            assert answer.headers["x-request-id"]

        ask()
    assert asked > 100
    fuzzed.recommend(["i1"])
