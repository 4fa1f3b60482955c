"""Messages by which a worker learns the policies and permissions of other clusters, and asks for those kept of its own.

``POST /replication/v1/settings?from=CLUSTER`` carries a :class:`SettingsHint`: the cluster has this version. Whoever
may replicate can send it. So the worker believes nothing in it. If it does not keep that version, it asks the worker of
the cluster, at the address in the topology, and then answers with a :class:`HintAnswer`.

``GET /replication/v1/settings/own?from=CLUSTER&known=DIGEST:STORE`` is that question. The answer is an
:class:`OwnSettingsTold`: all rows, or those that changed since the settings with one of the ``known`` digests.

``GET /replication/v1/settings?cluster=CLUSTER`` answers with :class:`SettingsKept`: what the worker keeps of a cluster,
and which topics that cluster deleted. A worker of an earlier version has none of these routes, or names no deletions.

:mod:`replicator.engine.cluster_settings.state` has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from replicator.engine.cluster_settings.state import (
    KeptState,
    SettingsHead,
    SettingsMessage,
    Verdict,
    rows_from_json,
    rows_to_json,
)
from replicator.engine.lineage import Deletion, possible_deletions
from snapshots.errors import InvalidPosition

SETTINGS_ROUTE: Final = "/replication/v1/settings"
OWN_SETTINGS_ROUTE: Final = "/replication/v1/settings/own"
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer with settings. 100,000 rows of 300 bytes each take half of it."""
HINT_BYTES_MAX: Final = 64 * 1024
"""Largest hint. A version with 100 earlier stores takes a quarter of it."""


@dataclass(frozen=True, slots=True)
class SettingsHint:
    """Message of a worker that its cluster has a version of its settings."""

    head: SettingsHead

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the message in a JSON body.

        Raises KeyError, TypeError, ValueError or AttributeError if the body is malformed.
        """
        return cls(SettingsHead.of_json(body["head"]))

    def as_json(self) -> dict[str, Any]:
        return {"head": self.head.as_json()}


@dataclass(frozen=True, slots=True)
class HintAnswer:
    """Answer to a :class:`SettingsHint`: whether the settings are kept, and the digest of those that were found."""

    verdict: Verdict
    digest: str

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body. Raises KeyError or ValueError if it is malformed."""
        return cls(Verdict(body["verdict"]), str(body["digest"]))

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict.value, "digest": self.digest}


@dataclass(frozen=True, slots=True)
class OwnSettingsTold:
    """Answer of the worker of ``cluster`` about its own settings; ``told`` is None if nothing was ever set there."""

    cluster: str
    told: SettingsMessage | None

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body.

        Raises KeyError, TypeError, ValueError or AttributeError if the body is malformed.
        """
        if body["head"] is None:
            return cls(str(body["cluster"]), None)
        base, rows = body["base"], body["rows"]
        if not (base is None or isinstance(base, str)):
            raise TypeError(
                f"`base` in a worker's answer about its cluster's settings must be a digest, not {base!r:.80}; run the "
                "same version in all clusters"
            )
        if base is not None:
            int(base, 16)
        changes = None if rows is None else rows_from_json(rows)
        return cls(str(body["cluster"]), SettingsMessage(SettingsHead.of_json(body["head"]), base, changes))

    def as_json(self) -> dict[str, Any]:
        told = self.told
        if told is None:
            return {"cluster": self.cluster, "head": None}
        rows = None if told.changes is None else rows_to_json(told.changes)
        return {"cluster": self.cluster, "head": told.head.as_json(), "base": told.base, "rows": rows}


@dataclass(frozen=True, slots=True)
class SettingsKept:
    """Answer of a worker: its cluster, and the settings that it keeps of another cluster, one for each store.

    ``deletions`` are those of partitioned topics by that other cluster, and those of other topics that have settings of
    their own in ``states``.
    """

    cluster: str
    states: Sequence[KeptState]
    deletions: Sequence[Deletion] = ()

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body.

        Raises KeyError, TypeError, ValueError or AttributeError if the body is malformed.
        """
        try:
            deletions = possible_deletions(body.get("deletions", ()))
        except InvalidPosition as error:
            raise ValueError(str(error)) from None
        states = [
            KeptState(
                SettingsHead.of_json(row["head"]),
                {key: text for key, text in rows_from_json(row["rows"]).items() if text is not None},
            )
            for row in body["states"]
        ]
        return cls(str(body["cluster"]), states, deletions)

    @property
    def deleted_at(self) -> dict[str, int]:
        """For each topic that is not partitioned, the time of its last deletion, by the clock of the cluster that
        deleted it."""
        return {each.topic: each.at_ms for each in self.deletions if not each.is_of_partitioned}

    def as_json(self) -> dict[str, Any]:
        rows = [{"head": each.head.as_json(), "rows": rows_to_json(each.rows)} for each in self.states]
        deletions = [each.as_json() for each in self.deletions]
        return {"cluster": self.cluster, "states": rows, "deletions": deletions}
