"""Plan and judgement of one topic in a reclaim: what comes back of its lives, and what does not, in words.

:func:`lives_of` compares what this store has of a topic with the copies of all peers, for the pure plan
(:mod:`.reclaim_plan`). The other functions name what stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from replicator.backup import new_lives
from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import Lives, OwnLog, PeerCopy, plan_lives
from replicator.engine.engine import Engine
from replicator.engine.lineage import Deletion, Judgement, OwnTopic, RemoteCopy, judge
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position


def names_of(peers: Sequence[Peer]) -> list[str]:
    return sorted({topic for peer in peers for topic in peer.copies})


def _copies(name: str, peers: Sequence[Peer]) -> dict[str, Sequence[PeerCopy]]:
    return {peer.name: peer.copies[name] for peer in peers if name in peer.copies}


def lives_of(engine: Engine | None, name: str, peers: Sequence[Peer], rewritten: frozenset[str]) -> Lives:
    """Plan what comes back of all lives of the topic ``name``. ``engine`` is None if there is no store yet."""
    topic, copies = None if engine is None else engine.find(name), _copies(name, peers)
    own = _own_topic(engine, name, peers)

    def judged(_: str, copy: PeerCopy) -> Judgement:
        return judge(RemoteCopy(copy.incarnation, copy.mark, copy.store, copy.deleted), own)

    if engine is None or topic is None:
        return plan_lives(name, None, copies, rewritten, judged)
    mark, log = topic.origins.high_water(engine.cluster), topic.log
    own_last = BEFORE_ALL if mark is None else mark.position
    here = OwnLog(
        topic.incarnation,
        own_last,
        tuple(log.runs_between(BEFORE_ALL, log.last)),
        log.trimmed,
        tuple(log.trimmed_ends),
        tuple(topic.origins.left_out(engine.cluster)),
        replaceable=_is_replaceable(engine, topic, own_last, own),
        joins=new_lives.can_join(engine, topic, peers),
    )
    return plan_lives(name, here, copies, rewritten, judged)


def _own_topic(engine: Engine | None, name: str, peers: Sequence[Peer]) -> OwnTopic:
    """Return what this store has of the topic ``name``, for :func:`judge`. ``engine`` is None if there is no store
    yet."""
    own = OwnTopic("", None, lambda _: False) if engine is None else engine.origin_stores.own_topic(name)
    deleted = dict(own.deleted)
    for peer in peers:  # a deletion that one peer knows counts for the copies at all peers
        for life, position in peer.deletions.get(name, {}).items():
            deleted[life] = max(position, deleted.get(life, BEFORE_ALL))
    topic = None if engine is None else engine.find(name)
    earlier: list[int] = []
    if topic is not None:
        ledgers = [*(ledger for ledger, _ in topic.log.ledgers()), *(end.ledger for end in topic.log.trimmed_ends)]
        copies = (copy for peer in peers for copy in peer.copies.get(name, ()))
        lives = sorted({copy.incarnation for copy in copies} | {topic.incarnation})
        earlier = [
            life
            for life, following in pairwise(lives)
            if life < topic.incarnation and any(life < ledger < following for ledger in ledgers)
        ]
    return replace(own, deleted=deleted, earlier=earlier)


def _is_replaceable(engine: Engine, topic: Topic, own_last: Position, own: OwnTopic) -> bool:
    """Return whether the topic may be deleted where a peer has a later life of it.

    It may if this life was deleted on purpose, as this store or a peer remembers. It also may if nothing is lost by
    that: it has no messages of any cluster, no subscriptions, and no policies or permissions of its own.

    A later life alone does not prove that this life was deleted. The store that made it can have lost this life, as by
    a snapshot of its disk, or was an empty store, used while this store was away. Links would not bring back what only
    this store has, such as messages that their own cluster trimmed.
    """
    deleted_upto = own.deleted.get(topic.incarnation)
    if deleted_upto is not None and own_last <= deleted_upto:
        return True
    has_settings = topic.policies.own is not None or topic.name in engine.catalog.grants.all()
    return not topic.origins.message_vector() and not topic.subscriptions and not has_settings


def out_of_place(engine: Engine, name: str, peers: Sequence[Peer], lives: Lives) -> list[str]:
    """Return in words the messages of the newest life that peers have and that have no place in the log any more.

    They were lost before the log went on, so later messages lie at or above their positions. Messages that ``lives``
    plans to append do not count as lost.
    """
    topic = engine.find(name)
    if topic is None or topic.incarnation in lives.apart:  # that is named already
        return []
    holes = topic.origins.left_out(engine.cluster)
    planned = [(plan.after, plan.upto) for plan in lives.plans if plan.incarnation == topic.incarnation]
    return [
        f"{name}: {peer.name} has messages of {engine.cluster} up to {copy.mark} that were lost here before the log "
        "went on"
        for peer in peers
        for copy in peer.copies.get(name, ())
        if copy.incarnation == topic.incarnation
        and copy.incarnation not in lives.deleted.get(peer.name, ())
        and not topic.log.had(copy.mark)
        and not any(after < copy.mark <= upto for after, upto in (*holes, *planned))
    ]


def deleted_lives(
    engine: Engine | None, name: str, lives: Lives, peers: Sequence[Peer], *, others_come_back: bool
) -> list[str]:
    """Return in words each life of the topic ``name`` that was deleted on purpose and stays at peers, the oldest first.

    ``others_come_back`` says that messages of other lives of the topic come back.
    """
    here = None if engine is None else engine.find(name)
    found: list[str] = []
    for life in sorted({each for deleted in lives.deleted.values() for each in deleted}):
        last = {
            peer.name: copy.mark
            for peer in peers
            if life in lives.deleted.get(peer.name, ())
            for copy in peer.copies.get(name, ())
            if copy.incarnation == life
        }
        found.append(
            f"{name} was deleted on purpose up to {max(last.values())} ({', '.join(sorted(last))} still "
            f"{'has a copy' if len(last) == 1 else 'have copies'}): nothing of that life comes back"
            + ("; other lives of it do" if others_come_back else "")
            + (_still_here(here) if here is not None and _has_life(engine, here, life) else "")
        )
    return found


def deletions_told(engine: Engine, name: str, lives: Lives, peers: Sequence[Peer]) -> list[Deletion]:
    """Return the deletions of lives of the topic ``name`` that this cluster did on purpose, as ``peers`` remember them.

    One peer can know a deletion that the others and this store do not know. Once this store knows it, its links judge
    all copies alike, and tell the deletion on.
    """
    upto: dict[int, Position] = {}
    for peer in peers:
        for life, position in peer.deletions.get(name, {}).items():
            if any(life in each for each in lives.deleted.values()):
                upto[life] = max(position, upto.get(life, BEFORE_ALL))
    at_ms = engine.writer.wall_clock_ms()
    return [Deletion(name, engine.cluster, life, position, at_ms) for life, position in sorted(upto.items())]


def _still_here(topic: Topic) -> str:
    """Return the remark that this store has a deleted life of ``topic``, and what another deletion would delete."""
    return (
        f"; this store has it again: to delete the topic again would delete {topic.reading.messages_stored()} messages "
        f"here, of all its lives and clusters, and {len(topic.subscriptions)} subscriptions"
    )


def _has_life(engine: Engine | None, topic: Topic, life: int) -> bool:
    if engine is None:
        return False
    return topic.incarnation == life or life in engine.origin_stores.earlier_lives(topic)


def unasked(peer: str, cluster: str) -> str:
    """Return the remark about a cluster that a reclaim of ``cluster`` did not ask."""
    return f"{peer} was not asked: what only it has of {cluster}'s messages"


def answer_later(peer: str, cluster: str) -> str:
    """Return the remark about a cluster with messages of ``cluster`` that answered only after a reclaim."""
    return f"{peer} was asked later: what only it has of {cluster}'s messages halts topics of the link to it, by name"


def not_asked(cluster: str, without: frozenset[str]) -> list[str]:
    return [unasked(peer, cluster) for peer in sorted(without)]
