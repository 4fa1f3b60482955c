"""The traces of a worker, as its topology says: whoever makes spans, and what sends them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicator import __version__
from replicator.running.extras import extra_missing
from replicator.running.supervisor import Supervisor
from replicator.topology.traces import TracesSettings
from replicator.tracing.notes import NoteTable
from replicator.tracing.sampling import Sampler
from replicator.tracing.tracing import Tracing

if TYPE_CHECKING:
    from replicator.tracing.exporting import SpanExport


@dataclass(frozen=True, slots=True)
class WorkerTraces:
    """Traces of a worker that has tracing configured."""

    tracing: Tracing
    export: SpanExport

    def change(self, settings: TracesSettings) -> None:
        """Take over the settings of a new topology that a running worker can change."""
        self.tracing.sampler.change(settings.sample, settings.per_second)

    def status(self) -> dict[str, Any]:
        sampler, notes = self.tracing.sampler, self.tracing.notes
        return {
            "sample": sampler.rate,
            "per_second": sampler.per_second,
            "messages": sampler.traced,
            "messages_over_limit": sampler.skipped,
            "notes": len(notes),
            "notes_forgotten": notes.forgotten,
            **self.export.status(),
        }


def make_traces(settings: TracesSettings, cluster: str, supervisor: Supervisor) -> WorkerTraces | None:
    """Return the worker's traces; None if the topology has no collector: then nothing of OpenTelemetry is imported.
    Raise :class:`~replicator.running.extras.ExtraMissing`.
    """
    if settings.endpoint is None:
        return None
    try:
        from replicator.tracing.exporting import SpanExport
    except ModuleNotFoundError:
        raise extra_missing("traces", "traces.endpoint") from None
    export = SpanExport(settings.endpoint, settings.queue, cluster=cluster, version=__version__, supervisor=supervisor)
    sampler = Sampler(settings.sample, settings.per_second, time.monotonic, random.random)
    return WorkerTraces(Tracing(cluster, sampler, NoteTable(settings.notes), export), export)
