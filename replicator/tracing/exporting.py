"""Export of spans to a collector, by OTLP over HTTP.

Only this module imports OpenTelemetry, and it is imported only if traces are on. Its errors must not hurt the worker.
Spans wait in a queue of bounded length; spans that find it full are dropped. A thread sends some hundred at a time,
with retries within a time limit; spans that the collector does not take then are dropped too. Both are counted, and the
status has the last error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout
from replicator.tracing.context import TraceContext
from replicator.tracing.spans import Kind, Span

BATCH_SPANS_MAX: Final = 512
"""Limit of spans in one request to the collector: some hundred kilobytes."""
EVERY_SECONDS: Final = 1.0
"""Longest time that a span waits for others."""
REQUEST_SECONDS_MAX: Final = 10.0
"""Longest time of a request with its retries."""
STOP_SECONDS_MAX: Final = 2.0
"""Longest time for sending the remaining spans when the worker stops."""
PATH: Final = "/v1/traces"

_KINDS: Final = {Kind.SERVER: SpanKind.SERVER, Kind.PRODUCER: SpanKind.PRODUCER, Kind.CONSUMER: SpanKind.CONSUMER}
_EXPORTER_LOG: Final = "opentelemetry.exporter"

log = structlog.get_logger(__name__)


def traces_url(endpoint: str) -> str:
    """Return the URL for spans. ``endpoint`` is a collector's address, or the whole URL."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(PATH) else f"{path}{PATH}"))


class SpanExport:
    """Exporter of one worker's spans. It takes spans from its making on, and sends them between :meth:`start` and
    :meth:`stop`."""

    def __init__(self, endpoint: str, queue_max: int, *, cluster: str, version: str, supervisor: Supervisor) -> None:
        self._endpoint = traces_url(endpoint)
        self._queue_max = queue_max
        self._queue: deque[Span] = deque()
        self._many = asyncio.Event()
        self._resource = Resource.create(
            {"service.name": "replicator", "service.instance.id": cluster, "service.version": version}
        )
        self._scope = InstrumentationScope("replicator", version)
        # The exporter's log would repeat the same line for each batch. The worker's log has a line when the state
        # changes.
        logging.getLogger(_EXPORTER_LOG).setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(self._endpoint, timeout=REQUEST_SECONDS_MAX)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._task = supervisor.task("traces", "exports spans", self._run)
        self._sending: asyncio.Future[str | None] | None = None
        self.exported = 0
        self.dropped = 0
        """Number of spans that were dropped because the queue was full."""
        self.refused = 0
        """Number of spans that the collector did not take."""
        self.detail = ""

    def add(self, span: Span) -> None:
        if len(self._queue) >= self._queue_max:
            self.dropped += 1
            return
        self._queue.append(span)
        if len(self._queue) >= BATCH_SPANS_MAX:
            self._many.set()

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()
        with contextlib.suppress(TimeoutError):
            async with timeout(STOP_SECONDS_MAX):
                if self._sending is not None:
                    await asyncio.wait([self._sending])
                while self._queue and not self.detail:
                    await self._send()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends retries
        self._thread.shutdown(wait=False, cancel_futures=True)

    def status(self) -> dict[str, Any]:
        return {
            "endpoint": self._endpoint,
            "queued": len(self._queue),
            "exported": self.exported,
            "dropped": self.dropped,
            "refused": self.refused,
            "detail": self.detail,
        }

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with timeout(EVERY_SECONDS):
                    await self._many.wait()
            self._many.clear()
            while self._queue:
                await self._send()

    async def _send(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(BATCH_SPANS_MAX, len(self._queue)))]
        self._sending = asyncio.get_running_loop().run_in_executor(self._thread, self._export, batch)
        self._sending.add_done_callback(partial(self._sent, len(batch)))
        await asyncio.wait([self._sending])  # it goes on when this task is stopped

    def _sent(self, spans: int, sending: asyncio.Future[str | None]) -> None:
        refused = "the worker stops" if sending.cancelled() else sending.result()
        if refused is None:
            self.exported += spans
        else:
            self.refused += spans
        if (refused or "") != self.detail:
            self.detail = refused or ""
            if refused is not None:
                log.warning("spans not taken", endpoint=self._endpoint, reason=refused)
            else:
                log.info("spans taken again", endpoint=self._endpoint)

    # On the thread.

    def _export(self, batch: Sequence[Span]) -> str | None:
        """Send spans. Return why the collector did not take them; None if it did."""
        try:
            result = self._exporter.export([self._readable(span) for span in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hurt the worker
            return f"{type(error).__name__}: {error}"[:200]
        if result is SpanExportResult.SUCCESS:
            return None
        return f"the collector did not take them within {REQUEST_SECONDS_MAX:.0f} s, or refused them"

    def _readable(self, span: Span) -> ReadableSpan:
        error = span.error
        return ReadableSpan(
            span.name,
            context=_span_context(span.context),
            parent=None if span.parent is None else _span_context(span.parent, remote=True),
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_span_context(each, remote=True)) for each in span.links],
            kind=_KINDS[span.kind],
            status=Status() if error is None else Status(StatusCode.ERROR, error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _span_context(context: TraceContext, *, remote: bool = False) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, remote, TraceFlags(TraceFlags.SAMPLED))
