"""Benchmark group ``live``: its pure parts, and its course with programs and clusters that stand in for real ones."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import live, versions
from bench.brokers import PEER, Broker
from bench.clusters import Clusters, mesh_topology
from bench.live import Counts, Live, Row, Taken, counted, live_markdown, row_figures, taken_between
from bench.measurement import Measurement
from bench.programs import Program, ProgramFailed, Run
from bench.usage import cpu_seconds_of

PRINTS = """
import json, sys
print("began", flush=True)
given = dict(each.lstrip("-").split("=") for each in sys.argv[1:])
print(json.dumps({"count": 50, "seconds": 0.5, "cpu_seconds": 0.1, "p50_ms": 2.0, "p99_ms": float(given["topics"])}))
sys.exit(int(given["topics"] == "500"))
"""
"""A client that measures nothing, and that fails with 500 topics."""


def taken(rate: float, *cores: float, p50: float = 1.0, p99: float = 2.0) -> Taken:
    return Taken(Run(int(rate * 10), 10.0, 0.1, 0.0, p50, p99), cores, 0.05, 1.5, 2.25)


def test_it_is_measured_by_name_and_when_versions_are_compared() -> None:
    assert "live" in command.BY_NAME_ONLY
    assert "live" in versions.GROUPS


def test_a_run_is_what_changed_between_its_beginning_and_its_end() -> None:
    run = Run(100, 2.0, 0.1, 0.0, 1.0, 2.0)
    before = live._Look(10.0, (5.0, 7.0, 7.0), 1.0, Counts(40, 10_000))
    after = live._Look(12.0, (6.0, 7.5, 7.25), 1.5, Counts(190, 70_000))
    found = taken_between(before, after, run)
    assert found.cores == (0.5, 0.25, 0.125)
    assert (found.cores_elsewhere, found.postgres_cores) == (0.1875, 0.25)
    assert found.markers == 1.5
    assert found.link_bytes == 3.0, "60,000 bytes for 100 messages of 100 bytes that went to two clusters"
    assert found.cpu_ms == pytest.approx(1000 * 0.875 / 3 / 50)


def test_a_system_that_counts_nothing_has_cores_alone() -> None:
    found = taken_between(live._Look(0.0, (0.0, 0.0), 0.0, None), live._Look(1.0, (0.5, 0.5), 0.0, None), taken(1).run)
    assert (found.cores, found.markers) == ((0.5, 0.5), 0.0)


def test_a_marker_that_goes_over_several_links_counts_once_and_one_that_goes_over_none_too() -> None:
    def status(mappings: int, *links: tuple[int, int, int]) -> dict[str, object]:
        named = [dict(zip(("entries", "messages", "wire_bytes"), each, strict=True)) for each in links]
        return {"counters": {"mappings": mappings}, "links": named}

    assert counted([status(2, (15, 10, 900), (14, 10, 800)), status(3, (4, 0, 70), (4, 0, 70))]) == Counts(14, 1840)


def test_figures_that_only_workers_count_have_no_peer() -> None:
    found = {each.name: each for each in row_figures(Row(100, 200), [taken(200, 0.5, 0.25)], [taken(200, 0.25, 0.25)])}
    assert (found["live/100x200/cores"].value, found["live/100x200/cores"].peer_value) == (0.75, 0.5)
    assert found["live/100x200/cpu"].value == 1.875
    assert found["live/100x200/rate"].peer == PEER
    assert {each.peer for name, each in found.items() if name.endswith(("markers", "link-bytes", "postgres"))} == {None}


def test_the_table_has_a_line_for_each_row_that_was_measured() -> None:
    measured = [
        *row_figures(Row(1, 200), [taken(200, 0.5, 0.25, p99=1_234.5)], [taken(200, 0.25, 0.125)]),
        *row_figures(live.MESH, [taken(200, 0.5, 0.25, 0.25, 0.25, 0.25)], ()),
    ]
    assert live_markdown(measured).splitlines()[2:] == [
        "| 2; 1; 200 | 0.50, 0.25; 1, 1,234 ms | 0.25, 0.12; 1, 2 ms | 1.50 | 2.25 | 0.05 |",
        "| 5; 200; 200 | 0.50, 0.25; 1, 2 ms |  | 1.50 | 2.25 | 0.05 |",
    ]


def test_rows_take_turns_and_one_that_fails_is_said_while_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("go", (sys.executable, "-c", PRINTS))
    own = Broker("pulsar://127.0.0.1:1", None)

    async def built(group: str, say: live.Say) -> Program:
        return program

    async def counts() -> Counts:
        return Counts(0, 0)

    @asynccontextmanager
    async def standing_in(clusters: Clusters) -> AsyncIterator[Live]:
        names = clusters.topology.names
        yield Live(own, tuple((lambda: [os.getpid()]) for _ in names), counts=counts)

    monkeypatch.setenv("BENCH_ALONE", "1")
    monkeypatch.setattr(live, "go_program_for", built)
    monkeypatch.setattr(live, "workers", standing_in)
    monkeypatch.setattr(live, "WARMING", Row(1, 200))
    monkeypatch.setattr(live, "ROWS", (Row(100, 200), Row(500, 200)))
    monkeypatch.setattr(live, "RUNS", 1)
    said: list[str] = []
    measured = asyncio.run(live.measure_live(tmp_path, said.append))
    found = {each.name: each for each in measured}
    assert (found["live/100x200/rate"].value, found["live/100x200/p99"].value) == (100.0, 100.0)
    assert found["live/mesh-5/200x200/p50"].value == 2.0
    assert not any(name.startswith("live/500x200") for name in found)
    assert any(line.startswith("figures are missing") for line in said)
    assert any("BENCH_ALONE" in line for line in said)


def test_lines_of_a_program_are_seen_as_they_come_and_what_it_measured_is_returned() -> None:
    seen: list[str] = []

    async def at_line(line: str) -> None:
        seen.append(line.strip())

    program = Program("go", (sys.executable, "-c", PRINTS))
    (run,) = asyncio.run(program.runs(Broker("pulsar://a:1", None), at_line=at_line, topics=3))
    assert (seen[0], json.loads(seen[1])["p99_ms"]) == ("began", 3.0)
    assert (run.rate, run.p99_ms) == (100.0, 3.0)


def test_a_program_that_does_not_end_is_killed_and_one_that_fails_says_why() -> None:
    sleeping = Program("go", (sys.executable, "-c", "import time; time.sleep(60)"))
    with pytest.raises(ProgramFailed, match="did not end within 0 s"):
        asyncio.run(sleeping.runs(Broker("pulsar://a:1", None), seconds_max=0.2))
    failing = Program("go", (sys.executable, "-c", "raise SystemExit('no broker')"))
    with pytest.raises(ProgramFailed, match="no broker"):
        asyncio.run(failing.runs(Broker("pulsar://a:1", None)))


def test_each_two_clusters_of_a_mesh_are_linked_both_ways(tmp_path: Path) -> None:
    topology = mesh_topology(tmp_path, 3)
    assert topology.names == ("c0", "c1", "c2")
    assert len({(link.source, link.destination) for link in topology.links}) == 6


def test_the_cpu_time_of_processes_that_are_gone_counts_nothing() -> None:
    assert cpu_seconds_of([]) == 0.0
    assert cpu_seconds_of([os.getpid()]) > 0.0
    assert cpu_seconds_of([2**22 + 1]) == 0.0


def test_figures_of_the_group_are_written_with_its_name() -> None:
    assert {each.group for each in row_figures(live.MESH, [taken(200, *[0.1] * 5)], ())} == {"live"}
    assert Measurement("live/mesh-5/200x200/p50", "ms", (1.0,)).group in command.GROUPS
