"""Failures printed as they come, in the steps of CI that have a time limit: one that is ended prints no summary."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest


class FailuresAtOnce:
    """A plugin that repeats nothing of a run that ends by itself but what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(
                f"\n{time.strftime('%H:%M:%S')} {report.nodeid}, {report.when} after {report.duration:.0f} s:"
            )
            terminal.write_line(report.longreprtext)


def is_wanted() -> bool:
    """Return whether this is a step of CI with a time limit."""
    return "required" in (os.environ.get("REPLICATOR_PEERS"), os.environ.get("REPLICATOR_PACKAGES"))
