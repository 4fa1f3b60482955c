"""The main job, small: drills over real worker processes, with verify."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from printed_fields import problems

from replicator.drills.json_types import DrillReport, DrillRuns
from replicator.drills.ports import free_ports

SOAK = pytest.mark.skipif("SOAK" not in os.environ, reason="most of a minute each: make soak runs them all")
MESSAGES = 6000
RATE = 2000
SECURE_MESSAGES = 30_000
VERIFY_COUNTS = ("missing", "duplicated", "reordered", "mismapped", "ack_mismatch")
KINDS = ("exclusive", "shared", "key-shared", "failover", "batch-index")
UP_SECONDS_MAX = 60


def environment() -> dict[str, str]:
    """A PATH that has no Java and no Postgres."""
    found = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/sbin", "/bin"])
    return found


def drill(out: Path, *arguments: str, engine: str = "embedded") -> subprocess.CompletedProcess[str]:
    """By the embedded engine, unless the test is about Spark: starting it takes longer than the drill."""
    command = [sys.executable, "-m", "replicator.cli", "drill", "--quiet", "--out", str(out)]
    command += ["--rate", str(RATE), "--json", str(out / "copy.json"), *arguments]
    command += [] if "--against" in arguments else ["--engine", engine]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=560, check=False)


def run_drill(out: Path, *arguments: str, engine: str = "embedded") -> dict[str, Any]:
    """Run ``replicator drill`` as a user would; it must pass."""
    done = drill(out, *arguments, engine=engine)
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}\n{report.get('failures')}"
    assert json.loads((out / "copy.json").read_text()) == report
    assert problems(report, (DrillReport, DrillRuns)) == []
    return report


def check(report: dict[str, Any], messages: int) -> None:
    assert report["published"] == report["confirmed"] == report["consumed_unique"] == messages
    assert report["lost"] == 0
    assert report["out_of_order"] == 0
    assert report["repeated_acked_over_1s_before_kill"] == 0
    assert report["repeated_acked_before_planned"] == 0
    assert report["late"] <= report["rpo_messages"]
    assert {name: report["verify"][name] for name in VERIFY_COUNTS} == dict.fromkeys(VERIFY_COUNTS, 0)
    assert report["subscription_updates"] > 0


def test_official_clients_lose_nothing_and_get_nothing_again_that_had_settled(tmp_path: Path) -> None:
    pytest.importorskip("pulsar")
    report = run_drill(tmp_path / "out", "--client", "pulsar", "--messages", str(MESSAGES))
    check(report, MESSAGES)
    assert report["client"] == "pulsar"
    assert [each["name"] for each in report["subscriptions"]] == [f"drill-{kind}" for kind in KINDS]


@pytest.mark.parametrize(
    ("client", "engine"), [("own", "embedded"), ("pulsar", "embedded"), pytest.param("own", "spark", marks=SOAK)]
)
def test_with_tls_and_tokens_everywhere_nothing_is_lost_while_both_are_replaced(
    tmp_path: Path, client: str, engine: str
) -> None:
    """It lasts longer than a token counts (10 s) and a certificate is used (5 s), before the failover and after it."""
    if client == "pulsar":
        pytest.importorskip("pulsar")
    messages = MESSAGES if engine == "spark" else SECURE_MESSAGES
    options = ("--secure", "--client", client, "--messages", str(messages), "--rate", "1000")
    report = run_drill(tmp_path / "out", *options, engine=engine)
    check(report, messages)
    assert report["secure"] is True
    assert report["client"] == client
    # Some eleven where nobody connects anew but for the failover; tokens and certificates are replaced a dozen times.
    assert 0 < max(report["connections"].values()) <= 40, "no reconnect storm"


@pytest.mark.timeout(900)
def test_of_a_killed_primary_exact_sync_repeats_nothing_settled_and_mark_deletes_alone_do(
    tmp_path: Path,
) -> None:
    # Traffic for twelve seconds: on a busy machine, too, much is acknowledged long before the kill. Not where consumers
    # stood still for the second before it: then there is nothing to be seen, and that part of the drill is run again.
    options = ("--messages", str(2 * MESSAGES), "--rate", str(RATE // 2), "--seed", "3", "--sync")
    report, mark_delete = run_drill(tmp_path / "out", *options, "both")["runs"]
    check(report, 2 * MESSAGES)
    for number in range(4):
        repeated = {each["name"]: each["repeated_acked_over_1s_before_kill"] for each in mark_delete["subscriptions"]}
        if any(repeated.values()):
            break
        mark_delete = run_drill(tmp_path / f"again-{number}", *options, "mark-delete")
    assert report["scenario"] == "kill-primary"
    assert report["seed"] == 3
    assert (report["sync"], mark_delete["sync"]) == ("exact", "mark-delete")
    assert report["rto_seconds"] > 0
    assert report["snapshot_mappings"] > 0
    assert [each["name"] for each in report["subscriptions"]] == [f"drill-{kind}" for kind in KINDS]
    assert all(each["sync_lag_ms"]["samples"] > 0 for each in report["subscriptions"])
    assert min(repeated["drill-shared"], repeated["drill-batch-index"]) > 100, repeated
    html = (tmp_path / "out" / "kill-primary-exact" / "report.html").read_text()
    assert "<svg" in html
    assert "http://" not in html.replace("http://www.w3.org", "")  # self-contained
    command = [
        sys.executable,
        "-m",
        "replicator.cli",
        "drills",
        "show",
        "latest",
        "--store",
        str(tmp_path / "out"),
    ]
    kept = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(kept.stdout)


@pytest.mark.timeout(600)
def test_with_spark_nothing_is_lost_either(tmp_path: Path) -> None:
    """The driver of the killed cluster ends with it; the one of the other carries on."""
    report = run_drill(tmp_path / "out", "--messages", "2000", "--subscriptions", "shared", engine="spark")
    check(report, 2000)
    assert report["engine"] == "spark"


@SOAK
def test_nothing_is_lost_when_each_cluster_is_killed_once_and_the_input_is_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "orders.jsonl"
    own.write_text("".join(json.dumps({"order": n, "customer": f"c{n % 50}"}) + "\n" for n in range(3000)))
    report = run_drill(tmp_path / "out", "--input", str(own), "--key", "customer", "--scenario", "kill-each")
    check(report, 3000)
    assert len(report["kills"]) == 2


def test_over_a_one_way_link_nothing_settled_is_repeated_either(tmp_path: Path) -> None:
    report = run_drill(tmp_path / "out", "--messages", str(MESSAGES), "--links", "one-way")
    check(report, MESSAGES)
    assert report["links"] == "one-way"
    assert "there is no link from eu-west to us-east" in report["not_checked"][0]


@pytest.mark.parametrize(
    ("engine", "topics", "seed"),
    [
        ("embedded", 1, 1),
        *(pytest.param("embedded", 4, seed, marks=SOAK) for seed in range(2, 12)),
        *(pytest.param("spark", 1, seed, marks=SOAK) for seed in range(1, 11)),
    ],
)
def test_a_cluster_that_loses_its_disk_under_traffic_starts_again_without_a_command(
    tmp_path: Path, engine: str, topics: int, seed: int
) -> None:
    messages = MESSAGES if topics > 1 or engine == "spark" else MESSAGES // 2
    options = ("--scenario", "lost-disk", "--messages", str(messages), "--topics", str(topics), "--seed", str(seed))
    report = run_drill(tmp_path / "out", *options, engine=engine)
    assert report["confirmed"] == messages
    assert all(each["lost"] == each["lost_with_disk"] for each in report["subscriptions"]), "a peer had the others"
    assert report["repeated_acked_over_1s_before_kill"] == 0
    (disk,) = report["lost_disks"]
    assert disk["cluster"] == "us-east"
    assert disk["reclaimed_messages"] > 0
    assert disk["lost_messages"] == disk["named_messages"] == report["lost_with_disk"]
    assert disk["differing_messages"] == 0
    assert 0 < disk["start_seconds"] < disk["seconds"]
    assert not any(report["worker_tracebacks"].values())


@pytest.mark.parametrize(
    "scenario",
    [
        "planned",
        "mesh-lose-one",
        "partition",
        "one-way-partition",
        "flap",
        "failback",
        "slow-link",
        "postgres-down",
    ],
)
@SOAK
def test_each_scenario_passes(scenario: str, tmp_path: Path) -> None:
    report = run_drill(tmp_path / "out", "--messages", str(MESSAGES), "--scenario", scenario)
    check(report, MESSAGES)
    assert report["scenario"] == scenario
    kinds = [each["kind"] for each in report["failovers"]]
    assert (
        kinds
        == {
            "partition": ["partition"],
            "one-way-partition": ["partition"],
            "flap": ["move"],
            "planned": ["planned"],
            "failback": ["kill", "planned"],
            "mesh-lose-one": [],
            "slow-link": ["move"],
            "postgres-down": ["move"],
        }[scenario]
    )
    if scenario == "planned":
        assert report["rpo_messages"] == 0
    if scenario == "mesh-lose-one":
        assert report["clusters"] == ["us-east", "eu-west", "ap-south"]


@pytest.mark.parametrize("scenario", ["kill-primary", "planned", "failback", "flap", "slow-link", "mesh-lose-one"])
@SOAK
def test_nothing_is_lost_while_tasks_of_the_workers_are_ended_at_random(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATOR_END_TASKS", "13:1")
    check(run_drill(tmp_path / "out", "--messages", str(MESSAGES), "--scenario", scenario), MESSAGES)


@contextmanager
def running_topology(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """``replicator up`` with two clusters; the file and the workers' URLs."""
    ports = free_ports(2)
    file = directory / "regions.yaml"
    clusters = "".join(
        f"  {name}: {{address: '127.0.0.1:{port}', data: '{directory / name}'}}\n"
        for name, port in zip(("a", "b"), ports, strict=True)
    )
    file.write_text(f"clusters:\n{clusters}links:\n  - {{between: [a, b]}}\npipeline: {{engine: embedded}}\n")
    up = subprocess.Popen([sys.executable, "-m", "replicator.cli", "up", "-f", str(file)], env=environment())
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        deadline = time.monotonic() + UP_SECONDS_MAX
        while not all(is_ready(url) for url in urls):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield file, urls
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def status(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/replication/v1/status", timeout=5) as response:
        found: dict[str, Any] = json.loads(response.read())
        return found


def make_topic(url: str, path: str) -> None:
    request = urllib.request.Request(f"{url}/admin/v2/persistent/{path}", method="PUT")
    urllib.request.urlopen(request, timeout=5).close()


def test_a_running_topology_is_drilled_in_a_namespace_of_its_own_and_left_as_it_was(tmp_path: Path) -> None:
    with running_topology(tmp_path) as (file, urls):
        pids = [status(url)["pid"] for url in urls]
        make_topic(urls[0], "public/default/orders")
        report = run_drill(tmp_path / "out", "--messages", str(MESSAGES), "--against", str(file))
        check(report, MESSAGES)
        assert report["topic"].startswith("persistent://public/canary/")
        assert [each["kind"] for each in report["failovers"]] == ["move"]
        assert [status(url)["pid"] for url in urls] == pids
        names = {topic["name"] for topic in status(urls[0])["topics"]}
        assert report["topic"] not in names
        assert "persistent://public/default/orders" in names

        make_topic(urls[1], "public/canary/orders")
        refused = drill(tmp_path / "refused", "--messages", "100", "--against", str(file))
        assert refused.returncode == 2
        assert "b has topics there that are not a drill's, such as persistent://public/canary/orders" in refused.stderr
        killing = drill(tmp_path / "killing", "--against", str(file), "--scenario", "kill-each")
        assert killing.returncode == 2
        assert "starts, stops or kills workers" in killing.stderr


def test_many_topics_are_drilled_against_a_running_topology_and_none_of_them_stays(tmp_path: Path) -> None:
    with running_topology(tmp_path) as (file, urls):
        many = ("--topics", "10", "--subscriptions", "exclusive,shared", "--against", str(file))
        report = run_drill(tmp_path / "out", "--messages", str(MESSAGES), *many)
        check(report, MESSAGES)
        assert report["topics"] == 10
        assert report["over_topics"]["recover_seconds"]["topics"] == 10
        for url in urls:
            assert not [topic for topic in status(url)["topics"] if "/canary/" in topic["name"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--scenario", "earthquake"], "kill-primary"),
        (["--subscriptions", "durable"], "batch-index"),
        (["--sync", "sometimes"], "mark-delete"),
        (["--links", "sideways"], "one-way"),
        (["--input", "missing.jsonl", "--key", "k"], "missing.jsonl"),
        (["--input", "x.jsonl"], "--key"),
        (["--key", "k"], "--input"),
        (["--topology", "missing.yaml"], "missing.yaml"),
        (["--against", "missing.yaml"], "missing.yaml"),
        (["--messages", "0"], "--messages"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(tmp_path: Path, arguments: list[str], expected: str) -> None:
    done = forked_commands.run("drill", "--out", str(tmp_path / "out"), *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
