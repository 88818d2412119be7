"""A real Chromium, and a watch on everything that goes wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from api_calls import SERVED, Served, serving
from simulated_fleet import fill
from source_tree import ROOT

from tightship_platform.database.engine import open_database

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DEFAULT_TIMEOUT_MS = 30_000
"""Playwright's own."""
PICTURES = ROOT / "docs" / "images" / "tour"
PICTURE = {"width": 1280, "height": 860}
PICTURES_ASKED = bool(os.environ.get("TIGHTSHIP_PICTURES"))  # tests run without such variables


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's Chromium, or the one that Playwright installed."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with playwright_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=ARGS)
        except playwright_api.Error as why:
            pytest.skip(f"no chromium can be started: {str(why).splitlines()[0]}")
        yield browser
        browser.close()


@dataclass
class Watch:
    """What went wrong in a page: console errors, exceptions, failed requests, requests to other servers."""

    base: str
    wrong: list[str] = field(default_factory=list)

    def over(self, page: Any) -> Callable[[], None]:
        """Look at this page from now on, until what it returns is called."""
        listeners = {
            "console": lambda m: self.wrong.append(f"console: {m.text}") if m.type == "error" else None,
            "pageerror": lambda error: self.wrong.append(f"exception: {error}"),
            "response": lambda r: self.wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None,
            "request": self._request,
        }
        for event, listener in listeners.items():
            page.on(event, listener)

        def end() -> None:
            for event, listener in listeners.items():
                page.remove_listener(event, listener)

        return end

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.wrong.append(f"foreign: {request.url}")


@dataclass
class Tab:
    """A page with its watch."""

    page: Any
    watch: Watch

    def look(self, scheme: str, width: int) -> None:
        """In this theme and a window of this width, from the next page on."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": 900})

    def open(self, path: str) -> None:
        """Go there and wait until the page has come."""
        self.page.goto(self.watch.base + path)
        self.page.wait_for_selector("#page > *")

    def answer(self) -> str:
        """The first line."""
        text: str = self.page.locator("#page .answer").inner_text()
        return text.replace("\u00a0", " ")

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(300)

    def picture(self, name: str) -> None:
        """Keep what is seen here for docs/tour.md, when `make pictures` asks for it; a light page, for a desktop."""
        size = self.page.viewport_size
        if PICTURES_ASKED and size["width"] > 1000:
            self.page.set_viewport_size(PICTURE)
            self.settle()
            self.page.screenshot(path=PICTURES / f"{name}.png")
            self.page.set_viewport_size(size)

    def scrolls_sideways(self) -> bool:
        """Whether the whole page (not a part within it) is wider than the window."""
        wider: bool = self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        return wider


class Tabs:
    """Pages of one browser. What a page has loaded once it need not compile again, so the same ones go from test to
    test, without anything that a test left behind.
    """

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.free: list[Any] = []

    def new(self, **options: Any) -> Any:
        """A page in its own context."""
        context = self.browser.new_context(
            timezone_id="Europe/Berlin", locale="en-GB", reduced_motion="reduce", **options
        )
        return context.new_page()

    def clean(self, page: Any) -> bool:
        """Take away what a test left; False where that does not work."""
        try:
            if page.url.startswith("http"):
                page.evaluate("() => { localStorage.clear(); sessionStorage.clear() }")
            for other in page.context.pages:
                if other is not page:
                    other.close()
            page.context.unroute_all()
            page.context.clear_cookies()
            page.context.clear_permissions()
            page.goto("about:blank")
            page.set_default_timeout(DEFAULT_TIMEOUT_MS)
        except playwright_api.Error:
            return False
        return True


@pytest.fixture(scope="session")
def _tabs(chromium: Any) -> Tabs:
    return Tabs(chromium)


@pytest.fixture
def tab(_tabs: Tabs) -> Iterator[Callable[..., Tab]]:
    """`tab(base, scheme="light", width=1440)` → Tab; it must end without anything wrong.

    With `own=True`, or any option of a context, it is one that nobody had before and nobody gets after.
    """
    with ExitStack() as stack:
        tabs: list[Tab] = []

        def make(base: str, *, scheme: str = "light", width: int = 1440, own: bool = False, **context: Any) -> Tab:
            if own or context:
                page = _tabs.new(**context)
                stack.callback(page.context.close)
            else:
                page = _tabs.free.pop() if _tabs.free else _tabs.new()
                stack.callback(give_back, page)
            if base in SERVED:  # the browser of its user; a separate process prints a link
                cookies = SERVED[base].cookie.items()
                page.context.add_cookies([{"name": name, "value": value, "url": base} for name, value in cookies])
            watch = Watch(base)
            stack.callback(watch.over(page))
            tabs.append(Tab(page, watch))
            tabs[-1].look(scheme, width)
            return tabs[-1]

        def give_back(page: Any) -> None:
            if _tabs.clean(page):
                _tabs.free.append(page)
            else:
                page.context.close()

        yield make
        for made in tabs:
            assert made.watch.wrong == []


@pytest.fixture(scope="session")
def fleet(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    """A server with the simulated fleet."""
    env = make_platform_env()
    with open_database(env.settings) as database:
        fill(database.engine)
    with serving(env.settings) as served:
        yield served


@pytest.fixture(scope="session")
def nothing_yet(make_platform_env: Callable[..., Any]) -> Iterator[Served]:
    """A server to which nothing has reported."""
    with serving(make_platform_env().settings) as served:
        yield served
