"""Span as a worker makes it, and interface of its receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from replicator.tracing.context import TraceContext

Attribute = str | int | bool


class Kind(Enum):
    """Kind of a span, with OpenTelemetry's names."""

    SERVER = "server"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Span:
    """Finished span. ``links`` are related spans of other traces, or beside it in its own."""

    name: str
    kind: Kind
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[TraceContext] = ()
    error: str | None = None


class SpanSink(Protocol):
    """Interface of a receiver of spans. It is called on the event loop, and neither waits nor raises."""

    def add(self, span: Span) -> None: ...
