"""A browser for tests: the pages it opens record every error and every request that leaves the service."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.sync_api import Browser, Page, expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
# A busy machine may take its time: a test that waits longer than this has failed.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)
DESK, PHONE = (1280, 800), (390, 844)
VIEWS = ("catalogue", "item", "recommend", "compare", "health")

# Pairs of visible texts that cover each other by more than a pixel or two; what a box hides does not count. Runs of one
# line of one text do not count either: where its direction changes, some versions of Chromium report overlapping boxes.
OVERLAPS = """() => {
  const shown = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })
    && !element.closest(".sr, .skip, .announce, .rail, .top, [hidden], title, option");
  const clipped = (element, { left, right, top, bottom }) => {
    for (let box = element; box && box !== document.body; box = box.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(box), b = box.getBoundingClientRect();
      if (overflowX !== "visible") [left, right] = [Math.max(left, b.left), Math.min(right, b.right)];
      if (overflowY !== "visible") [top, bottom] = [Math.max(top, b.top), Math.min(bottom, b.bottom)];
    }
    return { left, right, top, bottom };
  };
  const texts = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.textContent.trim() || !shown(node.parentElement)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const r = clipped(node.parentElement, rect);
      if (r.right - r.left > 1 && r.bottom - r.top > 1) texts.push([node, r]);
    }
  }
  const found = [];
  texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (one === other && Math.abs(a.top - b.top) < 1) return;
    if (wide > 1.5 && high > 5) found.push([one.textContent.trim(), other.textContent.trim(), wide, high]);
  }));
  return found;
}"""
# Labels of pictures that leave their box or their picture.
OUTSIDE = """() => [...document.querySelectorAll("main svg.picture text")].filter((text) => {
  const box = (text.parentElement.classList.contains("cell") ? text.parentElement.querySelector("rect")
    : text.ownerSVGElement).getBoundingClientRect(), t = text.getBoundingClientRect();
  return text.textContent && (t.left < box.left - 1 || t.right > box.right + 1 || t.top < box.top - 3
    || t.bottom > box.bottom + 3);
}).map((text) => text.textContent)"""


class Watched:
    """A page of the explorer, and what went wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems: list[str] = []
        self.expected: set[int] = set()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._left)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def _said(self, message: Any) -> None:
        # A browser reports every answer that is not 2xx; those that a test asks for are no problem.
        if message.type in ("error", "warning") and not any(
            f"status of {code}" in message.text for code in self.expected
        ):
            self.problems.append(f"{message.type}: {message.text}")

    def _left(self, request: Any) -> None:
        if not request.url.startswith((self.url, "blob:")):
            self.problems.append(f"request: {request.url}")

    def open(self, address: str = "") -> Page:
        """Go to an address of the page, and wait until its view is there."""
        self.page.goto(f"{self.url}/{address}")
        return self.settled()

    def settled(self) -> Page:
        """Wait for the view that the address names."""
        self.page.wait_for_selector("main:not([aria-busy])[data-view] h1", state="attached")
        return self.page

    def check(self) -> None:
        """Nothing went wrong, no label covers another, the page is no wider than the window, and axe finds nothing."""
        page = self.page
        overlaps = page.evaluate(OVERLAPS)
        assert not overlaps, overlaps
        outside = page.evaluate(OUTSIDE)
        assert not outside, outside
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "the page scrolls sideways"
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        told = [f"{v['id']}: {v['help']}: {[n['html'][:200] for n in v['nodes'][:3]]}" for v in found["violations"]]
        assert not told, "\n".join(told)
        assert self.problems == []


@contextmanager
def watched(browser: Browser, url: str, *, size: tuple[int, int] = DESK, scheme: str = "light") -> Iterator[Watched]:
    """A new page; on leaving, nothing may have gone wrong."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce",
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE)
    try:
        page = Watched(context.new_page(), url)
        yield page
        assert page.problems == []
    finally:
        context.close()
