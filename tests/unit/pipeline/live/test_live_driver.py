from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import BadOption, PeerUnavailable, SparkFailed, error_of_job, reason_of
from replicator.pipeline.live import driver
from replicator.pipeline.live.driver import LANES_SETTING, SCRATCH_PREFIX, LiveCopy, lanes_of, with_slots
from replicator.pipeline.live.link_source import LANES_MAX, LinkOptions
from replicator.pipeline.spark.scratch import make_scratch
from replicator.worker.pipeline_driver import ALIVE

OPTIONS = LinkOptions("http://here:1", "a>b#n", "a", "b", "there:2", "driver 1", "n", "zstd", 3, 0.5)


def test_options_are_read_back_as_they_were_given() -> None:
    assert LinkOptions.parse(OPTIONS.as_options()) == OPTIONS
    assert LinkOptions.parse(replace(OPTIONS, name="").as_options()).name == ""


def test_options_of_spark_itself_are_let_through() -> None:
    given = {**OPTIONS.as_options(), "checkpointLocation": "/x", "queryName": "a>b", "path": "/y"}
    assert LinkOptions.parse(given) == OPTIONS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"adress": "x"}, "option 'adress'"),
        ({"url": ""}, "option 'url'"),
        ({"lanes": "0"}, "option 'lanes'"),
        ({"lanes": "65"}, f"from 1 to {LANES_MAX}"),
        ({"lanes": "two"}, "option 'lanes'"),
        ({"batch_seconds": "soon"}, "option 'batch_seconds'"),
        ({"batch_seconds": "nan"}, "option 'batch_seconds'"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        LinkOptions.parse({**OPTIONS.as_options(), **change})


def test_a_local_master_gets_room_for_tasks_that_wait_and_others_stay() -> None:
    assert with_slots("local[2]") == with_slots("local") == with_slots("local[*]") == "local[64,4]"
    assert with_slots("spark://there:7077") == "spark://there:7077"
    assert with_slots("local-cluster[2,1,512]") == "local-cluster[2,1,512]"


@pytest.mark.parametrize(
    ("master", "parallelism", "lanes"),
    [
        ("local[2]", 64, 1),
        ("local[8,4]", 64, 4),
        ("local", 64, 1),
        ("spark://x:1", 6, 3),
        ("yarn", 100, 8),
        ("yarn", 1, 1),
    ],
)
def test_a_link_has_half_as_many_lanes_as_there_are_cores(master: str, parallelism: int, lanes: int) -> None:
    assert lanes_of(master, {}, parallelism) == lanes
    assert lanes_of(master, {LANES_SETTING: "5"}, parallelism) == 5


def test_the_reason_of_a_failure_is_one_line_without_the_stack() -> None:
    of_python = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
        '  File "link_source.py", line 1, in parse\n'
        "replicator.pipeline.errors.BadOption: option 'url': it is missing\n SQLSTATE: 38000"
    )
    assert reason_of(RuntimeError(of_python)) == "option 'url': it is missing"
    of_java = (
        "An error occurred while calling o9.start.\n: org.apache.spark.Wrong: no such thing\n\tat org.apache.Spark(1)"
    )
    assert reason_of(RuntimeError(of_java)) == "org.apache.spark.Wrong: no such thing"
    of_a_users_code = (
        "An error occurred while calling o9.collect.\n: org.apache.spark.SparkException: Job aborted: Traceback (most "
        'recent call last):\n  File "mine.py", line 3, in half\n    1 / 0\nZeroDivisionError: division by zero\n\n'
        "\tat org.apache.Spark(1)\nDriver stacktrace:\n\tat org.apache.Spark(2)"
    )
    assert reason_of(RuntimeError(of_a_users_code)) == "ZeroDivisionError: division by zero"
    assert reason_of(RuntimeError("")) == "RuntimeError"
    assert reason_of(None) == "it ended by itself"


def test_what_failed_a_job_is_the_error_of_its_task_if_it_was_expected() -> None:
    def job(error: str) -> RuntimeError:
        return RuntimeError(f'Job aborted: Traceback (most recent call last):\n  File "a.py"\n{error}\n\tat org.Spark')

    unavailable = error_of_job(job("replicator.pipeline.errors.PeerUnavailable: no answer"), PeerUnavailable)
    assert (type(unavailable), str(unavailable)) == (PeerUnavailable, "no answer")
    other = error_of_job(job("replicator.engine.errors.BlockCorrupt: a checksum"), PeerUnavailable)
    assert (type(other), str(other)) == (SparkFailed, "a checksum")
    foreign = error_of_job(job("MemoryError"), PeerUnavailable)
    assert (type(foreign), str(foreign)) == (SparkFailed, "a Spark job failed: MemoryError")


def test_scratch_directories_of_drivers_that_are_gone_are_removed_and_others_stay(tmp_path: Path) -> None:
    of_a_living_one = make_scratch(SCRATCH_PREFIX, tmp_path)
    assert of_a_living_one.name.startswith(f"{SCRATCH_PREFIX}{os.getpid()}-")
    gone = tmp_path / f"{SCRATCH_PREFIX}{2**22 + 1}-abc"  # above the highest pid of Linux
    other = tmp_path / f"{SCRATCH_PREFIX}notes"
    for directory in (gone, other):
        directory.mkdir()
    made = make_scratch(SCRATCH_PREFIX, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([of_a_living_one, other, made])


class _OfPy4j(Exception):
    """Error that py4j raises when its JVM is gone."""


_OfPy4j.__module__ = "py4j.protocol"


class _Spark:
    """A session whose Spark may have ended by itself: then nothing can be asked of it, or it says that it stopped."""

    def __init__(self) -> None:
        self.stopped: bool | Exception = False

    @property
    def dataSource(self) -> Any:  # noqa: N802 - Spark's names
        return self

    def register(self, _: object) -> None: ...

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        return self

    @property
    def _jsc(self) -> Any:
        return self

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:  # noqa: N802
        if isinstance(self.stopped, Exception):
            raise self.stopped
        return self.stopped


class _Query:
    """A query that has failed, or that goes on until it is stopped."""

    def __init__(self, active: bool) -> None:
        self.isActive = active

    def exception(self) -> Exception | None:
        return None if self.isActive else _OfPy4j("no messages any more")

    def stop(self) -> None:
        self.isActive = False


class _Copying:
    """A driver of one link over ``query``, which is called at each start of it; its worker lists the link only."""

    def __init__(self, patch: pytest.MonkeyPatch, scratch: Path, query: Callable[[], _Query]) -> None:
        self.now_seconds, self.starts, self.signs = 0.0, 0, 0
        self.links = [{"key": "a>b"}]
        self.spark, self._query = _Spark(), query
        patch.setattr(DataPlane, "call", self._answer)
        patch.setattr(driver.time, "monotonic", lambda: self.now_seconds)  # type: ignore[attr-defined]
        patch.setattr(LiveCopy, "_query", self._start)
        self.copying = LiveCopy(self.spark, "http://127.0.0.1:1", 1, scratch, self._alive)  # type: ignore[arg-type]

    def step(self) -> None:
        """Look once, when a failed query is due again."""
        self.now_seconds += 100
        self.copying.step()

    def _answer(self, _: str, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        if path == "/pipeline/v1/links":
            return {"links": self.links}
        raise PeerUnavailable("it has no plans")

    def _start(self, *_: object) -> _Query:
        self.starts += 1
        return self._query()

    def _alive(self) -> None:
        self.signs += 1


@pytest.mark.parametrize("at_the_start", [False, True])
@pytest.mark.parametrize("stopped", [True, _OfPy4j("no connection to the JVM"), ConnectionRefusedError()])
def test_a_driver_whose_spark_has_ended_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_the_start: bool, stopped: bool | Exception
) -> None:
    def failing() -> _Query:
        if at_the_start:
            raise _OfPy4j("cannot call methods on a stopped SparkContext")
        return _Query(active=False)

    made = _Copying(monkeypatch, tmp_path, failing)
    while made.starts < 2:  # what fails for another reason is tried again
        made.step()
    made.spark.stopped = stopped
    with pytest.raises(SparkFailed, match="Spark has ended by itself"):
        made.step()


@pytest.mark.parametrize("error", [_OfPy4j("no connection to the JVM"), ConnectionRefusedError("no JVM")])
def test_a_driver_whose_jvm_is_gone_while_its_queries_run_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Query(_Query):
        @property
        def isActive(self) -> bool:  # noqa: N802
            if made.spark.stopped:
                raise error
            return True

        @isActive.setter
        def isActive(self, _: bool) -> None: ...  # noqa: N802

    made = _Copying(monkeypatch, tmp_path, lambda: Query(active=True))
    made.step()
    made.step()
    made.spark.stopped = error
    with pytest.raises(SparkFailed, match=r"Spark has ended by itself.*JVM"):
        made.copying.run(threading.Event())


def test_a_query_that_fails_again_and_again_leaves_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in /dev/shm, which has 64 MB in a pod. If it is full, the other links stop, too."""
    ways: list[bool | Exception] = [False, _OfPy4j("no"), False, BadOption("where", "no"), True]

    def failing() -> _Query:
        way = ways.pop(0)
        if isinstance(way, Exception):
            raise way
        return _Query(active=way)

    made = _Copying(monkeypatch, tmp_path, failing)
    while ways:
        made.step()
        assert len(list(tmp_path.iterdir())) <= 1
    made.step()
    assert made.starts == 5
    made.links.clear()
    made.step()
    assert list(tmp_path.iterdir()) == []


def test_a_driver_gives_signs_of_life_between_its_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting one takes a while: a driver of many links is not taken for one that hangs."""
    made = _Copying(monkeypatch, tmp_path, lambda: _Query(active=True))
    made.links[:] = [{"key": f"a>{number}"} for number in range(20)]
    made.step()
    assert made.signs > 20
    alive = driver._sayer_of_life()
    for made.now_seconds in (1_000.0, 1_000.0 + driver.ALIVE_SECONDS / 2, 1_000.0 + driver.ALIVE_SECONDS):
        alive()
    assert capsys.readouterr().err == f"{ALIVE}\n" * 2
