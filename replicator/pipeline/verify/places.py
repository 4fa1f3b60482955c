"""Comparison of the exact mappings of clusters with the logs that verify read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.cluster_state import ClusterStates
from replicator.pipeline.verify.comparison.rows import FindingRow
from replicator.pipeline.verify.plane import VerifyPlane
from snapshots.position import Position

PROBES_MAX: Final = 200
"""Most positions that are looked up in the exact mapping. Each takes a millisecond."""


def wrong_places(picture: ClusterStates, probes: Sequence[FindingRow], away: dict[str, str]) -> Iterator[FindingRow]:
    """Yield copied entries for which the exact mapping has a wrong position. An unknown position is no fault.

    ``away`` has the clusters that do not answer, with the reasons. They are not asked, and those that go away now are
    added.
    """
    urls = {state.name: state.url for state in picture.clusters}
    for probe in probes[:: -(-len(probes) // PROBES_MAX) or 1]:
        cluster = str(probe.cluster)
        if cluster in away:
            continue
        origin_position = Position(int(probe.origin_ledger or 0), int(probe.origin_first or 0))
        here = Position(int(probe.ledger or 0), int(probe.entry or 0))
        incarnation = int(probe.incarnation or 0) % 2**64
        try:
            with VerifyPlane(urls[cluster]) as worker:
                place = worker.place(probe.topic, str(probe.origin), incarnation, origin_position)
        except PeerUnavailable as error:
            away[cluster] = f"went away before its exact mapping was compared: {error}"
        except UnexpectedAnswer:
            continue  # trimmed, of another life, or copied twice: what is wrong with those is found in the logs
        else:
            if place != here:
                example = (
                    f"exact mapping of {cluster}: {probe.origin} {origin_position} at {place}, and it lies at {here}"
                )
                yield replace(probe, kind="mismapped", count=1, detail=example)
