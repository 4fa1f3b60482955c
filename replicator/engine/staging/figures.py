"""Figures of a staging area for the worker's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.engine.staging.core import StagingCore
from replicator.engine.staging.values import EpochKey

WRITERS_REPORTED_MAX: Final = 100
EPOCHS_REPORTED_MAX: Final = 10


@dataclass(slots=True)
class StagingCounters:
    commits: int = 0
    torn_commits: int = 0
    """Commits whose files were lost when a part of them was published."""
    repeated: int = 0
    aborted_attempts: int = 0
    swept_attempts: int = 0
    staged_bytes: int = 0
    messages: int = 0
    bytes: int = 0


def figures(
    core: StagingCore, counters: StagingCounters, obstacles: Mapping[EpochKey, str], now_ms: int
) -> dict[str, Any]:
    """Return the figures. ``obstacles`` has the reason for each commit that does not go on."""
    epochs = sorted(core.epochs().items(), key=lambda item: -item[1].bytes)
    writers = sorted(core.writers.items(), key=lambda item: -item[1].facts.committed_ms)
    return {
        "staged_bytes": core.staged_bytes,
        "staged_bytes_max": core.limits.staged_bytes_max,
        "attempts": core.attempts,
        "largest": [
            {**key._asdict(), "bytes": its.bytes, "untouched_ms": now_ms - its.touched_ms}
            for key, its in epochs[:EPOCHS_REPORTED_MAX]
        ],
        "commits": counters.commits,
        "torn_commits": counters.torn_commits,
        "repeated_commits": counters.repeated,
        "aborted_attempts": counters.aborted_attempts,
        "swept_attempts": counters.swept_attempts,
        "messages": counters.messages,
        "bytes": counters.bytes,
        "received_bytes": counters.staged_bytes,
        "publishing": [{**commit.key._asdict(), "obstacle": obstacles.get(commit.key)} for commit in core.pending()],
        "writers": [
            {"name": name, "commits": state.facts.commits, "committed_ms": state.facts.committed_ms}
            for name, state in writers[:WRITERS_REPORTED_MAX]
        ],
    }
