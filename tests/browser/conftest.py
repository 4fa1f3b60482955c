"""A browser, and clusters to look at. Without Debian's Chromium or the extra ``browser`` the tests are skipped when run
by hand; ``.ci/browser`` installs both, and makes them fail there instead."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from failover_support import Deployment
from postgres_support import databases_of, served_postgres

from replicator.drills.faults import LinkProxy
from replicator.drills.link_fault import HEALTHY, LinkFault

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BOTH_WAYS = "[{between: [A, B]}]"
SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A directory for pictures of the pages, for who wants to look at them."""


def missing(what: str) -> Any:
    if os.environ.get("REPLICATOR_BROWSER") == "required":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing: .ci/browser installs it")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the extra `browser`")
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("Debian's chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which no script fails and nothing is refused by the page's own policy."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(30_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
    yield page
    page.close()
    assert complaints == []


def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


def opened(page: Page, clusters: Cuttable, path: str, cluster: str = "B") -> None:
    page.goto(clusters.url(cluster, path))
    if page.locator("#live").count():
        page.locator("#live", has_text="Live").wait_for()


TRANSITIONS_OVER: Final = """Promise.allSettled(
    document.getAnimations().filter(each => each instanceof CSSTransition).map(each => each.finished)
).then(() => null)"""


def axe(page: Page) -> list[str]:
    """Return what axe finds. It runs in the browser itself: the pages' policy refuses injected scripts."""
    page.evaluate(TRANSITIONS_OVER)  # of another colour scheme: half of the way a colour has too little contrast
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {json.dumps([node['html'] for node in each['nodes']][:3])}" for each in result["violations"]
    ]


def go_to(page: Page, text: str) -> None:
    """Press Tab until an element with this text has the focus."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"{text!r} cannot be reached by Tab")


def clean_in_every_way(page: Page, name: str) -> None:
    """Check a page, dark at 360 pixels and light on a wide screen: axe finds nothing, and nothing is too wide.

    Take a picture of both, under ``name``.
    """
    for scheme, width, height in (("dark", 360, 740), ("light", 1280, 900)):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": height})
        picture(page, f"{name}-{scheme}-{width}")
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


class Cuttable(Deployment):
    """Clusters A and B; the link from A to B can be cut, and B's worker is asked by everybody else as ever."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._proxy = LinkProxy("127.0.0.1", self.ports["B"])
        self.run(self._proxy.start())
        text = self.file.read_text().replace(f":{self.ports['B']}'", f":{self._proxy.port}'")
        (self.path / "a.yaml").write_text(text)

    def cut(self, *, cut: bool) -> None:
        self.run(self._proxy.set(LinkFault(cut=cut) if cut else HEALTHY))

    def make_topic(self, name: str, topic: str) -> None:
        url = self.url(name, f"/admin/v2/persistent/public/default/{topic}")
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=30).close()

    def stop(self) -> None:
        super().stop()
        self.run(self._proxy.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def run(self, work: Any) -> None:
        """Run work on a loop of its own: Playwright has that of the test's thread."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cuttable]:
    """Workers of A and B."""
    with served_postgres() as server, databases_of("AB", server, "browser") as databases:
        deployed = Cuttable(tmp_path_factory.mktemp("clusters"), ("A", "B"), BOTH_WAYS, databases)
        try:
            deployed.start("A", file="a.yaml")
            deployed.start("B")
            yield deployed
        finally:
            deployed.stop()
