"""The page that a drill leaves behind, in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import SCREENSHOTS, clean_in_every_way
from postgres_support import traversable_directory

if TYPE_CHECKING:
    from playwright.sync_api import Page

REPORT = os.environ.get("DRILL_REPORT")
"""The page of a drill that was run before, for pictures of it; without it, the test runs a short drill."""


@pytest.mark.timeout(300)
def test_the_report_of_a_drill_is_clean_for_screen_readers_and_says_at_once_that_nothing_was_lost(page: Page) -> None:
    with traversable_directory() as directory:
        report = Path(REPORT) if REPORT else directory / "report.html"
        if not REPORT:
            drill = [sys.executable, "-m", "replicator.cli", "drill", "--engine", "embedded", "--messages", "2000"]
            subprocess.run([*drill, "--out", directory, "--quiet"], check=True, timeout=240)
        page.goto(report.as_uri())
        page.locator("h1 .badge.passed").wait_for()
        assert page.locator(".tile.bad").count() == 0
        assert page.locator(".tiles").bounding_box()["y"] < 400, "the figures stand on the first screen"  # type: ignore[index]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            if SCREENSHOTS:  # the first screen, which README shows
                page.screenshot(path=Path(SCREENSHOTS) / f"report-{scheme}.png")
        clean_in_every_way(page, "report")
