"""``replicator verify`` as it is typed: options, output, exit status. No Spark is started for a little."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result
from wire_worker import WireWorker, single_entry

from replicator.cli.main import app

TOPIC = "persistent://shop/eu/orders-1"
OTHER = "persistent://shop/eu/bills"


@pytest.fixture
def workers() -> Iterator[tuple[WireWorker, WireWorker]]:
    with WireWorker("us-east") as us, WireWorker("eu-west") as eu:
        for name in (TOPIC, OTHER):
            eu.topic(name).store(us.topic(name).publish(single_entry(b"1"), single_entry(b"2")))
        yield us, eu


@pytest.fixture
def file(tmp_path: Path, workers: tuple[WireWorker, WireWorker]) -> Path:
    return topology(tmp_path, *(urlsplit(worker.url).netloc for worker in workers))


def topology(path: Path, us: str, eu: str) -> Path:
    file = path / "topology.yaml"
    file.write_text(
        f"clusters:\n  us-east: {{address: '{us}', data: ./a}}\n  eu-west: {{address: '{eu}', data: ./b}}\n"
        "links:\n  - {between: [us-east, eu-west]}\n"
    )
    return file


def verify(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", "-f", str(file), *arguments])


def test_the_json_has_the_counts_that_scripts_read_and_the_exit_status_says_whether_all_agree(
    file: Path, workers: tuple[WireWorker, WireWorker], tmp_path: Path
) -> None:
    result = verify(file, "--output", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    counts = ("missing", "duplicated", "reordered", "corrupted", "mismapped", "ack_mismatch", "gaps")
    assert [report[name] for name in counts] == [0] * 7
    assert report["messages"] == 4
    assert report["unreachable"] == {}

    workers[1].topics[TOPIC].blocks.clear()
    out = tmp_path / "rows"
    result = verify(file, "--output", "json", "--settle", "0", "--parquet", str(out))
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["missing"] == 2
    assert pq.read_table(out / "differences.parquet").column("count").to_pylist() == [2]
    assert verify(file, "--topics", "shop/eu/b.*").exit_code == 0
    assert verify(file, "--topics", "shop/eu", "--settle", "0").exit_code == 1
    assert "FAULTS FOUND" in verify(file, "--topic", TOPIC, "--settle", "0").stdout
    assert verify(file, "--since", "1h").exit_code == 0, "they were published years ago"
    fixed = verify(file, "--fix", "--settle", "0")
    assert fixed.exit_code == 1
    assert "every way out deletes something" in " ".join(fixed.stdout.split())


@pytest.mark.parametrize("output", ["table", "json"])
def test_progress_is_shown_at_a_terminal_beside_the_result(file: Path, output: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "replicator.cli", "verify", "-f", str(file), "--output", output]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
        result, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"states of" not in result
    lines = [line for line in shown.splitlines() if "states of us-east" in line]
    assert ("2/2" in "".join(lines[-1:])) is (output == "table"), shown


def _read(terminal: int) -> bytes:
    """Return the output at a terminal; nothing when the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--sample", "0"), "--sample: '0' is not a share such as 1% or 0.01"),
        (("--sample", "101%"), "--sample: '101%' is not a share"),
        (
            ("--since", "yesterday"),
            "--since: 'yesterday' is neither a time, such as 2026-01-31T12:00:00Z, nor a duration",
        ),
        (("--settle", "soon"), "--settle:"),
        (("--topic", "a", "--topics", "b"), "--topic and --topics cannot be given together: give one of them"),
        (("--output", "xml"), "'xml' is not one of 'table', 'json', 'yaml'"),
        (("--brokers", "--sample", "1%"), "no cluster of the topology is of kind pulsar"),
        (("--brokers",), "no cluster of the topology is of kind pulsar"),
        (("--master", "laptop"), "--master: 'laptop' is not a Spark master"),
    ],
)
def test_a_wrong_option_is_named(file: Path, arguments: tuple[str, ...], complaint: str) -> None:
    result = verify(file, *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.mark.parametrize("more", [(), ("--fix",), ("--master", "spark://127.0.0.1:1")])
def test_a_directory_that_is_not_empty_is_refused_before_anything_is_compared(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    (tmp_path / "there").touch()
    result = verify(topology(tmp_path, "127.0.0.1:1", "127.0.0.1:2"), "--parquet", str(tmp_path), *more)
    assert "is not empty" in result.stderr


@pytest.mark.parametrize("pattern", ["shop/(", "nowhere/.*"])
def test_a_pattern_that_is_wrong_or_matches_nothing_is_named(file: Path, pattern: str) -> None:
    result = verify(file, "--topics", pattern)
    assert result.exit_code == 2
    assert pattern in result.stderr


def beside(path: Path, us: str, eu: str) -> Path:
    """Write the topology with one cluster beside brokers, at whose ports nobody answers."""
    file = topology(path, us, eu)
    brokers = "kind: pulsar, apache: {service_url: 'pulsar://127.0.0.1:1', admin_url: 'http://127.0.0.1:1'}"
    file.write_text(file.read_text().replace("data: ./a", f"data: ./a, {brokers}"))
    return file


def test_what_lies_at_brokers_is_said_to_be_left_out_where_it_is_not_asked_for(
    tmp_path: Path, workers: tuple[WireWorker, WireWorker]
) -> None:
    file = beside(tmp_path, *(urlsplit(worker.url).netloc for worker in workers))
    result = verify(file, "--output", "json")
    assert result.exit_code == 0, result.output
    (remark,) = [each for each in json.loads(result.stdout)["remarks"] if "brokers" in each]
    assert remark == "what lies at the brokers of us-east was not compared: --brokers reads it"
    result = verify(file, "--brokers", "--output", "json")  # a worker that says nothing of a bridge
    assert result.exit_code == 3, result.output
    assert "the brokers of us-east" in json.loads(result.stdout)["unreachable"]


def test_what_the_brokers_of_a_cluster_published_is_missed_where_links_lead(
    tmp_path: Path, workers: tuple[WireWorker, WireWorker]
) -> None:
    """Its origin is not the cluster's name."""
    us, eu = workers
    topic, copy = us.topic("persistent://shop/eu/bridged"), eu.topic("persistent://shop/eu/bridged")
    topic.cluster = "us-east.pulsar"
    for body in (b"1", b"2", b"3"):
        block = topic.publish(single_entry(body))
        if body != b"2":
            copy.store(block)
    copy.cut = {"high_water": {"us-east.pulsar": [topic.incarnation, "3:2"]}}
    file = topology(tmp_path, *(urlsplit(worker.url).netloc for worker in workers))
    result = verify(file, "--output", "json", "--settle", "0")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert (report["missing"], report["behind"]) == (1, 0)
    assert "us-east.pulsar 3:1" in str(report["topics"])
    copy.cut = {"high_water": {"us-east.pulsar": [topic.incarnation, "3:0"]}}
    assert json.loads(verify(file, "--output", "json", "--settle", "0").stdout)["missing"] == 1  # it never came


def test_a_cluster_that_is_away_makes_the_status_3_and_all_that_are_away_one_line(
    tmp_path: Path, workers: tuple[WireWorker, WireWorker]
) -> None:
    away = verify(topology(tmp_path, urlsplit(workers[0].url).netloc, "127.0.0.1:1"))
    assert away.exit_code == 3
    assert "NOT ALL COMPARED" in away.stdout
    assert "eu-west" in away.stdout
    none = verify(topology(tmp_path, "127.0.0.1:1", "127.0.0.1:2"))
    assert none.exit_code == 3


def test_a_sample_of_what_lies_at_brokers_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    brokers = "{service_url: 'pulsar://127.0.0.1:1', admin_url: 'http://127.0.0.1:1'}"
    file.write_text(f"clusters:\n  a: {{address: '127.0.0.1:1', data: ./a, kind: pulsar, apache: {brokers}}}\n")
    result = verify(file, "--brokers", "--sample", "1%")
    assert result.exit_code == 2
    assert "option 'sample': not with --brokers" in result.stderr
    assert "compare fewer topics (--topic, --topics) instead" in result.stderr
