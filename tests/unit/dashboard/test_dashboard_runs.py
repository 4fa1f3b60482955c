"""Runs of the dashboard: the newest are kept, one that goes on is not forgotten, and all tasks end with the worker."""

from __future__ import annotations

import asyncio

import pytest
from asynchronous import asynchronous

from replicator.dashboard.runs import Run, RunNotFound, Runs


class Kept(Runs[Run]):
    def begin(self) -> Run:
        return self._keep(Run(beginning=self._beginning("chief")))

    def work(self, run: Run, begun: asyncio.Event) -> None:
        async def wait() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                run.seconds = self._seconds(run)

        self._in_background(wait(), "a run")


def test_newer_runs_take_the_place_of_ended_ones_and_of_no_other() -> None:
    now = [0.0]
    runs = Kept(3, 1.0, lambda: now[0])
    first = runs.begin()
    ended = [runs.begin() for _ in range(3)]
    for run in ended:
        run.seconds = 1.0
    last = runs.begin()
    assert runs.newest() == [last, ended[2], first]
    assert runs.unended() == [first, last]
    assert runs.find(first.run_id) is first
    assert (first.who, first.going, ended[2].going) == ("chief", True, False)
    with pytest.raises(RunNotFound, match="newer ones took its place"):
        runs.find(ended[0].run_id)


@asynchronous
async def test_tasks_of_runs_end_with_the_worker() -> None:
    now = [0.0]
    runs = Kept(3, 60.0, lambda: now[0])
    run, begun = runs.begin(), asyncio.Event()
    runs.work(run, begun)
    await begun.wait()
    now[0] = 2.5
    await runs.close()
    assert run.seconds == 2.5
    await runs.close()
