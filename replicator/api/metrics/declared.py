"""How a metric is declared. Prometheus' conventions: base units, the unit last, ``_total`` for what only grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "replicator_"
CLUSTER: Final = "cluster"
"""The first label of every metric of the service: the worker's own cluster."""


class Kind(StrEnum):
    """Type of a metric in Prometheus' terms."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Replaced:
    """The name that a metric had in the version before. The old series stands beside the new one for one version."""

    name: str
    kind: Kind = Kind.GAUGE
    factor: float = 1
    """The factor by which the new value is multiplied to get the old one."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``name`` is without the prefix, and for a counter without ``_total``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Unit in words, for the page; seconds and bytes are told by the name."""
    replaces: Replaced | None = None

    @property
    def exported(self) -> str:
        """Return the metric's name in rules and dashboards. A histogram's series have ``_bucket``, ``_sum`` or
        ``_count`` after it.
        """
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"

    @property
    def all_labels(self) -> Sequence[str]:
        return (CLUSTER, *self.labels)

    @property
    def unit_in_words(self) -> str:
        last = self.name.rsplit("_", 1)[-1]
        return last if last in ("seconds", "bytes") else self.unit


def counter(name: str, text: str, *labels: str, unit: str = "", replaces: Replaced | None = None) -> Metric:
    """Declare a metric that only grows, from 0 at the worker's start unless its text says otherwise."""
    return Metric(name, Kind.COUNTER, text, labels, unit, replaces)


def gauge(name: str, text: str, *labels: str, unit: str = "", replaces: Replaced | None = None) -> Metric:
    """Declare a metric that goes up and down."""
    return Metric(name, Kind.GAUGE, text, labels, unit, replaces)


def histogram(name: str, text: str, *labels: str) -> Metric:
    """Declare a metric of how often something took how long."""
    return Metric(name, Kind.HISTOGRAM, text, labels)


def flag(name: str, text: str, *labels: str) -> Metric:
    """Declare a gauge that is 1 or 0."""
    return Metric(name, Kind.GAUGE, text, labels, "1 or 0")
