"""A browser, and clusters to look at. Without Debian's Chromium or the extra ``browser`` the tests are skipped when run
by hand; ``.ci/browser`` installs both, and makes them fail there instead."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


class Cuttable(Deployment):
    """Clusters A and B; the link from A to B can be cut, and B's worker is asked by everybody else as ever."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
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
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Any) -> None:
        """On a loop of its own: Playwright has that of the test's thread."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


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
