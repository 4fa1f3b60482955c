"""Spans on their way to a collector: what it gets, and what becomes of them when it is slow, away or refuses."""

from __future__ import annotations

import asyncio
import logging

import pytest
from asynchronous import asynchronous
from engine_support import eventually
from failover_support import free_ports
from traces_support import Collector

from replicator.running.supervisor import Supervisor
from replicator.tracing import exporting
from replicator.tracing.context import TraceContext
from replicator.tracing.exporting import SpanExport, traces_url
from replicator.tracing.spans import Kind, Span

SECONDS_MAX = 60


def span(number: int = 0, error: str | None = None) -> Span:
    context = TraceContext(0xABC, number + 1)
    return Span(
        f"publish {number}", Kind.SERVER, context, TraceContext(0xABC, 0xDEF), 5, 9, {"a": 1}, (context,), error
    )


def made(endpoint: str, queue_max: int = 1000) -> SpanExport:
    return SpanExport(endpoint, queue_max, cluster="us-east", version="1", supervisor=Supervisor())


@asynchronous
async def test_a_collector_gets_spans_as_they_are() -> None:
    collector = Collector()
    await collector.start()
    export = made(collector.url)
    export.start()
    export.add(span())
    export.add(span(1, "no room"))
    await eventually(lambda: export.exported == 2, seconds=SECONDS_MAX)
    await export.stop()
    await collector.stop()
    first, second = collector.spans
    assert (first.cluster, first.name, first.trace_id, first.parent_id) == (
        "us-east",
        "publish 0",
        f"{0xABC:032x}",
        f"{0xDEF:016x}",
    )
    assert (first.start_ns, first.end_ns, first.attributes, first.error) == (5, 9, {"a": 1}, "")
    assert first.links == ((f"{0xABC:032x}", f"{1:016x}"),)
    assert second.error == "no room"
    assert export.status()["queued"] == 0


@asynchronous
async def test_what_is_left_is_sent_when_the_worker_stops() -> None:
    collector = Collector()
    await collector.start()
    export = made(collector.url)
    export.add(span())
    await export.stop()
    await collector.stop()
    assert (len(collector.spans), export.exported) == (1, 1)


@asynchronous
async def test_what_comes_while_the_queue_is_full_is_dropped_and_counted() -> None:
    export = made("http://127.0.0.1:1", queue_max=3)
    for number in range(10):
        export.add(span(number))
    status = export.status()
    assert (status["queued"], status["dropped"]) == (3, 7)


@asynchronous
async def test_what_a_collector_refuses_is_counted_and_said_until_it_is_over() -> None:
    collector = Collector()
    collector.status = 400
    await collector.start()
    export = made(collector.url)
    export.start()
    export.add(span())
    await eventually(lambda: export.refused == 1, seconds=SECONDS_MAX)
    assert "did not take" in export.status()["detail"]
    collector.status = 200
    export.add(span())
    await eventually(lambda: export.exported == 1, seconds=SECONDS_MAX)
    assert export.status()["detail"] == ""
    await export.stop()
    await collector.stop()


@asynchronous
async def test_a_collector_that_is_away_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporting, "REQUEST_SECONDS_MAX", 0.5)
    (port,) = free_ports(1)
    export = made(f"http://127.0.0.1:{port}")
    export.start()
    export.add(span())
    with caplog.at_level(logging.WARNING):
        await eventually(lambda: export.refused == 1, seconds=SECONDS_MAX)
    async with asyncio.timeout(SECONDS_MAX):
        await export.stop()
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://otlp.example/tenant/a", "https://otlp.example/tenant/a/v1/traces"),
        ("https://otlp.example/v1/traces", "https://otlp.example/v1/traces"),
    ],
)
def test_a_collectors_address_gets_the_path_that_otlp_has(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
