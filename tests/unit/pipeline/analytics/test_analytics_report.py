"""Reports on tables: summaries, charts and the page; no Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from replicator.pipeline.analytics.charts import SERIES_MAX, draw
from replicator.pipeline.analytics.page import render_html
from replicator.pipeline.analytics.report import BUCKETS_MAX, TABLES, Report, Wanted, bucket_width
from replicator.pipeline.analytics.summary import format_report, summaries

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
NASTY = "</svg><script>alert(1)</script>$x_{2}$"


def report(**changed: Any) -> Report:
    """A minute of one topic at two clusters, and a key and a producer whose names would break a page."""
    times = [START + timedelta(seconds=second) for second in range(0, 60, 10)]
    place = {"cluster": "us-east", "topic": "persistent://public/default/orders"}
    tables: dict[str, list[dict[str, Any]]] = {
        "throughput": [
            {**place, "cluster": cluster, "way": way, "bucket": time, "messages": 50, "entries": 5, "bytes": 5_000,
             "messages_per_second": 5.0, "bytes_per_second": 500.0}
            for cluster, way in (("us-east", "published"), ("eu-west", "copied"))
            for time in times
        ],
        "lag": [
            {"origin": "us-east", **place, "cluster": "eu-west", "bucket": time, "entries": 5, "unbounded": 1,
             "at_most_ms_p50": 200, "at_most_ms_p99": 700, "at_most_ms_max": 900,
             "at_least_ms_p50": 10, "at_least_ms_p99": 20, "at_least_ms_max": 30}
            for time in times
        ],
        "keys": [{**place, "rank": 1, "key": NASTY, "messages": 200, "bytes": 20_000, "share": 2 / 3}],
        "consumers": [
            {**place, "subscription": "billing", "consumer": name, "keys": 3, "messages": n, "bytes": n * 100,
             "share": n / 300, "skew": n / 150}
            for name, n in (("c1", 200), ("c2", 100))
        ],
        "repeated_ids": [
            {**place, "origin": "us-east", "producer_name": NASTY, "messages": 300, "repeated": 7, "same_content": 6,
             "repeated_ids": 5}
        ],
        "repeated_contents": [{**place, "producer_name": "p", "messages": 300, "repeated": 0}],
        "sizes": [
            {**place, "measure": measure, "low": low, "high": 2 * low - 1, "count": 150, "total": 150 * low}
            for measure in ("message_bytes", "batch_messages", "batch_bytes")
            for low in (8, 64)
        ],
    }  # fmt: skip
    fields: dict[str, Any] = {
        "clusters": ("us-east", "eu-west"),
        "topics": 1,
        "wanted": Wanted(),
        "messages": 600,
        "first": START,
        "last": times[-1],
        "bucket_seconds": 10,
        "tables": {name: pa.Table.from_pylist(tables[name]) for name in TABLES},
        "cut": (),
        "seconds": 1.5,
    }
    return Report(**(fields | changed))


@pytest.mark.parametrize("span_seconds", [0, 1, 119, 121, 3_600, 86_400, 40_000_000])
def test_buckets_are_the_narrowest_that_a_chart_has_room_for(span_seconds: int) -> None:
    width = bucket_width(span_seconds * 1_000_000)
    assert span_seconds <= width * BUCKETS_MAX
    assert width == 1 or span_seconds > BUCKETS_MAX


def test_every_chart_has_a_title_and_units_and_several_series_have_a_legend() -> None:
    drawings = {drawing.name: drawing for drawing in draw(report())}
    assert set(drawings) == {
        "messages", "bytes", "lag", "keys", "consumers", "repeated-ids", "message-sizes", "batch-messages",
        "batch-sizes",
    }, "nothing is drawn of what was not found"  # fmt: skip
    for name, units in {
        "messages": ("messages/s", "publish time, UTC (each point is 10 s)", "us-east, published", "eu-west, copied"),
        "bytes": ("payload bytes/s", "orders"),
        "lag": ("lag, seconds", "us-east → eu-west, p99 at most"),
        "keys": ("share of the topic's messages",),
        "consumers": ("messages, as a multiple of an even share", "an even share"),
        "repeated-ids": ("repeated messages",),
        "message-sizes": ("payload of a message, bytes", "messages", "8–15", "us-east"),
        "batch-messages": ("messages in an entry", "entries"),
    }.items():
        texts = "\n".join(ElementTree.fromstring(drawings[name].svg).itertext())
        for text in (drawings[name].title, *units):
            assert text in texts, (name, text)


def test_too_many_series_become_others() -> None:
    rows = report().tables["throughput"].slice(0, 1).to_pylist() * (SERIES_MAX + 3)
    many = [{**row, "topic": f"persistent://public/default/t{number}"} for number, row in enumerate(rows)]
    shown = report(tables={**report().tables, "throughput": pa.Table.from_pylist(many)})
    (svg,) = (drawing.svg for drawing in draw(shown) if drawing.name == "bytes")
    assert "3 others" in svg
    assert "t0" in svg


def test_the_page_loads_nothing_and_runs_nothing_whatever_keys_are_called() -> None:
    page = render_html(report(), made_at=START)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    ids = [part.split('"', 1)[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids)), "of all charts together"
    assert page == render_html(report(), made_at=START), "the same report is the same page"


def test_an_empty_report_is_a_page_and_a_table() -> None:
    empty = report(messages=0, first=None, last=None, tables={name: pa.table({}) for name in TABLES})
    assert "Nothing found" in render_html(empty)
    console = Console(width=120, record=True, quiet=False, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(format_report(empty))
    assert "Throughput: nothing found" in console.export_text()


def test_summaries_put_first_what_deserves_to_be_looked_at() -> None:
    by_table = {summary.table: summary for summary in summaries(report())}
    assert by_table["lag"].rows == (("us-east", "eu-west", "public/default/orders", 30, 0.02, 0.2, 0.7, 0.9, 6),)
    assert [row[3] for row in by_table["consumers"].rows] == ["c1", "c2"]
    assert by_table["repeated_contents"].rows == (), "nobody repeated anything"
    assert by_table["sizes"].rows[0] == ("message, bytes", "us-east", "public/default/orders", 300, 36.0, 15, 127, 127)


def test_a_table_that_was_cut_is_said_to_be() -> None:
    assert "keys: only the first 200,000 rows" in render_html(report(cut=("keys",)))


def test_json_and_parquet_have_every_table(tmp_path: Path) -> None:
    shown = report()
    content = json.loads(json.dumps(shown.as_json()))
    assert list(content["tables"]) == list(TABLES)
    assert content["tables"]["throughput"][0]["bucket"] == "2026-01-31T12:00:00+00:00"
    for path, (name, table) in zip(shown.write_parquet(tmp_path / "out"), shown.tables.items(), strict=True):
        assert path.name == f"{name}.parquet"
        assert pq.read_table(path).equals(table)
