"""``replicator report`` over two workers, as its user runs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import pyarrow.parquet as pq
import pytest
import yaml
from printed_fields import problems
from typer.testing import CliRunner
from wire_worker import WireWorker, batch_entry, marker_entry, single_entry

from replicator.cli.main import app
from replicator.engine.log.block import BlockKind
from replicator.pipeline.analytics.report import Wanted, make_report
from replicator.pipeline.errors import SparkFailed
from replicator.pipeline.json_types import ReportAnswer

ORDERS = "persistent://shop/eu/orders"


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Path]:
    """us-east publishes two batches of two and a message twice; eu-west has them, and a marker of its own behind."""
    with WireWorker("us-east") as us, WireWorker("eu-west") as eu:
        block = us.topic(ORDERS).publish(
            batch_entry([b"a", b"bb"], key="k1"), batch_entry([b"c", b"dd"], key="k1", sequence_id=2), sizes=[2, 2]
        )
        again = us.topic(ORDERS).publish(
            single_entry(b"same", key="k2", sequence_id=9), single_entry(b"same", key="k2", sequence_id=9)
        )
        for copied in (block, again):
            eu.topic(ORDERS).store(copied)
        eu.topic(ORDERS).publish(marker_entry(11), kind=BlockKind.MARKERS)
        us.topic("persistent://shop/eu/other").publish(single_entry(b"x"))
        file = tmp_path / "topology.yaml"
        clusters = {
            worker.cluster: {"address": worker.url.removeprefix("http://"), "data": f"./{worker.cluster}"}
            for worker in (us, eu)
        }
        file.write_text(yaml.safe_dump({"clusters": clusters, "links": [{"between": list(clusters)}]}, sort_keys=False))
        yield file


def run(topology: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return forked_commands.run("report", "-f", topology, *options, cwd=Path.cwd())


def test_a_report_has_the_figures_of_the_chosen_topics_as_json_parquet_and_a_page(spark: Any, topology: Path) -> None:
    out = topology.parent / "out"
    options = ("--topics", "shop/eu/ord.*", "--since", "2020-01-01", "--out", str(out), "-o", "json")
    answer = CliRunner().invoke(app, ["report", "-f", str(topology), *options], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert spark.range(1).count() == 1, "a session that ran before goes on"
    report = json.loads(answer.stdout)
    assert problems(report, (ReportAnswer,)) == []
    assert (report["messages"], report["topics"], report["clusters"]) == (12, 1, ["us-east", "eu-west"])
    tables = report["tables"]
    assert [(row["cluster"], row["way"], row["messages"], row["bytes"]) for row in tables["throughput"]] == [
        ("eu-west", "copied", 6, 14),
        ("us-east", "published", 6, 14),
    ]
    (lag,) = tables["lag"]
    assert (lag["origin"], lag["cluster"], lag["entries"], lag["unbounded"]) == ("us-east", "eu-west", 4, 0)
    assert lag["at_most_ms_max"] == 0, "the marker has the same time"
    assert [(row["key"], row["rank"], row["messages"]) for row in tables["keys"][:2]] == [("k1", 1, 4), ("k2", 2, 2)]
    assert {row["subscription"] for row in tables["consumers"]} == {"(4 equal slots)"}, "no worker says who consumes"
    assert {(row["cluster"], row["repeated"], row["same_content"]) for row in tables["repeated_ids"]} == {
        ("us-east", 1, 1),
        ("eu-west", 1, 1),
    }
    assert [(row["low"], row["count"]) for row in tables["sizes"] if row["measure"] == "batch_messages"][:2] == [
        (1, 2),
        (2, 2),
    ]
    assert json.loads((out / "report.json").read_text()) == report
    assert pq.read_table(out / "throughput.parquet").num_rows == 2
    assert (out / "report.html").read_text().count("<svg") >= 8


def test_a_pattern_that_matches_nothing_and_a_worker_that_is_away_are_one_line_each(topology: Path) -> None:
    answer = run(topology, "--topics", "shop/us/.*")
    assert (answer.returncode, answer.stderr) == (
        2,
        "error: option 'topics': no topic of us-east, eu-west matches shop/us/.*\n",
    )
    text = yaml.safe_load(topology.read_text())
    text["clusters"]["eu-west"]["address"] = "127.0.0.1:1"
    topology.write_text(yaml.safe_dump(text, sort_keys=False))
    answer = run(topology)
    assert answer.returncode == 3
    assert answer.stderr.startswith("error: worker at http://127.0.0.1:1 cannot be reached")
    assert answer.stderr.count("\n") == 1


def test_a_job_that_fails_is_one_line_of_the_thing_that_was_wrong(spark: Any) -> None:
    with WireWorker("us-east") as us:
        us.topic(ORDERS).publish(single_entry(b"payload"))
        at, entries, block = us.topic(ORDERS).blocks[0]
        us.topic(ORDERS).blocks[0] = (at, entries, bytes(block[:-1] + b"!"))
        with pytest.raises(
            SparkFailed, match=r"^[^\n]*block at us-east 3:0 \(1 entries\) is damaged: its checksum[^\n]*$"
        ):
            make_report(spark, {"us-east": us.url}, Wanted())


def test_a_place_that_cannot_be_written_is_refused_before_the_work(topology: Path) -> None:
    answer = CliRunner().invoke(app, ["report", "-f", str(topology), "--out", str(topology / "below")])
    assert answer.exit_code == 2
    assert "cannot be made: Not a directory" in answer.stderr
