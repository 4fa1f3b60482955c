"""The command line over real processes: every mistake gives one clear error, exit status 2, and changes nothing.

What may pass by itself, such as a database that is away, gives 3.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked_commands
import pytest

from replicator.client import Client, ConsumerType, MessageTooBig, NotAllowedError
from replicator.drills.ports import free_ports

START_SECONDS_MAX = 60


def replicator(*arguments: str, cwd: Path, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(*arguments, cwd=cwd, timeout=timeout)


def topology(path: Path, *, data: str = "data", database: str = "embedded", port: int | None = None) -> Path:
    file = path / "topology.yaml"
    file.write_text(
        "clusters:\n"
        f"  solo: {{address: '127.0.0.1:{port or free_ports(1)[0]}', data: {data}, database: '{database}'}}\n"
        "links: []\n"
    )
    return file


def refused(path: Path, *, status: int = 2, expected: str) -> None:
    before = sorted(path.rglob("*"))
    done = replicator("worker", "--cluster", "solo", "-f", "topology.yaml", cwd=path)
    assert done.returncode == status, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.rglob("*")) == before, "something was left behind"


@contextmanager
def worker(path: Path, port: int) -> Iterator[forked_commands.Forked]:
    log = path / "worker.log"
    arguments = ("worker", "--cluster", "solo", "-f", "topology.yaml")
    process = forked_commands.start(arguments, cwd=path, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def test_an_unknown_key_names_file_line_and_the_key_that_was_meant(tmp_path: Path) -> None:
    file = topology(tmp_path)
    file.write_text(file.read_text() + "lnks: []\n")
    refused(tmp_path, expected="topology.yaml:4: lnks: unknown key")


def test_a_cluster_that_is_not_in_the_topology_is_refused(tmp_path: Path) -> None:
    topology(tmp_path)
    done = replicator("worker", "--cluster", "nowhere", "-f", "topology.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "solo" in done.stderr


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        topology(tmp_path, port=taken.getsockname()[1])
        refused(tmp_path, status=3, expected="clusters.solo.address")  # it may pass: systemd tries again


@pytest.mark.parametrize("database", ["127.0.0.1:9", "host.invalid"])
def test_a_worker_whose_database_was_never_reached_serves_and_says_so_without_its_password(
    tmp_path: Path, database: str
) -> None:
    port = free_ports(1)[0]
    topology(tmp_path, port=port, database=f"postgresql://nobody:secret@{database}/none")
    with worker(tmp_path, port):
        said = replicator("status", "-f", "topology.yaml", cwd=tmp_path).stdout
    assert "was never reached" in " ".join(said.split())
    assert "secret" not in said + (tmp_path / "worker.log").read_text()


def test_a_setting_that_can_be_no_database_is_refused_and_its_password_is_not_shown(tmp_path: Path) -> None:
    topology(tmp_path, database="mysql://nobody:secret@127.0.0.1/none")
    refused(tmp_path, expected="clusters.solo.database")
    done = replicator("worker", "--cluster", "solo", "-f", "topology.yaml", cwd=tmp_path)
    assert "secret" not in done.stderr


def test_a_data_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    topology(tmp_path, data="file/data")
    refused(tmp_path, expected="data directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    topology(tmp_path, data="locked/data")
    refused(tmp_path, expected="cannot be written")


def test_a_worker_runs_reports_its_status_and_stops_in_order(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    topology(tmp_path, port=port)
    with worker(tmp_path, port) as process:
        status = replicator("status", "-f", "topology.yaml", "--output", "json", cwd=tmp_path)
        assert status.returncode == 0, status.stderr
        answer = json.loads(status.stdout)["solo"]
        assert answer["cluster"] == "solo"
        assert answer["database"]["state"] == "up"
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert 'replicator_database_up{cluster="solo"} 1.0' in metrics

        second = topology(tmp_path, port=free_ports(1)[0])
        assert second.exists()
        done = replicator("worker", "--cluster", "solo", "-f", "topology.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "in use by another worker" in done.stderr
        assert process.poll() is None
    assert process.returncode == 0
    pid_file = tmp_path / "data" / "postgres" / "postmaster.pid"
    assert not pid_file.exists(), "the embedded server outlived its worker"


def test_a_worker_keeps_to_the_policies_of_its_topology(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    file = topology(tmp_path, port=port)
    file.write_text(f"{file.read_text()}policies: {{max_consumers: 1, max_message_size: 1KiB, deduplication: true}}\n")
    done = replicator("plan", "-f", "topology.yaml", cwd=tmp_path)
    assert "max_consumers 1" in " ".join(done.stdout.split())

    async def main() -> None:
        async with Client(f"pulsar://127.0.0.1:{port}") as client:
            await client.subscribe("orders", "first", consumer_type=ConsumerType.Shared)
            with pytest.raises(NotAllowedError, match="the limit of its policies"):
                await client.subscribe("orders", "second", consumer_type=ConsumerType.Shared)
            async with await client.create_producer("orders", producer_name="p", initial_sequence_id=6) as producer:
                with pytest.raises(MessageTooBig, match="max_message_bytes"):
                    await producer.send(b"x" * 2000)
                await producer.send(b"x", sequence_id=10)
            async with await client.create_producer("orders", producer_name="p") as producer:
                assert producer.last_sequence_id() == 10  # the topic remembers it: deduplication is on

    with worker(tmp_path, port):
        asyncio.run(main())


def test_status_of_a_worker_that_is_down_gives_exit_status_3(tmp_path: Path) -> None:
    topology(tmp_path)
    done = replicator("status", "-f", "topology.yaml", cwd=tmp_path)
    assert done.returncode == 3


def test_plan_warns_of_a_cluster_without_links_and_of_a_worker_that_is_down(tmp_path: Path) -> None:
    topology(tmp_path)
    done = replicator("plan", "-f", "topology.yaml", "--output", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["warnings"]) == 2


def test_help_explains_every_option_of_the_drill(tmp_path: Path) -> None:
    done = replicator("drill", "--help", cwd=tmp_path)
    assert done.returncode == 0
    for option in ("--messages", "--input", "--key", "--topology", "--json", "--seed", "--quiet", "--out"):
        assert option in done.stdout


def test_a_second_up_is_refused_and_leaves_the_first_one_and_its_database_alone(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    topology(tmp_path, port=port)
    with worker(tmp_path, port):
        before = (tmp_path / "data" / "postgres" / "postmaster.pid").read_text().split()[0]
        done = replicator("up", "-f", "topology.yaml", cwd=tmp_path)
        assert done.returncode == 3, done.stderr
        assert "ready at" not in done.stderr
        assert (tmp_path / "data" / "postgres" / "postmaster.pid").read_text().split()[0] == before
        os.kill(int(before), 0)
