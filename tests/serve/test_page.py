"""The explorer in a real browser: every view, light and dark, on a desk and on a phone, by mouse and by keyboard."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from conftest import HOSTILE, HOSTILE_ID
from page_tools import DESK, PHONE, watched
from playwright.sync_api import Browser, expect
from served import Served

from capsid.serve.app import PAGE


def test_zoom_in_and_out_by_mouse_and_keyboard(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open()
        assert page.title() == "Catalogue · capsid"
        seen.check()
        first = page.locator("g.cell[aria-level='2']").first
        first.hover()
        name = page.locator(".panel h2").inner_text()
        assert name != "All items"
        first.click()
        page.wait_for_selector(".crumbs")
        assert "prefix=" in page.url
        assert page.locator("h1").inner_text() == name
        zoomed = page.url
        page.reload()
        seen.settled()
        assert page.url == zoomed
        assert page.locator("h1").inner_text() == name
        page.locator("g.cell").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
        page.keyboard.press("Backspace")
        expect(page.locator("h1")).to_have_text("Catalogue")
        page.go_back()
        expect(page.locator("h1")).to_have_text(name)


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light")])
def test_every_view_is_legible_and_accessible(browser: Browser, explored: Served, size: Any, scheme: str) -> None:
    item = quote(HOSTILE_ID, safe="")
    with watched(browser, explored.url, size=size, scheme=scheme) as seen:
        for address in ("catalogue", "catalogue?of=tokens&colour=similarity", "item", f"item?id={item}"):
            seen.open(f"#/{address}")
            seen.check()


def test_titles_are_text(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open(f"#/item?id={quote(HOSTILE_ID, safe='')}")
        assert page.locator("h1").text_content() == HOSTILE
        assert page.locator("main img, main script").count() == 0
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save attributes").click()
        assert "amber 0" in saved.value.path().read_text()


def test_search_from_anywhere_by_keyboard(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open()
        page.keyboard.press("/")
        page.keyboard.type("amber 0 birch")
        options = page.locator("#everywhere [role=option]")
        expect(options.first).to_contain_text("amber 0 birch")
        second = options.nth(1).locator(".found-title").inner_text()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(second)
        page.keyboard.press("/")
        page.keyboard.type("no such words")
        expect(page.locator("#everywhere .found-note")).to_have_text("No item has all of these words.")
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()


def test_what_is_wrong_is_said(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        seen.expected = {404}
        seen.open("#/item?id=nothing")
        assert "no item 'nothing'" in seen.page.get_by_role("alert").inner_text()
        seen.open("#/catalogue?prefix=9999")
        assert "begins with the tokens" in seen.page.get_by_role("alert").inner_text()
        seen.open("#/nowhere")
        assert "no view nowhere" in seen.page.get_by_role("alert").inner_text()


def test_a_service_with_a_key_asks_for_it(browser: Browser, run: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a long secret")
    with (
        Served(run, tmp_path / "state", api_key_file=str(tmp_path / "key")) as server,
        watched(browser, server.url) as seen,
    ):
        seen.expected = {401}
        seen.page.goto(server.url)
        for key in ("wrong", "a long secret"):
            seen.page.get_by_label("API key").fill(key)
            seen.page.keyboard.press("Enter")
        expect(seen.page.locator("h1")).to_have_text("Catalogue")
        page = seen.open()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_role("status")).to_have_text("curl line copied")
        line = page.evaluate("navigator.clipboard.readText()")
        environment = {**os.environ, "CAPSID_API_KEY": "a long secret"}
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env=environment)
        assert json.loads(done.stdout)["items"] == 72


def test_the_page_is_small() -> None:
    files = [file for file in PAGE.rglob("*") if file.is_file()]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < 100_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_saved_pictures_stand_alone(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save id-tree as SVG").click()
        picture = ElementTree.fromstring(saved.value.path().read_bytes())
        texts = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text") if t.text]
        assert len(texts) > 10
        assert not [e for e in picture.iter() if "var(" in str(e.attrib) or "class" in e.attrib]
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save id-tree as CSV").click()
        rows = list(csv.reader(saved.value.path().read_text().splitlines()))
        assert rows[0] == ["prefix", "codes", "items", "interactions", "similarity", "words", "example"]
        assert len(rows) > 10
