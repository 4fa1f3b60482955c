"""A real Prometheus scrapes two workers: a link is cut, its alert fires; it is mended, and the alert clears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from failover_support import free_ports
from monitoring_support import ALERTS, DASHBOARDS, exported, expressions, named, program

from replicator.client import Client

SECONDS_MAX = 240.0
"""Limit of each wait; on an idle machine one takes some seconds."""


class Cable:
    """A TCP proxy to ``target_port`` that can be cut and mended."""

    def __init__(self, port: int, target_port: int) -> None:
        self._port, self._target_port = port, target_port
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._cut = False
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._on_loop(self._start())

    def cut(self) -> None:
        """End all connections, and each new one until :meth:`mend`."""
        self._cut = True
        self._on_loop(self._end_all())

    def mend(self) -> None:
        self._cut = False

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _on_loop(self, doing: Any) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(SECONDS_MAX)

    async def _start(self) -> None:
        await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _end_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            if not self._cut:
                from_target, other = await asyncio.open_connection("127.0.0.1", self._target_port)
                self._open.add(other)
                await asyncio.gather(_pour(reader, other), _pour(from_target, writer))
        except OSError:
            pass  # cut, or the worker is not there yet
        finally:
            for each in (writer, other):
                if each is not None:
                    self._open.discard(each)
                    each.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Watched:
    """Two workers, ``a`` and ``b``, and the Prometheus that scrapes them."""

    prometheus: str
    workers: dict[str, int]
    to_b: Cable

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the answer of Prometheus' API."""
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def metrics(self, worker: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.workers[worker]}/metrics") as answer:
            return str(answer.read().decode())


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if holds():
                return
        time.sleep(0.2)
    pytest.fail(f"not within {SECONDS_MAX:.0f} s: {what}")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    prometheus = program("prometheus")
    a, b, beyond, web = free_ports(4)
    # Not below pytest's own directory: as root, the embedded server runs as another user, who may not enter that.
    directory = Path(tempfile.mkdtemp(prefix="watched-"))
    directory.chmod(0o755)
    topology, rules, config = directory / "topology.yaml", directory / "alerts.yaml", directory / "prometheus.yaml"
    topology.write_text(
        yaml.safe_dump(
            {
                "clusters": {
                    "a": {"address": f"127.0.0.1:{a}", "data": str(directory / "a")},
                    "b": {"address": f"127.0.0.1:{beyond}", "listen": f"127.0.0.1:{b}", "data": str(directory / "b")},
                },
                "links": [{"between": ["a", "b"]}],
                "pipeline": {"engine": "embedded"},
                "metrics": {"old_names": False},
            }
        )
    )
    at_once = yaml.safe_load(ALERTS.read_text())
    for group in at_once["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    rules.write_text(yaml.safe_dump(at_once))
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [
                    {
                        "job_name": "replicator",
                        "static_configs": [{"targets": [f"127.0.0.1:{a}", f"127.0.0.1:{b}"]}],
                    }
                ],
            }
        )
    )
    cable = Cable(beyond, b)
    started = []
    try:
        for arguments in (
            [str(Path(sys.executable).parent / "replicator"), "up", "-f", str(topology)],
            [
                prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{web}",
            ],
        ):
            with (directory / f"log-{len(started)}").open("wb") as output:
                started.append(subprocess.Popen(arguments, stdout=output, stderr=output))
        yield Watched(f"http://127.0.0.1:{web}", {"a": a, "b": b}, cable)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)
        cable.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(1_200)
def test_a_link_that_is_cut_makes_its_alert_fire_and_one_that_is_mended_lets_it_clear(watched: Watched) -> None:
    up = 'count(replicator_link_up == 1) == 2 and count(up{job="replicator"} == 1) == 2'
    until(lambda: bool(watched.ask("query", query=up)["result"]), "both workers and both links are up")
    until(lambda: not watched.firing(), "no alert fires")
    watched.to_b.cut()
    until(lambda: "ReplicatorLinkDown" in watched.firing(), "the alert fires")
    found = [each["labels"] for each in watched.ask("alerts")["alerts"] if each["state"] == "firing"]
    assert [(each["alertname"], each["cluster"], each["link"]) for each in found] == [
        ("ReplicatorLinkDown", "a", "a>b")
    ]
    watched.to_b.mend()
    until(lambda: not watched.firing(), "the alert clears")


@pytest.mark.timeout(1_200)
def test_workers_export_what_is_declared_and_promtool_has_no_complaint(watched: Watched) -> None:
    async def traffic() -> None:
        async with Client(f"pulsar://127.0.0.1:{watched.workers['a']}") as client:
            consumer = await client.subscribe("orders", "s", replicate_subscription_state_enabled=True)
            async with await client.create_producer("orders") as producer:
                for _ in range(20):
                    await producer.send(b"x")
            for _ in range(20):
                await consumer.acknowledge(await consumer.receive())

    until(lambda: bool(watched.metrics("a")), "the worker answers")
    asyncio.run(traffic())
    synced = 'replicator_sync_latency_seconds_count{cluster="b",origin="a"} > 0'
    until(lambda: bool(watched.ask("query", query=synced)["result"]), "an update of a is applied in b")
    for worker in watched.workers:
        text = watched.metrics(worker)
        families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
        assert families == {
            name.removesuffix("_bucket") for name in exported() if not name.endswith(("_sum", "_count"))
        }
        done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_has_data_where_its_metrics_have(watched: Watched, dashboard: Path) -> None:
    def shown(expression: str) -> bool:
        return bool(watched.ask("query", query=expression)["result"])

    until(lambda: shown("rate(replicator_publish_latency_seconds_count[1m])"), "two scrapes")
    there = set(watched.ask("label/__name__/values"))
    for title, expression in expressions(dashboard):
        if named(expression) <= there and "> 0" not in expression:
            until(lambda expression=expression: shown(expression), f"{title}: {expression}")  # type: ignore[misc]
