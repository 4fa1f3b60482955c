"""Judgement of a history: what a subscription or a reader gets is compared with what the model allows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from histories.records import Sent, Subscription, Topic
from histories.shapes import Shape


class Violation(AssertionError):
    """A worker did something that users must never see."""


class Judging:
    """The model's answers about what must come, may come, and must not come again."""

    shape: Shape
    topics: dict[str, Topic]
    held: dict[tuple[str, str], set[str]]
    losers: set[str]
    behind: set[str]
    _highest: dict[tuple[str, str], int]

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic(name))

    def is_waiting(self, subscription: Subscription, cluster: str) -> bool:
        """Return whether a consumer that connects at ``cluster`` must get a message, even if links carry nothing."""
        topic = self.topic(subscription.topic)
        if topic.trims or cluster in subscription.excluded or subscription.unsettled_seek not in (None, cluster):
            return False
        return any(
            (sent := topic.sent[uid]).origin == cluster and not sent.delayed and uid not in topic.trimmed
            for uid in self.missing(subscription, cluster, ())
        )

    def judge_gap(self, topic: str, origin: str, kind: str) -> None:
        """Raise :class:`Violation` if nothing happened that explains a gap of a link.

        A gap is explained by a lost disk of ``origin``, by retention, or by a deletion of the topic there after it had
        messages. Markers alone do not count as an earlier life of the topic.
        """
        found = self.topic(topic)
        if found.trims or found.trimmed or origin in self.losers:
            return
        lives = found.lives.get(origin, 0)
        if not any(sent.origin == origin and sent.life < lives for sent in found.sent.values()):
            raise Violation(f"a link has a gap {kind} of {topic} and origin {origin}, which lost and deleted nothing")

    def judge_dry_run(self, source: str, to: str, not_received: int | None) -> None:
        """Raise :class:`Violation` if a dry run of a failover hides that ``to`` lacks messages of ``source``.

        ``not_received`` is the number of such messages; None if it is not known.
        """
        if self.held.get((source, to)) and not_received == 0:
            raise Violation(f"a dry run says that {to} has all of {source}, and it lacks messages")

    def judge_read(self, topic: str, cluster: str, uids: Collection[str]) -> None:
        """Raise :class:`Violation` if a read of the whole topic did not give a message that is surely at ``cluster``.

        ``uids`` are the messages that the reader got.
        """
        found = self.topic(topic)
        if found.trims:
            return
        here = {
            uid
            for uid, sent in found.sent.items()
            if (sent.copied or (sent.confirmed and sent.origin == cluster))
            and not sent.gone
            and self.shape.reaches(sent.origin, cluster)
            and (sent.origin == cluster or cluster not in self.behind)
        }
        if missing := sorted(here - set(uids) - found.void.get(cluster, set()) - found.trimmed):
            raise Violation(f"who reads {topic} at {cluster} does not get {', '.join(missing[:10])} ({len(missing)})")

    def judge_compacted(self, topic: str, cluster: str, newest: Collection[str], uids: Collection[str]) -> None:
        """Raise :class:`Violation` if a read of the compacted topic did not give the newest message of a key.

        ``newest`` has the newest message of each key in the log of ``cluster``, and ``uids`` what the reader got.
        """
        if missing := sorted(set(newest) - set(uids)):
            raise Violation(f"who reads {topic} at {cluster} compacted does not get {', '.join(missing[:10])}")

    def judge_delivery(self, subscription: Subscription, cluster: str, uid: str) -> None:
        """Raise :class:`Violation` if ``uid`` must not come to this subscription at this cluster."""
        sent = self.topic(subscription.topic).sent.get(uid)
        where = f"{subscription.topic} {subscription.name} at {cluster}"
        if sent is None:
            raise Violation(f"{where} got {uid!r}, which nobody sent there")
        if uid in subscription.told.get(cluster, ()):
            raise Violation(f"{where} got {uid} again, though it was acknowledged and that was told there")

    def judge_session(self, subscription: Subscription, cluster: str, uids: list[str], *, redelivered: bool) -> None:
        """Raise :class:`Violation` if a consumer got a message twice, or messages of an origin out of order.

        ``uids`` are the messages that the consumer got in one connection, in the order in which they came. In two cases
        the messages may come again, so this judges nothing:

        * ``redelivered``: the consumer asked for messages again.
        * The subscription was moved by a seek at another cluster. When that seek arrives, the consumer starts anew.
        """
        where = f"{subscription.topic} {subscription.name} at {cluster}"
        topic = self.topic(subscription.topic)
        if redelivered or subscription.unsettled_seek not in (None, cluster):
            return
        if len(uids) != len(set(uids)):
            twice = sorted({uid for uid in uids if uids.count(uid) > 1})
            raise Violation(f"{where} got {', '.join(twice[:5])} twice in one session")
        last: dict[tuple[str, int, int], Sent] = {}
        for uid in uids:
            sent = topic.sent[uid]
            if sent.delayed:
                continue
            place = sent.origin, sent.life, sent.lane
            before = last.get(place)
            if before is not None and before.number > sent.number:
                raise Violation(f"{where} got {uid} after {before.uid}, which was sent later")
            last[place] = sent

    def may_be_cut(self, topic: str) -> bool:
        """Return whether clusters may have only some chunks of a message, because its origin deleted or lost it."""
        return any(sent.chunked and sent.gone for sent in self.topic(topic).sent.values())

    def missing(self, subscription: Subscription, cluster: str, got: Collection[str]) -> list[str]:
        """Return the messages that the subscription must have delivered at ``cluster`` by now, and did not deliver."""
        if cluster in subscription.excluded or not subscription.is_at(cluster):
            return []
        topic = self.topic(subscription.topic)
        sent: Mapping[str, Sent] = topic.sent
        if topic.ages:
            return []
        trimmed = self._perhaps_trimmed(topic.name) - subscription.kept.get(cluster, set())
        wanted = subscription.wanted - trimmed - subscription.excused.get(cluster, set())
        return sorted(
            uid
            for uid in wanted - subscription.acknowledged - set(got) - topic.void.get(cluster, set())
            if self.shape.reaches(sent[uid].origin, cluster)
        )

    def judge_duplicate(self, topic: str, cluster: str, producer: str, number: int, uid: str) -> None:
        """Raise :class:`Violation` if ``cluster`` wrongly answered that message ``uid`` is a duplicate.

        In one cluster sequence ids alone decide. Across clusters the content must be the same, too.
        """
        if self.topic(topic).sent[uid].confirmed or number <= self._highest.get((cluster, producer), -1):
            return
        raise Violation(f"{cluster} answered that {uid} is a duplicate, and no cluster has it")
