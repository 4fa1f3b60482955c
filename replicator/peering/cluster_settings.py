"""Messages by which a worker tells others the policies and permissions of its cluster, and asks for kept ones.

``POST /replication/v1/settings?from=CLUSTER`` carries :class:`SettingsTold`: without ``rows`` it asks whether the other
worker has this version, with them it tells all rows or the changed ones. The answer ``{"verdict": "kept" | "whole" |
"newer"}`` says whether it is kept, or whether all rows are wanted.

``GET /replication/v1/settings?cluster=CLUSTER`` answers with :class:`SettingsKept`: what the worker keeps of a cluster.
A worker of an earlier version has neither route.

:mod:`replicator.engine.cluster_settings.state` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from replicator.engine.cluster_settings.state import (
    KeptState,
    SettingsHead,
    Told,
    Verdict,
    rows_from_json,
    rows_to_json,
)

SETTINGS_ROUTE: Final = "/replication/v1/settings"
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest body of a message. 100,000 rows of 300 bytes each take half of it."""


@dataclass(frozen=True, slots=True)
class SettingsTold:
    """Message of a worker about the settings of its cluster."""

    told: Told

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the message in a JSON body.

        Raises KeyError, TypeError, ValueError or AttributeError if the body is malformed.
        """
        base, rows = body.get("base"), body.get("rows")
        if not (base is None or isinstance(base, str)):
            raise TypeError("base is a digest")
        if base is not None:
            int(base, 16)
        return cls(Told(SettingsHead.of_json(body["head"]), base, None if rows is None else rows_from_json(rows)))

    def as_json(self) -> dict[str, Any]:
        rows = None if self.told.changes is None else rows_to_json(self.told.changes)
        return {"head": self.told.head.as_json(), "base": self.told.base, "rows": rows}


@dataclass(frozen=True, slots=True)
class SettingsKept:
    """Answer of a worker: its cluster, and the settings that it keeps of another cluster, one for each store."""

    cluster: str
    states: Sequence[KeptState]

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body.

        Raises KeyError, TypeError, ValueError or AttributeError if the body is malformed.
        """
        states = [
            KeptState(
                SettingsHead.of_json(row["head"]),
                {key: text for key, text in rows_from_json(row["rows"]).items() if text is not None},
            )
            for row in body["states"]
        ]
        return cls(str(body["cluster"]), states)

    def as_json(self) -> dict[str, Any]:
        rows = [{"head": each.head.as_json(), "rows": rows_to_json(each.rows)} for each in self.states]
        return {"cluster": self.cluster, "states": rows}


def verdict_of(body: Mapping[str, Any]) -> Verdict:
    """Return the verdict in an answer. Raises KeyError or ValueError if it is malformed."""
    return Verdict(body["verdict"])
