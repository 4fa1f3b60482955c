"""Epochs: records of the cluster that serves each cluster's clients. Pure values and functions.

A *home* is the cluster whose clients are meant; it is *served* by one cluster. At epoch 0 every cluster serves itself.
Each switch is one record with the next number, and holds the whole assignment, so that the newest record is all that
a worker needs to know.

Invariants:
- Total order: records are ordered by (epoch, writer's name, record id), and a worker only ever goes up. Two clusters
  that switch at once write the same number; everywhere the same one of the two wins, so all come to one assignment
  whatever order the records come in (last writer wins on a total order: commutative, associative, idempotent).
- A cluster that serves nobody, not even itself, is *fenced*. This follows from the assignment alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Final

from replicator.failover.errors import SwitchImpossible
from snapshots.markers import FailoverEpoch

FIRST: Final = FailoverEpoch(0, "", "", 0, "", "", "", {})
"""Before the first failover: everybody serves himself."""
EPOCH_MAX: Final = 2**63 - 1
"""Largest epoch that Postgres can hold; nobody comes near it."""
CLUSTERS_MAX: Final = 1_000
"""Limit of clusters in one record, which travels in a marker."""
KINDS: Final = ("planned", "unplanned", "failback", "promote")

Precedence = tuple[int, str, str]


def precedence(record: FailoverEpoch) -> Precedence:
    """Return the record's place in the total order; the greater one wins."""
    return record.epoch, record.writer, record.record_id


def serving(record: FailoverEpoch, home: str) -> str:
    """Return the cluster that serves the clients of ``home``."""
    return record.serving.get(home, home)


def served_homes(record: FailoverEpoch, cluster: str) -> tuple[str, ...]:
    """Return the clusters whose clients ``cluster`` serves, sorted."""
    own = () if cluster in record.serving else (cluster,)
    return tuple(sorted((*own, *(home for home, by in record.serving.items() if by == cluster))))


def is_fenced(record: FailoverEpoch, cluster: str) -> bool:
    """Return whether the cluster serves nobody, so that it takes no producers."""
    return not served_homes(record, cluster)


def successor(record: FailoverEpoch, cluster: str) -> str:
    """Return the cluster that serves the clients of a fenced cluster."""
    return serving(record, cluster)


def switched(
    current: FailoverEpoch,
    *,
    kind: str,
    homes: Collection[str],
    target: str,
    record_id: str,
    at_ms: int,
    keep_consumers: bool = False,
) -> FailoverEpoch:
    """Return the record by which ``target`` serves ``homes``; its writer is ``target``. Raise :class:`SwitchImpossible`
    if it serves them already.
    """
    assert kind in KINDS, kind
    moved = sorted(home for home in homes if serving(current, home) != target)
    if not moved:
        raise SwitchImpossible(
            f"{target} serves {', '.join(sorted(homes)) or 'nobody'} already: there is nothing to do"
        )
    source = serving(current, moved[0])
    assignment = {**current.serving, **dict.fromkeys(moved, target)}
    assignment = {home: by for home, by in sorted(assignment.items()) if home != by}
    new = FailoverEpoch(current.epoch + 1, target, record_id, at_ms, kind, source, target, assignment)
    kept = {*current.consumers_kept, *((source,) if keep_consumers else ())}
    if kept:
        still = tuple(sorted(cluster for cluster in kept if is_fenced(new, cluster)))
        new = FailoverEpoch(new.epoch, target, record_id, at_ms, kind, source, target, assignment, still)
    return new


def as_json(record: FailoverEpoch) -> dict[str, Any]:
    """Return the record for the store and for HTTP."""
    return {**asdict(record), "consumers_kept": list(record.consumers_kept)}


def from_json(value: object) -> FailoverEpoch:
    """Read a record. Raise :class:`ValueError`, which says what is wrong."""
    if not isinstance(value, Mapping):
        raise _wrong(
            f"the record of a failover is malformed: it is {value!r:.80}, not an object; run the same version in all "
            "clusters"
        )
    texts = {name: value.get(name) for name in ("writer", "record_id", "kind", "source", "target")}
    numbers = {name: value.get(name) for name in ("epoch", "at_ms")}
    assignment, kept = value.get("serving"), value.get("consumers_kept", [])
    for field, text in texts.items():
        if not isinstance(text, str) or len(text) > 200:
            raise _wrong(
                f"the record of a failover is malformed: {field} is {text!r:.80}, not a text of at most 200 "
                "characters; run the same version in all clusters"
            )
    for field, number in numbers.items():
        if type(number) is not int or not 0 <= number <= EPOCH_MAX:
            raise _wrong(
                f"the record of a failover is malformed: {field} is {number!r:.80}, not a number from 0 to 2**63-1; "
                "run the same version in all clusters"
            )
    if not isinstance(assignment, Mapping) or not _all_texts((*assignment.keys(), *assignment.values())):
        raise _wrong(
            f"the record of a failover is malformed: serving is {assignment!r:.80}, not an object of names of "
            "clusters; run the same version in all clusters"
        )
    if not isinstance(kept, list) or not _all_texts(kept):
        raise _wrong(
            f"the record of a failover is malformed: consumers_kept is {kept!r:.80}, not a list of names of clusters; "
            "run the same version in all clusters"
        )
    if len(assignment) > CLUSTERS_MAX or len(kept) > CLUSTERS_MAX:
        raise _wrong(
            f"the record of a failover is malformed: it names {max(len(assignment), len(kept))} clusters, more than "
            f"{CLUSTERS_MAX}; run the same version in all clusters"
        )
    return FailoverEpoch(**texts, **numbers, serving=dict(assignment), consumers_kept=tuple(kept))  # type: ignore[arg-type]


def _wrong(what: str) -> ValueError:
    """Return the error for a malformed record. It is a ValueError also where a value has the wrong type."""
    return ValueError(what)


def _all_texts(values: Collection[object]) -> bool:
    return all(isinstance(value, str) for value in values)
