"""A small run, and a server over it that all tests of a file share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi")
sys.path.insert(0, str(Path(__file__).parents[1] / "recommender"))

from served import Served
from small_recipes import small, world

from capsid.evaluate.kept import keep_evaluation
from capsid.recommender import Recommender

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE_ID = 'x/"&<b>?#%2F'
HOSTILE = (
    """=1+1 <img src=x onerror="alert(1)"><script>alert(2)</script> "quoted" 'single' & \u202e reversed, """
    + "long " * 60
)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    Recommender(small("capsid")).fit(world()).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def served(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(run, tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def recommender(run: Path) -> Recommender:
    return Recommender.from_pretrained(run)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright")
    from page_tools import CHROMIUM
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("there is no chromium: `make browser` installs it as root on Debian and Ubuntu")
    with sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Merged ids with routing, a second run to compare with, both evaluated, and an item with a hostile title."""
    folder = tmp_path_factory.mktemp("explored")
    for name in ("capsid-bpe", "rq-kmeans"):
        fitted = Recommender(small(name, steps=10)).fit(world())
        fitted.save_pretrained(folder / name)
        keep_evaluation(folder / name, fitted.evaluate(), fitted.catalogue_.split.test)
    with Served(folder / "capsid-bpe", folder / "state", compare=(str(folder / "rq-kmeans"),)) as server:
        item = {"item_id": HOSTILE_ID, "title": HOSTILE, "categories": ["amber 0"]}
        assert server.client.post("/v1/items", json={"items": [item]}).status_code == 201
        yield server
