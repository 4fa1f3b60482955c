"""Taking a worker from one topology to another: what is refused changes nothing, and one change follows another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import eventually

from replicator.topology import SyncSettings, Topology, TopologyError, default_topology, dump, load_topology
from replicator.topology.diff import digest
from replicator.worker.reload import NotRunning, TopologyDiffers, TopologyReloader


def written(topology: Topology, path: Path) -> Topology:
    file = path / "topology.yaml"
    file.write_text(dump(topology))
    return load_topology(file)


def paced(topology: Topology, update_interval_ms: int) -> Topology:
    return replace(topology, sync=SyncSettings(update_interval_ms=update_interval_ms))


class Worker:
    """Remembers what it was made to run."""

    def __init__(self, topology: Topology) -> None:
        self.ran: list[Topology] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_once = 0
        self.fails = False
        self.reloader = TopologyReloader("us-east", topology, self._carry_out)
        self.reloader.ready()

    async def _carry_out(self, topology: Topology) -> None:
        self.at_once += 1
        assert self.at_once == 1, "two reloads at once"
        await self.gate.wait()
        self.at_once -= 1
        if self.fails:
            raise RuntimeError("nobody foresaw it")
        self.ran.append(topology)


@pytest.fixture
def before(tmp_path: Path) -> Topology:
    return written(default_topology(tmp_path, (7101, 7102)), tmp_path)


def test_the_file_is_read_again_and_what_changed_is_said(tmp_path: Path, before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        assert await worker.reloader.reload_file() == []
        after = written(paced(before, 50), tmp_path)
        assert await worker.reloader.reload_file() == ["sync.update_interval_ms: 5 → 50"]
        assert worker.ran == [before, after]
        assert worker.reloader.topology == after
        status = worker.reloader.status()
        assert (status["digest"], status["file"], status["reloads"]) == (digest(after), str(after.path), 2)

    asyncio.run(main())


def test_a_dry_run_says_what_would_change_and_changes_nothing(tmp_path: Path, before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        written(paced(before, 50), tmp_path)
        assert await worker.reloader.reload_file(dry_run=True) == ["sync.update_interval_ms: 5 → 50"]
        assert worker.ran == []
        assert worker.reloader.topology == before

    asyncio.run(main())


def test_a_file_with_problems_is_refused_with_all_of_them(tmp_path: Path, before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        (tmp_path / "topology.yaml").write_text("clusters: {a: {}}\nlnks: []\n")
        with pytest.raises(TopologyError) as caught:
            await worker.reloader.reload_file()
        assert len(caught.value.problems) >= 3
        assert worker.reloader.topology == before

    asyncio.run(main())


def test_a_file_that_is_not_the_one_that_was_meant_is_refused(tmp_path: Path, before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        meant = paced(before, 50)
        with pytest.raises(TopologyDiffers, match="copy the same file to every worker first"):
            await worker.reloader.reload_file(expected=digest(meant))
        assert worker.ran == []
        written(meant, tmp_path)
        await worker.reloader.reload_file(expected=digest(meant))
        assert worker.ran == [meant]

    asyncio.run(main())


def test_what_needs_a_restart_is_refused_with_every_field(before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        own = before.clusters[0].model_copy(update={"address": "127.0.0.1:9", "database": "postgresql://h/d"})
        after = paced(replace(before, clusters=(own, before.clusters[1])), 50)
        with pytest.raises(TopologyError) as caught:
            await worker.reloader.reload(after)
        assert [problem.split(":")[0] for problem in caught.value.problems] == [
            "clusters.us-east.address",
            "clusters.us-east.database",
        ]
        assert worker.ran == []

    asyncio.run(main())


def test_reloads_come_one_after_another(before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        afters = [paced(before, pace) for pace in (50, 60, 70)]
        worker.gate.clear()
        reloads = [asyncio.create_task(worker.reloader.reload(after)) for after in afters]
        await eventually(lambda: worker.at_once == 1)
        worker.gate.set()
        said = await asyncio.gather(*reloads)
        assert worker.ran == afters
        assert said == [[f"sync.update_interval_ms: {old} → {new}"] for old, new in ((5, 50), (50, 60), (60, 70))]

    asyncio.run(main())


def test_a_reload_goes_on_when_who_asked_for_it_gives_up_and_stopping_waits_for_it(before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        worker.gate.clear()
        reload = asyncio.create_task(worker.reloader.reload(paced(before, 50)))
        await eventually(lambda: worker.at_once == 1)
        reload.cancel()
        closing = asyncio.create_task(worker.reloader.close())
        await asyncio.wait([reload])
        assert not closing.done()
        with pytest.raises(NotRunning, match="is stopping"):
            await worker.reloader.reload_file()
        worker.gate.set()
        await closing
        assert len(worker.ran) == 1

    asyncio.run(main())


def test_a_file_that_was_refused_is_part_of_the_status_until_it_is_taken(tmp_path: Path, before: Topology) -> None:
    async def main() -> None:
        reloader = Worker(before).reloader
        assert before.path is not None
        good = before.path.read_text()
        assert reloader.status()["refused"] is None
        before.path.write_text(good.replace("clusters:", "clusterz:"))
        with pytest.raises(TopologyError):
            await reloader.reload_file(dry_run=True)
        assert reloader.status()["refused"] is None, "nobody asked the worker to take it"
        with pytest.raises(TopologyError):
            await reloader.reload_file()
        problems = reloader.status()["refused"]["problems"]
        assert problems[0].startswith(f"{before.path}:1: ")
        assert str(reloader.file_refused).startswith(problems[0])
        before.path.write_text(good)
        assert await reloader.reload_file(dry_run=True) == []
        assert reloader.status()["refused"] is not None, "a dry run takes nothing"
        assert await reloader.reload_file() == []
        assert reloader.status()["refused"] is None

    asyncio.run(main())


def test_a_failure_that_nobody_foresaw_counts_as_a_refusal_and_other_text_than_meant_does_not(
    tmp_path: Path, before: Topology
) -> None:
    async def main() -> None:
        worker = Worker(before)
        with pytest.raises(TopologyDiffers):
            await worker.reloader.reload_file(expected="another")
        assert worker.reloader.file_refused is None
        written(paced(before, 50), tmp_path)
        worker.fails = True
        with pytest.raises(RuntimeError):
            await worker.reloader.reload_file()
        assert str(worker.reloader.file_refused) == "nobody foresaw it"

    asyncio.run(main())


def test_a_worker_that_is_starting_is_not_changed(before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        starting = TopologyReloader("us-east", before, worker._carry_out)
        with pytest.raises(NotRunning, match="is starting"):
            await starting.reload(paced(before, 50))
        assert worker.ran == []

    asyncio.run(main())


def test_after_a_failure_that_nobody_foresaw_the_same_reload_is_carried_out_again(before: Topology) -> None:
    async def main() -> None:
        worker = Worker(before)
        after = paced(before, 50)
        worker.fails = True
        with pytest.raises(RuntimeError):
            await worker.reloader.reload(after)
        worker.fails = False
        assert await worker.reloader.reload(after) == ["sync.update_interval_ms: 5 → 50"]
        assert worker.ran == [after]

    asyncio.run(main())
