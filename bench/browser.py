"""Pages timed in a real browser: Debian's Chromium, driven by Playwright (the extra ``browser``)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

CHROMIUM: Final = "chromium"
_PAINTED: Final = """new Promise(painted => {
    const name = 'first-contentful-paint';
    const [entry] = performance.getEntriesByName(name);
    if (entry) return painted(entry.startTime);
    new PerformanceObserver(list => {
        for (const each of list.getEntriesByName(name)) painted(each.startTime);
    }).observe({type: 'paint', buffered: true});
})"""


def browser_missing() -> str | None:
    """Return why pages cannot be timed in a browser here; None if they can."""
    if find_spec("playwright") is None:
        return "the extra `browser` is not installed"
    return None if shutil.which(CHROMIUM) else "there is no chromium (on Debian: chromium)"


def first_paints_ms(urls: Mapping[str, str], runs: int, rest_seconds: float) -> dict[str, tuple[float, ...]]:
    """Return, by page name, the milliseconds from the start of loading to the first contentful paint, run by run.

    ``urls`` has the pages' URLs by name. Each run begins with a rest of ``rest_seconds``, then loads every page once,
    each with an empty cache. Do not call this in a thread that runs an event loop.
    """
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {name: [] for name in urls}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        browser.new_page().close()  # the first one waits for the browser itself
        for _ in range(runs):
            time.sleep(rest_seconds)
            for name, url in urls.items():
                context = browser.new_context()
                page = context.new_page()
                page.goto(url)
                found[name].append(float(page.evaluate(_PAINTED)))
                context.close()
        browser.close()
    return {name: tuple(times) for name, times in found.items()}
