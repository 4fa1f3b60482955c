"""Measured figures: several runs, their median, and the peer's, in the form of ``bench/results.json``. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

SIGNIFICANT_DIGITS: Final = 4
"""Significant digits of a figure; runs on a shared machine are not more precise."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured figure. ``name`` is ``GROUP/SIZE/…``; ``runs`` are in ``unit``, as are the peer's, if there is one."""

    name: str
    unit: str
    runs: tuple[float, ...]
    peer: str | None = None
    peer_runs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.runs, f"{self.name} was not run"
        assert (self.peer is None) == (not self.peer_runs), f"{self.name}: a peer has runs, and runs have a peer"

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def value(self) -> float:
        return significant(median(self.runs))

    @property
    def peer_value(self) -> float | None:
        return significant(median(self.peer_runs)) if self.peer_runs else None

    @property
    def ratio(self) -> float | None:
        """Return the median of our runs divided by the median of the peer's runs.

        A ratio above 1 is better for us if the unit is a rate. Return None if there is no peer, or if its median is
        zero.
        """
        beside = median(self.peer_runs) if self.peer_runs else 0.0
        return significant(median(self.runs) / beside) if beside else None

    def beside_peer(self) -> str:
        """Return a line with name, median and unit, and with the peer's median and the ratio if there is a peer."""
        beside = "" if self.peer_value is None else f", {self.peer} {self.peer_value:g}"
        ratio = "" if self.ratio is None else f", ratio {self.ratio:g}"
        return f"{self.name}: {self.value:g} {self.unit}{beside}{ratio}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "runs": [significant(run) for run in self.runs],
        }


def results_json(measurements: Sequence[Measurement]) -> str:
    """Return the text of the results file, in the order of measuring."""
    return json.dumps([measurement.as_json() for measurement in measurements], indent=2) + "\n"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of ``values`` that at least ``percent`` % of them do not exceed (nearest rank)."""
    assert values
    assert 0 < percent <= 100
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def significant(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Return ``value`` rounded to ``digits`` significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
