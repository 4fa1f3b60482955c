"""The peers of a reclaim: other clusters, what they have of this cluster's messages, and how their retention is held
back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from replicator.backup.errors import BackupError, WorkerNotAsked
from replicator.backup.reclaim_plan import PeerCopy
from replicator.engine.engine import Engine
from replicator.engine.lineage import NewestStore
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.failover.epochs import from_json
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.plane import NO_ROUTE, VerifyPlane
from replicator.running.supervisor import Supervisor
from replicator.security.asking import worker_url
from replicator.topology import Topology
from snapshots.ack_vector import Range
from snapshots.markers import FailoverEpoch
from snapshots.position import BEFORE_ALL, Position

ANSWER_SECONDS: Final = 5.0
"""A reclaim waits so long for an answer of a peer."""
ASKED_AGAIN_SECONDS: Final = 20.0
"""Time between two questions that only hold back retention. Each question holds it back at the peer for a minute, and
one topic can take longer than that."""


@dataclass(frozen=True, slots=True)
class Held:
    """Content of one topic at a peer, which a deletion of the topic there would delete."""

    messages: int
    of: Sequence[str]
    """Clusters that published the messages."""
    subscriptions: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Held | None:
        """Return what a row of ``GET /replication/v1/cuts`` tells; None if the peer's version does not tell it."""
        told = row.get("held")
        return (
            None if told is None else cls(int(told["messages"]), list(map(str, told["of"])), int(told["subscriptions"]))
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """Another cluster, or another copy of this cluster's store, and what it has of this cluster's messages.

    ``copies`` has, by topic, one copy for each life of the topic. Another copy of this cluster's store also has the
    topics without messages of this cluster, with no copies. ``record`` is the newest failover epoch that the peer
    knows.
    """

    name: str
    plane: VerifyPlane
    copies: Mapping[str, Sequence[PeerCopy]]
    record: FailoverEpoch
    deletions: Mapping[str, Mapping[int, Position]]
    """For each topic, the lives that this cluster deleted on purpose, as the peer remembers them, each with its last
    position."""
    engine: Engine | None = None
    """The opened store. Only another copy of this cluster's store has it."""
    newest: NewestStore | None = None
    """Newest store of this cluster that the peer heard of; None if it heard of none."""
    held: Mapping[str, Held] = field(default_factory=dict)
    """By topic, what the peer has of all clusters. Topics of a peer whose version does not tell it are left out."""


def check_known(topology: Topology, without: frozenset[str]) -> None:
    """Raise :class:`BackupError` if ``without`` names a cluster that the topology does not have."""
    if unknown := without - set(topology.names):
        raise BackupError(f"--without: the topology has no cluster {', '.join(sorted(unknown))}")


async def ask_peers(topology: Topology, name: str, without: frozenset[str]) -> list[Peer]:
    """Ask all clusters except ``name`` and those in ``without``, and return them as peers.

    Raises :class:`WorkerNotAsked` if a cluster does not answer, or if its answer cannot be used.
    """
    peers: list[Peer] = []
    try:
        for each in topology.clusters:
            if each.name != name and each.name not in without:
                plane = VerifyPlane(worker_url(each.address), wait_seconds=ANSWER_SECONDS, reclaiming=name)
                peers.append(await asyncio.to_thread(_ask, each.name, plane, name))
    except BaseException:
        close_all(peers)
        raise
    return peers


async def ask_again(peers: Sequence[Peer], name: str) -> list[Peer]:
    """Ask the same peers what they have now. Another copy of the store, which does not change, is not asked.

    Raises :class:`WorkerNotAsked` as :func:`ask_peers` does.
    """
    return [
        peer if peer.engine is not None else await asyncio.to_thread(_ask, peer.name, peer.plane, name)
        for peer in peers
    ]


def close_all(peers: Iterable[Peer]) -> None:
    for peer in peers:
        peer.plane.close()


def _ask(name: str, plane: VerifyPlane, restored: str) -> Peer:
    """Ask one peer. Close its connection after an error."""
    try:
        cuts = plane.call("GET", "/replication/v1/cuts")
        if cuts["cluster"] != name:
            raise WorkerNotAsked(  # noqa: TRY301
                f"worker at {plane.url} is of cluster {cuts['cluster']!r}, not {name!r}: correct its address in the "
                "topology"
            )
        record = from_json(plane.call("GET", "/failover/v1/state")["record"])
        copies = {topic: lives for topic, row in cuts["topics"].items() if (lives := copies_of(row, restored))}
        held = {topic: has for topic, row in cuts["topics"].items() if (has := Held.of_row(row)) is not None}
        deletions = {topic: told for topic, row in cuts["topics"].items() if (told := _deletions(row, restored))}
        # ``cuts`` names only users' topics, so ask for the log of failovers apart. That log is never trimmed.
        epochs = plane.call("GET", "/replication/v1/high-water", origin=restored, topic=EPOCHS_TOPIC)["topics"]
        copies |= {
            topic: [PeerCopy(int(mark["incarnation"]), Position.parse(mark["position"]), store=mark.get("store"))]
            for topic, mark in epochs.items()
        }
        newest = _newest_store(plane, restored)
    except (PeerUnavailable, UnexpectedAnswer) as error:
        plane.close()
        raise WorkerNotAsked(
            f"{error}; start {name} and run `replicator backup reclaim`, or do so with --without {name}: what only "
            f"{name} has of {restored}'s messages is then lost to it, and the link to {name} stops there (lost-data)"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        plane.close()
        raise WorkerNotAsked(
            f"worker at {plane.url}: its answer cannot be read: {error!r:.200}; run the same version everywhere"
        ) from None
    except BaseException:
        plane.close()
        raise
    return Peer(name, plane, copies, record, deletions, newest=newest, held=held)


def _newest_store(plane: VerifyPlane, cluster: str) -> NewestStore | None:
    """Return the newest store of ``cluster`` that a peer heard of. A worker of an earlier version knows of none."""
    try:
        return StoreOf.of_json(plane.call("GET", STORE_OF_ROUTE, cluster=cluster)).newest
    except UnexpectedAnswer as error:
        if error.status in NO_ROUTE:
            return None
        raise


def copies_of(row: Mapping[str, Any], origin: str) -> list[PeerCopy]:
    """Return the copies of ``origin``'s topic in a row of ``GET /replication/v1/cuts``, one for each life, the oldest
    first.

    A worker of an earlier version names only the newest life.
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
                _ledgers(row, life),
            )
        )
    return found


def _ledgers(row: Mapping[str, Any], life: int) -> list[tuple[int, int, int]] | None:
    """Return the ledgers in which the peer has entries of a life; None if its version does not tell them."""
    told = row.get("ledgers")
    return None if told is None else [(int(a), int(b), int(c)) for a, b, c in told.get(str(life), ())]


def _deletions(row: Mapping[str, Any], origin: str) -> dict[int, Position]:
    """Return the lives that ``origin`` deleted on purpose, as the peer remembers them, each with its last position.

    A worker of an earlier version names none.
    """
    deleted = row.get("lineage", {}).get(origin, {}).get("deleted", {})
    return {int(life): Position.parse(upto) for life, upto in deleted.items()}


@asynccontextmanager
async def held_back(supervisor: Supervisor, whose: str, peers: Sequence[Peer]) -> AsyncIterator[None]:
    """Keep the peers from deleting messages by retention while this context is entered.

    Each request of a reclaim holds back retention at the peer that it asks. So ask every peer again each
    :data:`ASKED_AGAIN_SECONDS`, also a peer from which nothing is read for a long time. Each peer has a task of its
    own, so that a peer that does not answer delays no question to another one. ``whose`` is the cluster that takes back
    its messages.
    """

    def ask(url: str) -> None:
        plane = DataPlane(url, silence_seconds=ANSWER_SECONDS, reclaiming=whose)
        with suppress(PeerUnavailable, UnexpectedAnswer), plane:
            plane.call("GET", "/replication/v1/high-water", origin=whose, topic=EPOCHS_TOPIC)

    async def keep(url: str) -> None:
        while True:
            await asyncio.sleep(ASKED_AGAIN_SECONDS)
            await asyncio.to_thread(ask, url)

    keeping = [
        supervisor.start("reclaim", f"holding retention of {peer.name} back", partial(keep, peer.plane.url))
        for peer in peers
    ]
    try:
        yield
    finally:
        for each in keeping:
            await each.stop()


def rewritten_at(topology: Topology, origin: str) -> frozenset[str]:
    """Return the clusters that may get the messages of ``origin`` by a link that filters or changes messages."""
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for link in topology.links:
            if link.where or link.masks or (link.forward and link.source in found):
                found.add(link.destination)
    return frozenset(found - {origin})
