"""Order in which clusters are restored that were lost together, each with a backup. Pure but for reading manifests.

A backup of cluster B has copies of A's messages. Where it has more of them than A's own backup, A can take them back
from B, so B has to be restored first, and run, before A is.

1. Each backup is of one moment. So of two clusters at most one has more of the other's messages: the one whose backup
   was made later. Marks of origins in the manifests say which, whatever the clocks of the two machines said.
2. A manifest of an older version has no marks. Then the time at which it was made decides.
3. First comes the newest backup of whose cluster no other one has more, and so on with those that are left.
4. The first cluster is restored without the others. Each next one takes back from those that run by then.
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
from replicator.engine.restored import BESIDE, BackupBeside, beside_of, order_advice
from snapshots.position import BEFORE_ALL, Position


def has_more(of: Manifest, other: Manifest) -> bool:
    """Return whether ``other`` has messages of the cluster of backup ``of`` which that backup lacks."""
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


def restored_beside(destination: Destination, chosen: Manifest) -> list[BackupBeside]:
    """Return ``chosen`` and the newest backup of each other cluster at a destination, in the order to restore them.

    Raises :class:`DestinationUnavailable`.
    """
    others = [_newest(destination, each) for each in clusters_at(destination) if each != chosen.cluster]
    ordered = order_of([chosen, *(each for each in others if each is not None and _are_linked(chosen, each))])
    return [BackupBeside(each.cluster, each.id, each.made_at_ms) for each in ordered]


def _are_linked(one: Manifest, other: Manifest) -> bool:
    """Return whether one has messages of the other, as far as is known: clusters of two systems may share a place."""
    origins = [{origin for mark in each.topics.values() for origin in mark.marks} for each in (one, other)]
    return not all(origins) or one.cluster in origins[1] or other.cluster in origins[0]


def _newest(destination: Destination, cluster: str) -> Manifest | None:
    manifests = Manifests(destination, cluster)
    for backup in manifests.ids():
        try:
            return manifests.read(backup)
        except DestinationUnavailable:
            raise
        except (BackupDamaged, BackupError):  # an older one may be read
            continue
    return None


@contextmanager
def told_the_order(data: Path, cluster: str) -> Iterator[None]:
    """Add to the error of a cluster that does not answer in which order lost clusters are restored."""
    try:
        yield
    except WorkerNotAsked as error:
        raise WorkerNotAsked(f"{error}. {order_advice(cluster, beside_in(data))}") from None


def beside_in(data: Path) -> list[BackupBeside]:
    """Return the backups beside the one that was restored into a directory; none if it cannot be read."""
    with suppress(StoreUnusable):
        return beside_of(read_meta(data, (BESIDE,)).get(BESIDE))
    return []
