"""The pure parts of the benchmarks: statistics, the form of results, and when the clock of a copy runs."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench import __main__ as command
from bench import arrival
from bench.arrival import NotArrived, seconds_to_arrive
from bench.cases import CASES, PENDING_BYTES_MAX, RUNS, Case
from bench.in_process import make_entry
from bench.measurement import Measurement, percentile, results_json, significant
from replicator.engine.log.entry import decode_entry, split_batch


def test_the_command_knows_its_groups() -> None:
    """Also that all of it can be imported: nothing else runs it but a person."""
    assert {"copy", "subscriptions"} <= set(command.GROUPS)


def test_the_value_is_the_median_so_one_disturbed_run_does_not_move_it() -> None:
    assert Measurement("copy/100B/single", "msg/s", (100.0, 3.0, 101.0)).value == 100.0


def test_the_ratio_is_of_the_medians() -> None:
    measurement = Measurement("copy/1kB/single", "msg/s", (20_006.0,), "peer", (5_000.0, 10_004.0, 90_000.0))
    assert (measurement.peer_value, measurement.ratio) == (10_000.0, 2.0)


def test_a_peer_whose_figure_is_zero_is_shown_without_a_ratio() -> None:
    measurement = Measurement("many/1/send/broker-cpu", "ms", (0.5,), "peer", (0.0,))
    assert (measurement.peer_value, measurement.ratio) == (0.0, None)
    assert measurement.beside_peer() == "many/1/send/broker-cpu: 0.5 ms, peer 0"


def test_without_a_peer_its_fields_are_null() -> None:
    (row,) = json.loads(results_json([Measurement("publish/100B/single", "msg/s", (1.0, 2.0, 4.0))]))
    assert row == {
        "name": "publish/100B/single",
        "value": 2.0,
        "unit": "msg/s",
        "peer": None,
        "peer_value": None,
        "ratio": None,
        "runs": [1.0, 2.0, 4.0],
    }


def test_a_peer_without_runs_is_refused() -> None:
    with pytest.raises(AssertionError, match="peer has runs"):
        Measurement("copy/100B/single", "msg/s", (1.0,), "peer")


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1.0), (50, 50.0), (50.5, 51.0), (99, 99.0), (99.9, 100.0), (100, 100.0)]
)
def test_a_percentile_is_the_smallest_value_that_covers_that_share(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, 0.0), (123_456.0, 123_500.0), (0.00123456, 0.001235), (9_999.6, 10_000.0), (-7.0, -7.0)],
)
def test_figures_have_four_significant_digits(value: float, expected: float) -> None:
    assert significant(value) == expected


def test_large_messages_are_weighed_and_small_ones_counted() -> None:
    assert Case("100B", 100, True, 10, 30).rate(50, 0.5) == 100.0
    assert Case("100kB", 100_000, True, 10, 30).rate(50, 0.5) == 10.0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_backlog_is_published_in_equal_parts_and_never_floods_memory(case: Case) -> None:
    assert case.messages % RUNS == 0
    assert case.pending_messages_max * case.size_bytes <= PENDING_BYTES_MAX


def test_a_batch_made_beforehand_reads_back_as_its_messages() -> None:
    entry, count = make_entry(100, messages=1_000, batched=True)
    metadata, payload = decode_entry(entry)
    assert [len(message.payload) for message in split_batch(metadata, payload)] == [100] * count
    assert count == 1_000


class _Looks:
    """Answers what a destination has, one look after the other, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, int]]) -> None:
        self._looks = iter(looks)
        self._now = 0.0
        monkeypatch.setattr(arrival.time, "monotonic", lambda: self._now)
        monkeypatch.setattr(arrival, "LOOK_EVERY_SECONDS", 0.0)
        monkeypatch.setattr(arrival, "LOOK_SECONDS_MAX", 0.0)

    async def count(self) -> int:
        self._now, here = next(self._looks)
        return here


def test_the_clock_runs_from_the_last_look_at_nothing_to_the_first_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = _Looks(monkeypatch, [(1.0, 0), (2.0, 0), (3.0, 40), (5.5, 100)])
    assert asyncio.run(seconds_to_arrive(looks.count, 100)) == 3.5


def test_looks_are_seldom_while_much_is_to_come_and_frequent_towards_the_end() -> None:
    assert arrival.pause_seconds(0, 100, 5.0, 0.02) == 0.02
    assert arrival.pause_seconds(1, 100, 0.1, 0.02) == arrival.LOOK_SECONDS_MAX
    assert arrival.pause_seconds(90, 100, 3.6, 0.02) == pytest.approx(0.1)
    assert arrival.pause_seconds(99, 100, 4.0, 0.02) == 0.02


def test_a_copy_that_is_over_at_the_first_look_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _Looks(monkeypatch, [(0.25, 100)])
    assert asyncio.run(seconds_to_arrive(looks.count, 100)) == 0.25


def test_more_than_was_sent_is_a_failure_and_not_a_fast_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _Looks(monkeypatch, [(1.0, 101)])
    with pytest.raises(AssertionError, match="101 messages arrived of 100"):
        asyncio.run(seconds_to_arrive(looks.count, 100))


def test_a_backlog_that_does_not_arrive_is_reported_with_what_did(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _Looks(monkeypatch, [(1.0, 7), (arrival.ARRIVAL_SECONDS_MAX + 1, 7)])
    with pytest.raises(NotArrived, match="7 of 100"):
        asyncio.run(seconds_to_arrive(looks.count, 100))
