"""The order of work of a run with several processes: the files of tests that took longest come first.

A process that begins a long file last works alone at the end. So a run with ``-n`` notes in ``~/.cache/replicator-ci``
what each file took, and the next run begins with the longest. A file without a time comes before all others. If no file
has a time, the order is xdist's own.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

STORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator-ci" / "seconds-of-tests.json"
FORGOTTEN = 0.7
"""Share that a longer time of earlier runs keeps: a run of some tests of a file does not hide what all of them take."""


def load(store: Path) -> dict[str, float]:
    """Return the seconds by group; nothing if the file is not there or is not what it should be."""
    try:
        return {str(group): float(seconds) for group, seconds in json.loads(store.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save(store: Path, took: Mapping[str, float]) -> None:
    """Add the times of a run to those that are known."""
    known = load(store)
    for group, seconds in took.items():
        known[group] = round(max(seconds, FORGOTTEN * known.get(group, 0.0)), 2)
    store.parent.mkdir(parents=True, exist_ok=True)
    beside = store.with_name(f"{store.name}.{os.getpid()}")
    beside.write_text(json.dumps(known, indent=0, sort_keys=True))
    beside.replace(store)


class LongestFirst(OrderedDict[str, Any]):
    """A queue of groups for xdist, which takes from its beginning."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__()
        self._seconds = seconds

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """Remove the group that took longest; of equal ones the first, or the last if asked for that."""
        groups = reversed(self) if last else iter(self)
        group = max(groups, key=lambda each: self._seconds.get(each, float("inf")))
        return group, self.pop(group)


class GroupsTimed:
    """A plugin of the process that shares out the tests: it adds up what the tests of each group take."""

    def __init__(self, group_of: Callable[[str], str], store: Path) -> None:
        self._group_of = group_of
        self._store = store
        self._took: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test's call, and what its fixtures take before and after it."""
        self._took[self._group_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep the times; a machine that cannot write them does without."""
        with suppress(OSError):
            save(self._store, self._took)
