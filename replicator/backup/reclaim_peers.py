"""The other clusters that a reclaim asks: what they have of this cluster's messages, and holding back retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from replicator.backup.errors import BackupError, WorkerNotAsked
from replicator.backup.reclaim_plan import PeerCopy
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.failover.epochs import from_json
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.running.supervisor import Supervisor
from replicator.security.asking import worker_url
from replicator.topology import Topology
from snapshots.ack_vector import Range
from snapshots.markers import FailoverEpoch
from snapshots.position import BEFORE_ALL, Position

ANSWER_SECONDS: Final = 5.0
"""How long a peer is waited for."""
ASKED_AGAIN_SECONDS: Final = 20.0
"""A peer holds its retention back for a minute after each question, and one topic may take longer than that."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another cluster, and what it has of this cluster's messages: by topic its copies, one for each life."""

    name: str
    plane: VerifyPlane
    copies: Mapping[str, Sequence[PeerCopy]]
    record: FailoverEpoch
    deletions: Mapping[str, Mapping[int, Position]]
    """By topic, the lives that the peer was told to be deleted on purpose, each with its last position."""


def check_known(topology: Topology, without: frozenset[str]) -> None:
    """Raise :class:`BackupError` if ``without`` names a cluster that the topology does not have."""
    if unknown := without - set(topology.names):
        raise BackupError(f"--without: the topology has no cluster {', '.join(sorted(unknown))}")


async def ask_peers(topology: Topology, name: str, without: frozenset[str]) -> list[Peer]:
    """Ask all other clusters but those of ``without``. Raises :class:`WorkerNotAsked`."""
    peers: list[Peer] = []
    try:
        for each in topology.clusters:
            if each.name != name and each.name not in without:
                peers.append(await asyncio.to_thread(_ask, each.name, worker_url(each.address), name))
    except BaseException:
        close_all(peers)
        raise
    return peers


def close_all(peers: Iterable[Peer]) -> None:
    for peer in peers:
        peer.plane.close()


def _ask(name: str, url: str, restored: str) -> Peer:
    plane = VerifyPlane(url, wait_seconds=ANSWER_SECONDS, reclaiming=restored)
    try:
        cuts = plane.call("GET", "/replication/v1/cuts")
        if cuts["cluster"] != name:
            raise WorkerNotAsked(f"{url} is cluster {cuts['cluster']!r}, the topology says {name!r}")  # noqa: TRY301
        record = from_json(plane.call("GET", "/failover/v1/state")["record"])
        copies = {topic: lives for topic, row in cuts["topics"].items() if (lives := copies_of(row, restored))}
        deletions = {topic: told for topic, row in cuts["topics"].items() if (told := _deletions(row, restored))}
        # The log of failovers is not among the topics of users; all of it is kept.
        epochs = plane.call("GET", "/replication/v1/high-water", origin=restored, topic=EPOCHS_TOPIC)["topics"]
        copies |= {
            topic: [PeerCopy(int(mark["incarnation"]), Position.parse(mark["position"]), store=mark.get("store"))]
            for topic, mark in epochs.items()
        }
    except (PeerUnavailable, UnexpectedAnswer) as error:
        plane.close()
        raise WorkerNotAsked(
            f"{error}; start {name} and run `replicator backup reclaim`, or do so with --without {name}: what only "
            f"{name} has of {restored}'s messages is then lost to it, and the link to {name} stops there (lost-data)"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        plane.close()
        raise WorkerNotAsked(f"worker at {url}: its answer cannot be read: {error!r}") from None
    except BaseException:
        plane.close()
        raise
    return Peer(name, plane, copies, record, deletions)


def copies_of(row: Mapping[str, Any], origin: str) -> list[PeerCopy]:
    """Return the lives of ``origin``'s topic that a row of ``GET /replication/v1/cuts`` has, the oldest first.

    A worker of a version before names the newest life only.
    """
    mark = row["high_water"].get(origin)
    if mark is None:
        return []
    newest = int(mark[0])
    left_out: list[Range] = [
        (Position.parse(after), Position.parse(upto)) for after, upto in row["left_out"].get(origin, ())
    ]
    trimmed_of = row["trimmed_of"].get(origin)
    trimmed = BEFORE_ALL if trimmed_of is None else Position.parse(trimmed_of)
    stores, deleted = row.get("lineage", {}).get(origin, {}).get("stores", {}), _deletions(row, origin)
    marks = {int(life): Position.parse(last) for life, _, last in row.get("lives", {}).get(origin, ())}
    marks[newest] = Position.parse(mark[1])
    found: list[PeerCopy] = []
    for life, last in sorted(marks.items()):
        found.append(
            PeerCopy(
                life,
                last,
                trimmed if trimmed.ledger > life else BEFORE_ALL,
                left_out,
                stores.get(str(life)),
                last <= deleted.get(life, BEFORE_ALL),
            )
        )
    return found


def _deletions(row: Mapping[str, Any], origin: str) -> dict[int, Position]:
    """Return the lives that the peer was told to be deleted; a worker of a version before names none."""
    deleted = row.get("lineage", {}).get(origin, {}).get("deleted", {})
    return {int(life): Position.parse(upto) for life, upto in deleted.items()}


@asynccontextmanager
async def held_back(supervisor: Supervisor, whose: str, peers: Sequence[Peer]) -> AsyncIterator[None]:
    """Keep the peers' retention held back, also while one of them is not read for long."""

    def ask() -> None:
        for peer in peers:
            with suppress(PeerUnavailable, UnexpectedAnswer), DataPlane(peer.plane.url, reclaiming=whose) as plane:
                plane.call("GET", "/replication/v1/high-water", origin=whose, topic=EPOCHS_TOPIC)

    async def keep() -> None:
        while True:
            await asyncio.sleep(ASKED_AGAIN_SECONDS)
            await asyncio.to_thread(ask)

    keeping = supervisor.start("reclaim", "holding retention back", keep)
    try:
        yield
    finally:
        await keeping.stop()


def rewritten_at(topology: Topology, origin: str) -> frozenset[str]:
    """Return the clusters to which the origin's messages may come by a link that leaves some out, or changes them."""
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for link in topology.links:
            if link.where or link.masks or (link.forward and link.source in found):
                found.add(link.destination)
    return frozenset(found - {origin})
