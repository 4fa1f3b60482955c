"""Order in which to restore several lost clusters that each have a backup. Pure, except that it reads manifests.

A backup of cluster B has copies of A's messages. If it has more of them than A's own backup, A can take the missing
ones back from B. So B must be restored and running before A is restored.

1. Each backup shows one moment. So of two clusters, at most one backup has messages of the other cluster that the other
   cluster's own backup lacks: the backup that was made later. The marks of origins in the manifests tell which backup
   that is, even if the clocks of the two machines differ.
2. A manifest of an older version has no marks. Then the time at which the backup was made decides.
3. Of the clusters that are left, the next one to restore is one whose own backup has all of its messages that the other
   backups have. If there are several, the one with the newest backup comes first. This step repeats until no cluster is
   left.
4. The first cluster is restored without the others. Each later cluster takes its messages back from those that run by
   then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from replicator.backup.destination import Destination
from replicator.backup.errors import BackupDamaged, BackupError, DestinationUnavailable, WorkerNotAsked
from replicator.backup.manifest import Manifest, Manifests, clusters_at
from replicator.engine.errors import StoreUnusable
from replicator.engine.log.store_files import read_meta
from replicator.engine.restored import BESIDE, SiblingBackup, beside_of, order_advice
from snapshots.position import BEFORE_ALL, Position


def has_more(of: Manifest, other: Manifest) -> bool:
    """Return whether the backup ``other`` has messages that the cluster of the backup ``of`` published and ``of``
    lacks."""
    cluster = of.cluster
    if not all(any(mark.marks for mark in each.topics.values()) for each in (of, other)):
        return other.made_at_ms > of.made_at_ms
    for name, mark in other.topics.items():
        own = of.topics.get(name)
        here = str(BEFORE_ALL) if own is None else own.marks.get(cluster, str(BEFORE_ALL))
        if Position.parse(mark.marks.get(cluster, str(BEFORE_ALL))) > Position.parse(here):
            return True
    return False


def order_of(backups: Sequence[Manifest]) -> list[Manifest]:
    """Return backups of different clusters in the order in which to restore them."""
    left = sorted(backups, key=lambda each: each.made_at_ms, reverse=True)
    ordered: list[Manifest] = []
    while left:
        first = next((each for each in left if not any(has_more(each, other) for other in left)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def restored_beside(destination: Destination, chosen: Manifest) -> list[SiblingBackup]:
    """Return ``chosen`` and the newest backup of each other cluster at ``destination``, in the order in which to
    restore them.

    A cluster is left out if neither it nor the cluster of ``chosen`` has messages of the other one. Raises
    :class:`DestinationUnavailable` if the destination cannot be read.
    """
    others = [_newest(destination, each) for each in clusters_at(destination) if each != chosen.cluster]
    ordered = order_of([chosen, *(each for each in others if each is not None and _are_linked(chosen, each))])
    return [SiblingBackup(each.cluster, each.id, each.made_at_ms) for each in ordered]


def _are_linked(one: Manifest, other: Manifest) -> bool:
    """Return whether one of the two clusters has messages of the other one, or whether that is not known.

    Two separate systems may keep their backups at one destination.
    """
    origins = [{origin for mark in each.topics.values() for origin in mark.marks} for each in (one, other)]
    return not all(origins) or one.cluster in origins[1] or other.cluster in origins[0]


def _newest(destination: Destination, cluster: str) -> Manifest | None:
    manifests = Manifests(destination, cluster)
    for backup in manifests.ids():
        try:
            return manifests.read(backup)
        except DestinationUnavailable:
            raise
        except (BackupDamaged, BackupError):  # try the next older backup
            continue
    return None


@contextmanager
def add_restore_order(data: Path, cluster: str) -> Iterator[None]:
    """Add advice to a :class:`WorkerNotAsked` error that is raised in this context: the order in which to restore lost
    clusters."""
    try:
        yield
    except WorkerNotAsked as error:
        raise WorkerNotAsked(
            f"{error}. If several clusters are lost, mind the order. {order_advice(cluster, beside_in(data))}"
        ) from None


def beside_in(data: Path) -> list[SiblingBackup]:
    """Return the backups that lay beside the one from which the directory ``data`` was restored.

    Return an empty list if the store in ``data`` cannot be read.
    """
    with suppress(StoreUnusable):
        return beside_of(read_meta(data, (BESIDE,)).get(BESIDE))
    return []
