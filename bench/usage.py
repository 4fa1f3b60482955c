"""CPU time and memory of programs of several processes, sampled while they are measured. Linux only.

A thread of ours looks at them ten times a second; children that they start are found once a second. CPU time between
two moments is read off between samples, for both ends of a copy are known only afterwards.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

SAMPLE_EVERY_SECONDS: Final = 0.1
CHILDREN_EVERY_SECONDS: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU time that all processes together have used so far, and memory that they have now."""

    at: float
    cpu_seconds: float
    rss_bytes: int
    """Resident memory, too high: pages that several processes share are counted in each, as tools do."""
    anonymous_bytes: int
    """Heaps and stacks, without mapped files and shared memory."""


class Usage:
    """Sampler of the CPU time and the memory of processes, in a thread, while the context lasts.

    ``roots`` returns process ids. It is called for each sample; the children of these processes count too.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._pids: frozenset[int] = frozenset()
        self._children_at = 0.0
        self._samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_on, name="usage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def rss_bytes_max(self) -> int:
        return max((sample.rss_bytes for sample in tuple(self._samples)), default=0)

    @property
    def anonymous_bytes_max(self) -> int:
        return max((sample.anonymous_bytes for sample in tuple(self._samples)), default=0)

    def wait_beyond(self, moment: float) -> None:
        """Wait until there is a sample later than ``moment``, a time of ``time.monotonic``."""
        while not self._samples or self._samples[-1].at <= moment:
            assert self._thread.is_alive(), "nobody looks any more"
            time.sleep(SAMPLE_EVERY_SECONDS / 2)

    def cpu_seconds(self, began: float, ended: float) -> float:
        """Return the CPU time used between two moments of ``time.monotonic``, by processes that ran in both."""
        self.wait_beyond(ended)
        samples = tuple(self._samples)
        return cpu_seconds_until(samples, ended) - cpu_seconds_until(samples, began)

    def _sample_on(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_SECONDS):
            self._samples.append(self._sample())

    def _sample(self) -> Sample:
        now = time.monotonic()
        roots = frozenset(self._roots())
        if now - self._children_at > CHILDREN_EVERY_SECONDS or not roots <= self._pids:
            self._children_at = now
            self._pids = roots | _children(roots)
        used = [each for each in map(_of_process, self._pids) if each is not None]
        cpu, rss, anonymous = (sum(column) for column in zip(*used, strict=True)) if used else (0, 0, 0)
        return Sample(now, cpu / _TICKS, rss * _KIB, anonymous * _KIB)


def cpu_seconds_of(roots: Iterable[int]) -> float:
    """Return the CPU seconds that the processes of ids ``roots`` and their children have used so far, together."""
    pids = frozenset(roots)
    used = [each for each in map(_of_process, pids | _children(pids)) if each is not None]
    return sum(ticks for ticks, _, _ in used) / _TICKS


def cpu_seconds_until(samples: Sequence[Sample], moment: float) -> float:
    """Return the CPU seconds used until ``moment``, interpolated between the samples before and after it."""
    assert samples
    after = bisect_left(samples, moment, key=lambda sample: sample.at)
    if after == 0:
        return samples[0].cpu_seconds
    if after == len(samples):
        return samples[-1].cpu_seconds
    one, other = samples[after - 1], samples[after]
    share = (moment - one.at) / (other.at - one.at)
    return one.cpu_seconds + share * (other.cpu_seconds - one.cpu_seconds)


def _children(roots: Iterable[int]) -> frozenset[int]:
    found: set[int] = set()
    for pid in roots:
        with suppress(psutil.Error):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return frozenset(found)


def _of_process(pid: int) -> tuple[int, int, int] | None:
    """Return a process's CPU ticks, with those of ended children, and its resident and anonymous memory in KiB.

    Return None if the process is gone.
    """
    place = Path(f"/proc/{pid}")
    try:
        # Its name stands in brackets and may have anything in it.
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        status = (place / "status").read_text()
    except OSError:
        return None
    memory = dict.fromkeys(("VmRSS", "RssAnon"), 0)
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in memory:
            memory[name] = int(value.split()[0])
    return sum(map(int, fields[11:15])), memory["VmRSS"], memory["RssAnon"]
