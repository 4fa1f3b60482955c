"""Return of an operator to an older store of a cluster, after a newer store took its place.

Such a store is a volume that was not mounted for a while: a worker was started without it, on an empty directory. The
older store has what was confirmed before. The newer store has what was confirmed since, and what peers had. A reclaim
on the older store takes over from the newer one: from its directory, or from the copies at peers. Then the older store
gets a new id (:meth:`~replicator.engine.topics.origin_stores.OriginStores.take_place`). Other clusters take it for the
newest one, and the newer store does not serve any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import TopicPlan
from replicator.engine.lineage import StoreLine
from replicator.pipeline.errors import UnexpectedAnswer
from snapshots.position import BEFORE_ALL


def newer_stores(own: StoreLine, peers: Sequence[Peer]) -> list[str]:
    """Return the ids of stores of this cluster whose place ``own`` must take after a reclaim.

    These are the newer stores that peers heard of, and the other copy of the store in a directory, unless a peer knows
    that ``own`` is newer.
    """
    told = [peer.newest for peer in peers if peer.newest is not None]
    found = [newest.line.store for newest in told if newest.replaces(own)]
    line = {own.store, *own.predecessors, *own.replaced}
    earlier = {each for newest in told if newest.line.store == own.store for each in newest.earlier}
    for peer in peers:
        if peer.engine is not None and peer.engine.origin_stores.store not in line | earlier:
            found.append(peer.engine.origin_stores.store)
    return list(dict.fromkeys(found))


def lacking_before(peers: Iterable[Peer], plan: TopicPlan, cluster: str) -> list[str]:
    """Return in words which peers lack the last message that this store had before messages of ``plan`` were appended.

    Such a peer has later messages, of the newer store, so no link brings it what only this store had.
    """
    if plan.after == BEFORE_ALL or plan.made_anew:
        return []
    found: list[str] = []
    for peer in peers:
        marks = [copy.mark for copy in peer.copies.get(plan.name, ()) if copy.incarnation == plan.incarnation]
        if peer.engine is not None or not marks or max(marks) <= plan.after:
            continue
        try:
            peer.plane.place(plan.name, cluster, plan.incarnation, plan.after)
        except UnexpectedAnswer as error:
            if error.is_not_found:
                found.append(
                    f"{plan.name}: {peer.name} lacks messages of {cluster} up to {plan.after} that only this store "
                    f"had, and no link brings them there, as {peer.name} has later messages of {cluster}. They stay "
                    "here"
                )
    return found
