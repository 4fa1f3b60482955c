"""The worker's driver of live copy, as a process: started, watched, started again, and ended with its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from engine_support import eventually

from replicator.running.ending import TaskEnder
from replicator.running.supervisor import Supervisor
from replicator.topology import PipelineSettings
from replicator.worker import pipeline_driver
from replicator.worker.pipeline_driver import PipelineDriver

HERE = Path(__file__).parent
URL = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_driver, "MODULE", "driver_child")
    monkeypatch.setenv("PYTHONPATH", str(HERE))


class Watched:
    """A driver, and what it wrote and what its links are told."""

    def __init__(self, path: Path) -> None:
        self.file = path / "heard"
        self.file.touch()
        self.notes: list[str] = []
        self.ended: list[int] = []
        self.ender = TaskEnder()
        self.supervisor = Supervisor(around=self.ender.around)
        self.driver = PipelineDriver("us-east", URL, self.notes.append, self.ended.append, self.supervisor)

    def settings(self, **conf: str) -> PipelineSettings:
        named = {f"spark.test.{name}": value for name, value in conf.items()}
        return PipelineSettings(conf={"spark.test.file": str(self.file), **named})

    def runs(self) -> list[int]:
        return [int(line.split()[0]) for line in self.file.read_text().splitlines() if line[0].isdecimal()]


def test_it_runs_while_a_link_is_spark_s_and_is_told_the_worker_and_the_settings(tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(), links=0)
        assert watched.driver.status()["driver"] == "off"
        await watched.driver.change(watched.settings(), links=2)
        await eventually(watched.runs)
        assert watched.file.read_text().split()[1:] == ["--worker", URL]
        # The process may run before its start has returned to us, which is when its pid is known.
        await eventually(lambda: watched.driver.status()["driver"] == "running")
        assert watched.driver.status()["pid"] == watched.runs()[0]
        await watched.driver.change(watched.settings(), links=1)
        assert watched.driver.starts == 1, "nothing changed for it"
        await watched.driver.change(watched.settings(other="1"), links=1)
        await eventually(lambda: len(watched.runs()) == 2, "it is started with the new settings")
        await watched.driver.change(watched.settings(other="1"), links=0)
        assert watched.driver.status()["driver"] == "off"
        assert not any(map(psutil.pid_exists, watched.runs()))

    asyncio.run(main())


def test_one_that_ends_is_started_again_and_its_last_words_are_what_links_wait_for(tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(ends="yes", says="no Java was found: install one"), links=1)
        await eventually(lambda: len(watched.runs()) >= 2, "it is started again")
        waiting = [note for note in watched.notes if "ended" in note]
        assert waiting[0] == (
            "for Spark: its driver ended: live copy: no Java was found: install one (status 3); started again in 1 s"
        )
        await eventually(lambda: watched.driver.status()["driver"] == "waiting")
        assert "no Java was found" in watched.driver.status()["detail"]
        await watched.driver.stop()

    asyncio.run(main())


@pytest.mark.parametrize("by_error", [False, True])
def test_its_task_starts_again_when_it_was_ended_and_so_does_the_driver(tmp_path: Path, by_error: bool) -> None:
    async def main() -> None:
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(deaf="yes", lingers="yes"), links=1)
        await eventually(lambda: watched.driver.status()["pid"] is not None and watched.runs())
        (task,) = watched.supervisor.running()
        assert watched.ender.end(task, by_error=by_error)
        await eventually(lambda: len(watched.runs()) == 2, "it is started again")
        assert not psutil.pid_exists(watched.runs()[0])
        assert watched.supervisor.restarts() == {"pipeline driver": 1}
        await watched.driver.stop()
        assert not any(map(psutil.pid_exists, watched.runs()))

    asyncio.run(main())


def test_one_that_is_elsewhere_is_not_started_and_links_say_how_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(tmp_path)
        await watched.driver.change(PipelineSettings(driver="external"), links=1)
        assert watched.driver.status()["driver"] == "external"
        assert "replicator pipeline run" in watched.notes[-1]
        assert watched.runs() == []

    asyncio.run(main())


def test_one_that_does_not_end_when_it_is_told_to_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(pipeline_driver, "STOP_SECONDS_MAX", 0.2)
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(deaf="yes", ready="yes"), links=1)
        await eventually(watched.runs)
        await eventually(lambda: watched.driver.status()["driver"] == "running", "its start has returned")
        await watched.driver.stop()
        assert not psutil.pid_exists(watched.runs()[0])
        assert watched.ended == watched.runs()

    asyncio.run(main())


def test_one_that_is_killed_carries_nothing_from_then_on_and_its_words_of_long_ago_are_not_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(pipeline_driver, "LAST_WORDS_SECONDS", -1.0)
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(), links=1)
        await eventually(watched.runs)
        os.kill(watched.runs()[0], signal.SIGKILL)
        await eventually(lambda: watched.ended)
        assert watched.ended == watched.runs()
        await eventually(lambda: "ended" in watched.notes[-1])
        assert "it said nothing (killed by signal 9)" in watched.notes[-1]
        await watched.driver.stop()

    asyncio.run(main())


def test_one_that_hangs_is_killed_and_started_again_and_one_that_lives_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose JVM does not answer handles no SIGTERM, and never ends by itself."""

    async def main() -> None:
        monkeypatch.setattr(pipeline_driver, "SILENCE_SECONDS_MAX", 0.5)
        monkeypatch.setattr(pipeline_driver, "SILENCE_MORE_SECONDS", 30.0)
        watched = Watched(tmp_path)
        await watched.driver.change(watched.settings(ready="yes", alive="yes", deaf="yes"), links=1)
        await eventually(lambda: watched.driver._is_ready)
        assert watched.notes[-1] == "for Spark: its driver runs, and no task of it has asked for this link yet"
        (living,) = watched.runs()
        heard = watched.driver._until_silent
        await eventually(lambda: watched.driver._until_silent is not heard)
        os.kill(living, signal.SIGSTOP)
        assert watched.runs() == [living]
        monkeypatch.setattr(pipeline_driver, "SILENCE_MORE_SECONDS", 0.1)
        await eventually(lambda: len(watched.runs()) == 2, "it is started again")
        assert watched.ended == [living]
        assert any("it hung: it gave no sign of life for 0.5 s (killed by signal 9)" in note for note in watched.notes)
        await watched.driver.stop()
        assert not any(map(psutil.pid_exists, watched.runs()))

    asyncio.run(main())


def test_it_ends_with_its_worker_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "sys.path[:0] = [sys.argv[2], sys.argv[3]]\n"
        "from replicator.worker import pipeline_driver; pipeline_driver.MODULE = 'driver_child'\n"
        "from test_pipeline_driver import Watched\n"
        "async def main():\n"
        "    watched = Watched(Path(sys.argv[1]))\n"
        "    await watched.driver.change(watched.settings(), links=1)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), str(HERE), str(HERE.parents[1] / "support")]
    (tmp_path / "heard").touch()
    worker = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(HERE)})

    async def main() -> None:
        await eventually(lambda: "--worker" in (tmp_path / "heard").read_text())
        worker.kill()
        worker.wait()
        await eventually(lambda: "its input ended" in (tmp_path / "heard").read_text())

    asyncio.run(main())
