"""The explorer in a real browser: every view, light and dark, on a desk and on a phone, by mouse and by keyboard."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote
from xml.etree import ElementTree

import httpx
import pytest
from conftest import HOSTILE, HOSTILE_ID
from page_tools import DESK, PHONE, watched
from playwright.sync_api import Browser, Page, Route, expect
from served import Served
from small_recipes import world

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
        for address in (
            "catalogue",
            "catalogue?of=tokens&colour=similarity",
            f"item?id={item}",
            f"recommend?h=i1&h={item}&h=i3&h=i9",
            "compare?h=i1&h=i2",
            "health",
        ):
            page = seen.open(f"#/{address}")
            expect(page.get_by_text("is being made")).to_have_count(0)
            seen.check()


def titles(page: Page, label: str) -> list[str]:
    return page.locator(f"ol[aria-label='{label}'] .ranked-body a").all_text_contents()


def test_recommend_edit_force_and_compare_with_before(browser: Browser, explored: Served) -> None:
    def wanted(history: list[str], **more: Any) -> list[str]:
        return [item["title"] for item in explored.recommend(history, **more)["items"]]

    with watched(browser, explored.url) as seen:
        page = seen.open("#/recommend")
        expect(page.get_by_text("these are popular items")).to_be_visible()
        page.get_by_label("Add an item to the history").fill("i5")
        expect(page.locator(".over [role=option]")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator(".history li")).to_have_count(1)
        page.goto(f"{explored.url}/#/recommend?h=i5&h=i8&h=i20")
        expect(page.locator(".history li")).to_have_count(3)
        assert titles(page, "Recommended items") == wanted(["i5", "i8", "i20"])
        expect(page.locator(".influence")).to_have_count(3)

        page.locator("button.rank").nth(1).click()
        assert page.locator("li.chosen").inner_text().startswith("2")
        assert "r=2" in page.url
        assert page.evaluate("document.activeElement.textContent") == "2"

        page.get_by_role("button", name="What if").click()
        expect(page.get_by_role("button", name="Unpin")).to_be_visible()
        page.get_by_role("button", name="Remove amber 0 birch 1 cedar 0 item 2").click()
        expect(page.locator(".history li")).to_have_count(2)
        assert titles(page, "Recommended items") == wanted(["i5", "i20"])
        assert titles(page, "Items to compare with") == wanted(["i5", "i8", "i20"])
        assert page.locator(".moved").count() == 10
        page.get_by_role("button", name="Back to it").click()
        expect(page.locator(".history li")).to_have_count(3)

        node = page.locator("g.node").first
        node.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Search everywhere")).to_be_visible()
        prefix = [int(token) for token in parse_qs(page.url.partition("?")[2])["prefix"][0].split(",")]
        body = {"history": ["i5", "i8", "i20"], "prefix": prefix}
        forced = explored.client.post("/v1/explain", json=body).json()
        assert titles(page, "Recommended items") == [item["title"] for item in forced["items"]]
        seen.check()


def test_a_test_user_and_the_next_item(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open("#/recommend?k=50")
        page.get_by_role("button", name="A test user").click()
        expect(page.locator(".history li").first).to_be_visible()
        asked = parse_qs(page.url.partition("?")[2])
        assert len(asked["h"]) == page.locator(".history li").count()
        assert asked["t"][0] in set(world().items)
        page.get_by_role("link", name="Compare").click()
        seen.settled()
        assert parse_qs(page.url.partition("?")[2]) == asked


def test_runs_side_by_side(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open("#/compare?h=i5&h=i8")
        answer = explored.client.post("/v1/compare", json={"history": ["i5", "i8"]}).json()["runs"]
        for run in answer:
            shown = page.locator(f"section[aria-label='{run['run']}'] ol a").all_text_contents()
            assert shown == [item["title"] for item in run["items"]]
        listed = explored.client.get("/v1/runs").json()["runs"]
        for run in listed:
            mean = run["metrics"]["filtered"]["recall@10"]["mean"]
            expect(page.locator("svg.picture text", has_text=f"{mean:.4f}").first).to_be_visible()
        gap = listed[1]["differences"]["filtered"]["recall@10"]["difference"]
        expect(page.locator("tbody td").nth(1)).to_contain_text(f"{abs(gap):.4f}")
        page.get_by_text("ndcg@5").click()
        expect(page.locator("main")).to_have_attribute("data-view", "compare")
        page.wait_for_url(re.compile("metric=ndcg"))


def test_health_is_live(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open("#/health")
        expect(page.locator(".tile strong").first).to_have_text("ready")
        first = page.locator(".tile .sub", has_text="since the start").inner_text()
        explored.recommend(["i1"])
        expect(page.locator(".tile .sub", has_text="since the start")).not_to_have_text(first)
        expect(page.locator(".spark polyline")).to_be_attached()
        expect(page.get_by_role("heading", name="Lengths")).to_be_visible()


def test_a_service_that_is_gone(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page = seen.open()
        page.context.set_offline(True)
        page.locator("g.cell[aria-level='2']").first.click()
        expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
        page.context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector(".crumbs")
        seen.problems = [p for p in seen.problems if "ERR_INTERNET_DISCONNECTED" not in p]


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
        # On a slow machine, parts of the text are searched too.
        with page.expect_response("**/v1/items?q=amber*birch&*"):
            page.keyboard.type("amber 0 birch")
        options = page.locator("#everywhere [role=option]")
        expect(options.first).to_be_visible()
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


def test_enter_takes_the_best_item_even_before_it_is_found(browser: Browser, explored: Served) -> None:
    with watched(browser, explored.url) as seen:
        page, held = seen.open(), []
        page.route("**/v1/items?q=amber*", lambda route: held.append(route))
        page.keyboard.press("/")
        page.keyboard.type("amber 0 birch")
        page.keyboard.press("Enter")
        while not held:
            page.wait_for_timeout(10)
        assert page.locator("#everywhere [role=option]:visible").count() == 0
        held[-1].continue_()
        expect(page.locator("h1")).to_contain_text("amber 0 birch")
        assert "#/item?id=" in page.url


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
        field = seen.page.get_by_label("API key")
        field.fill("wrong")
        # The answer replaces the form, so nothing can be typed into it until the answer comes.
        held: list[Route] = []
        seen.page.route("**/v1/info", lambda route: held.append(route))
        field.press("Enter")
        expect(field).not_to_be_editable()
        while not held:
            seen.page.wait_for_timeout(10)
        held[0].continue_()
        seen.page.unroute("**/v1/info")
        expect(seen.page.get_by_text("This key is not the right one.")).to_be_visible()
        expect(field).to_be_focused()
        field.fill("a long secret")
        field.press("Enter")
        expect(seen.page.locator("h1")).to_have_text("Catalogue")
        page = seen.open()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_role("status")).to_have_text("curl line copied")
        line = page.evaluate("navigator.clipboard.readText()")
        environment = {**os.environ, "CAPSID_API_KEY": "a long secret"}
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env=environment)
        assert json.loads(done.stdout)["items"] == 72


def test_a_run_that_is_still_being_loaded(browser: Browser, run: Path, tmp_path: Path) -> None:
    server = Served(run, tmp_path / "state")
    held = threading.Event()
    load = server.service._open
    server.service._open = lambda: (held.wait(60), load())[1]
    server.thread.start()
    with watched(browser, server.url) as seen:
        seen.expected = {503}
        until_live(server)
        seen.page.goto(server.url)
        expect(seen.page.get_by_text("The run is still being loaded.")).to_be_visible()
        held.set()
        expect(seen.page.locator("h1")).to_have_text("Catalogue")
    server.__exit__()


def until_live(server: Served) -> None:
    for _ in range(200):
        with contextlib.suppress(httpx.TransportError):
            if server.client.get("/health/live").status_code == 200:
                return
        time.sleep(0.05)


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


def test_the_picture_for_notebooks_keeps_texts_inside_their_boxes(browser: Browser, explored: Served) -> None:
    told = explored.service.snapshot.recommender.explain(["i1", HOSTILE_ID, "i30"], 10, filter_history=False)
    page = browser.new_page()
    page.set_content(told.to_svg())
    outside = page.evaluate("""() => [...document.querySelectorAll("svg svg text")].filter((text) =>
      text.getBoundingClientRect().right > text.ownerSVGElement.querySelector("rect").getBoundingClientRect().left
        + 251).map((text) => text.textContent)""")
    assert page.locator("svg svg").count() > 10
    assert not outside, outside
    page.close()
