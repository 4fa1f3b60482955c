"""The section ``traces`` of a topology file: whether messages are traced, how many, and where their spans go."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from replicator.topology.sections import Section


def check_endpoint(text: str) -> str:
    """Check the URL of a collector."""
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError(
            "the collector's URL must have no user and no password, since it is shown: set OTEL_EXPORTER_OTLP_HEADERS "
            "in the worker's environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text[:80]!r} is not the URL of a collector (for example http://localhost:4318)")
    return text


class TracesSettings(Section):
    """Tracing, the same for all workers. Without an endpoint there are no traces."""

    endpoint: Annotated[str, AfterValidator(check_endpoint)] | None = None
    """A collector that takes OTLP over HTTP. A name such as ``localhost`` is each worker's own host."""
    sample: float = Field(default=0.001, ge=0, le=1)
    """The probability of each message to begin a trace, where its producer brought none along."""
    per_second: int = Field(default=100, ge=1, le=100_000)
    """Messages that a worker traces a second at most, whoever sampled them."""
    notes: int = Field(default=100_000, ge=2, le=10_000_000)
    """Traced messages that a worker remembers."""
    queue: int = Field(default=10_000, ge=1, le=1_000_000)
    """Spans that wait for the collector at most; more are dropped."""

    def written(self) -> dict[str, Any]:
        """Return the settings that are set, in the form of the topology file."""
        return self.model_dump(exclude_defaults=True)
