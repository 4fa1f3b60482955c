"""The pure parts of benchmark group ``many``, and of the comparison of two versions."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import brokers, jetstream, many, versions
from bench.brokers import JOURNALS, PEER, Broker
from bench.connections import measure_reconnect, too_few_files
from bench.many import long_figures, markdown
from bench.measurement import Measurement
from bench.programs import Program, ProgramFailed, Run


def run(rate: float, *, broker_cores: float = 0.0, broker_bytes: float = 0.0) -> Run:
    return Run(int(rate * 10), 10.0, 0.5, broker_cores, 1.0, 2.0, broker_bytes)


def test_groups_that_take_long_are_measured_by_name_only() -> None:
    assert {"many-long", "many-idle", "reconnect"} <= command.BY_NAME_ONLY < set(command.GROUPS)
    assert "many" not in command.BY_NAME_ONLY


@pytest.mark.parametrize("hard", [resource.RLIM_INFINITY, 11_000])
def test_ten_thousand_clients_run_where_a_process_may_open_files_for_them(
    hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, hard))
    assert too_few_files(10_000) is None


def test_ten_thousand_clients_are_left_out_where_files_do_not_suffice_and_the_text_says_how_many_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 10_999))
    said: list[str] = []
    assert asyncio.run(measure_reconnect(tmp_path, said.append)) == []
    (line,) = said
    assert line.startswith("group reconnect is left out")
    assert "11,000 open files" in line
    assert "10,999" in line
    assert "ulimit -n 11000" in line


def test_a_line_of_a_program_is_a_run_with_the_cpu_time_of_both_sides() -> None:
    line = {"count": 4_000, "seconds": 2.0, "cpu_seconds": 1.0, "broker_cpu_seconds": 0.5, "p50_ms": 3.0, "p99_ms": 9.0}
    said = Run.said(line)
    assert (said.rate, said.client_cores, said.broker_cores, said.broker_ms) == (2_000.0, 0.5, 0.25, 0.125)
    assert (said.p50_ms, said.p99_ms, said.broker_bytes) == (3.0, 9.0, 0.0)


def test_the_cpu_time_of_a_broker_whose_process_is_not_known_is_zero() -> None:
    assert Run.said({"count": 10, "seconds": 1.0, "cpu_seconds": 1.0}).broker_ms == 0.0


@pytest.mark.parametrize(("pid", "flag"), [(17, "--pid=17"), (None, "--pid=0")])
def test_a_program_is_told_the_process_whose_cpu_time_it_measures(pid: int | None, flag: str) -> None:
    arguments = Program("go", ("program",)).arguments(Broker("pulsar://a:1", pid), {"count": 3, "batched": False})
    assert arguments == ["program", "--url=pulsar://a:1", flag, "--count=3"]


def test_the_last_minute_is_said_by_the_first_of_the_same_system() -> None:
    ours = [run(1_000, broker_bytes=1e6), run(700), run(900, broker_bytes=3e6)]
    found = {each.name.rpartition("/")[2]: each for each in long_figures(ours, [run(100), run(100), run(120)])}
    assert (found["last-of-first"].value, found["last-of-first"].peer_value) == (0.9, 1.2)
    assert found["all-minutes"].runs == (1_000.0, 700.0, 900.0)
    assert (found["memory-first"].value, found["memory-last"].value) == (1.0, 3.0)


def test_a_long_run_without_a_peer_has_figures_of_its_own_alone() -> None:
    assert {each.peer for each in long_figures([run(10), run(11)], ())} == {None}


def test_the_table_has_a_line_for_each_rate_also_where_the_peer_is_ahead() -> None:
    name = "many/200/send"
    table = markdown(
        [
            Measurement(name, "rounds/s", (2_000.0,), PEER, (16_000.0,)),
            Measurement(f"{name}/p50", "ms", (100.0,), PEER, (12.5,)),
            Measurement(f"{name}/p99", "ms", (150.0,), PEER, (20.0,)),
            Measurement(f"{name}/broker-cpu", "ms", (0.5,), PEER, (0.1,)),
            Measurement(f"{name}/client-cpu", "cores", (0.25,), PEER, (1.0,)),
            Measurement("many/consume/100B/batched", "msg/s", (5_000.0,), PEER, (4_000.0,)),
            Measurement("many/consume/100B/batched/broker-cpu", "cores", (0.5,), PEER, (0.1,)),
            Measurement("many/batches/shared-10", "msg/s", (9_000.0,), PEER, (9_000.0,)),
            Measurement("many/batches/shared-10/broker-cpu", "ms", (0.0005,), PEER, (0.002,)),
        ]
    ).splitlines()
    assert table[0] == f"{JOURNALS}."
    assert table[4:] == [
        "| 200/send | 2,000 rounds/s | 16,000 | 0.12 | 100, 12.5 ms | 500, 100 | 0.25, 1 |",
        "| consume/100B/batched | 5,000 msg/s | 4,000 | 1.25 |  |  |  |",
        "| batches/shared-10 | 9,000 msg/s | 9,000 | 1.00 |  | 0.5, 2 |  |",
    ]


def test_without_a_peer_its_cells_are_empty() -> None:
    (line,) = markdown([Measurement("many/1/send", "rounds/s", (2_000.0,))]).splitlines()[4:]
    assert line == "| 1/send | 2,000 rounds/s |  |  |  |  |  |"


@pytest.mark.parametrize("failing", [True, False])
def test_a_step_that_fails_is_said_and_the_figures_of_the_others_are_kept(failing: bool) -> None:
    said: list[str] = []

    async def step() -> list[Measurement]:
        if failing:
            raise ProgramFailed("connection error")
        return [Measurement("many/1/send", "rounds/s", (1.0,))]

    found = asyncio.run(many._step(step, said.append))
    assert [each.name for each in found] == ([] if failing else ["many/1/send"])
    assert said == [("figures are missing: connection error" if failing else "many/1/send: 1 rounds/s")]


def test_peers_are_left_out_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(brokers.ALONE, raising=False)
    assert brokers.alone() is None
    monkeypatch.setenv(brokers.ALONE, "1")
    assert brokers.alone() == "BENCH_ALONE is set"
    assert jetstream.find_server() is None


def test_versions_are_compared_pair_by_pair() -> None:
    other = [{"many/1": 100.0, "gone": 1.0}, {"many/1": 200.0, "gone": 1.0}]
    this = [{"many/1": 150.0, "new": 1.0}, {"many/1": 180.0, "new": 1.0}]
    assert versions.table(other, this).splitlines()[2:] == ["| many/1 | 150 | 165 | 1.20 | 0.90 | 1.50 |"]


def test_a_figure_that_is_zero_has_no_ratio() -> None:
    assert versions.table([{"idle": 0.0}], [{"idle": 1.0}]).splitlines()[2:] == []


def test_each_version_is_measured_by_the_same_benchmarks_and_the_order_alternates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "ROOT", _checkout(tmp_path / "this", 30.0))
    versions.main(_checkout(tmp_path / "other", 20.0), ["many"], pairs=3, scale=0.5)
    said = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in said.err.splitlines()] == [
        "other", "this", "this", "other", "other", "this"
    ]  # fmt: skip
    assert "| many/1 | 20 | 30 | 1.50 | 1.50 | 1.50 |" in said.out
    assert "| arguments | 5 | 5 |" in said.out, "-m bench many --scale 0.5"


def _checkout(directory: Path, figure: float) -> Path:
    """Make a checkout whose Python writes a figure instead of measuring."""
    (directory / "bench").mkdir(parents=True)
    python = directory / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    results = [{"name": "many/1", "value": figure}, {"name": "arguments", "value": 0}]
    text = json.dumps(results).replace('"value": 0}', "\"value\": '$#'}")
    python.write_text(f"#!/bin/sh\n[ \"$BENCH_ALONE\" = 1 ] || exit 1\necho '{text}' >bench/results.json\n")
    python.chmod(0o755)
    return directory
