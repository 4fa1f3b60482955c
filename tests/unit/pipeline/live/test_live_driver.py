from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.pipeline.errors import BadOption, PeerUnavailable, SparkFailed, error_of_job, reason_of
from replicator.pipeline.live.driver import LANES_SETTING, SCRATCH_PREFIX, lanes_of, with_slots
from replicator.pipeline.live.link_source import LANES_MAX, LinkOptions
from replicator.pipeline.spark.scratch import make_scratch

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
