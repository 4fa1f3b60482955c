"""W3C trace context of the sending code, as a message property. Needs the extra ``traces``."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from replicator.tracing.context import TRACEPARENT

_propagator = TraceContextTextMapPropagator()


def with_current_context(properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the properties with the current span's ``traceparent``, if there is one and they have none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    if not carrier or (properties is not None and TRACEPARENT in properties):
        return properties
    return {**(properties or {}), **carrier}
