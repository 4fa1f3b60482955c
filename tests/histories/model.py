"""Model of a history: the messages that a subscription must get, may get, and must not get again.

The model knows nothing of how clusters are run. A driver tells it what was confirmed, and asks it to judge what came.
If a history leaves open what is right, the model allows every answer that may be right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import product

from histories.judging import Judging
from histories.records import Sent, Subscription, Topic
from histories.shapes import JOINED, SHAPES, Shape


class Model(Judging):
    """Everything that the model knows of a history so far."""

    def __init__(self, shape: Shape, *, deduplication: bool = False, joins: bool = False) -> None:
        """``joins`` says that another cluster can join, if the shape allows that."""
        self.shape, self.deduplication = shape, deduplication
        self.joining = SHAPES[JOINED[shape.name]].clusters[-1] if joins and shape.name in JOINED else None
        """Name of the cluster that can join; None if none can."""
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[tuple[str, str, str | None], Subscription] = {}
        self.down: set[str] = set()
        self.paused: set[tuple[str, str]] = set()
        """Links that carry nothing, because they are paused or dropped."""
        self.dropped: set[tuple[str, str]] = set()
        """Links that were taken out of the topology."""
        self.held: dict[tuple[str, str], set[str]] = {}
        """For each link that carries nothing, topics with messages that its destination surely lacks."""
        self.without_postgres: set[str] = set()
        self.backed_up: set[str] = set()
        self.damaged = False
        """Whether a block was damaged, and perhaps has not been read since."""
        self.partitions = 0
        """Number of partitions of the topic that has some; 0 if there is no such topic yet."""
        self.moved: dict[str, str] = {}
        """For each cluster whose clients are served elsewhere, the cluster that serves them."""
        self.losers: set[str] = set()
        """Clusters that lost a disk, or went back to an earlier state of it."""
        self.behind: set[str] = set()
        """Clusters that lost a disk, and perhaps lack messages of others until all is at rest."""
        self._highest: dict[tuple[str, str], int] = {}
        """For each cluster and producer, the highest sequence id that the cluster stored as a message of its own."""

    # What happened.

    def sending(
        self,
        topic: str,
        origin: str,
        uid: str,
        key: str | None = None,
        *,
        delayed: bool = False,
        chunked: bool = False,
    ) -> None:
        """Record that a producer is about to send a message. It may be delivered from now on."""
        found = self.topic(topic)
        number = found.numbers[origin] = found.numbers.get(origin, 0) + 1
        life = found.lives.get(origin, 0)
        found.sent[uid] = Sent(uid, topic, origin, number, key, False, life, delayed, chunked=chunked)

    def confirmed(self, topic: str, uids: Iterable[str], at: str | None = None) -> None:
        """Record that a cluster confirmed messages. Every existing subscription must get them.

        ``at`` names the cluster if another one may have refused the same messages before.
        """
        found = self.topic(topic)
        for uid in uids:
            found.sent[uid].published_at.update(filter(None, [at]))
            if found.sent[uid].confirmed:  # what counts for one entry of a message counts for all
                continue
            found.sent[uid].confirmed = True
            found.absent.discard(at or found.sent[uid].origin)
            if at is not None:
                found.sent[uid].origin = at
            else:
                for link in self.paused - self.dropped:
                    if link[0] == found.sent[uid].origin and not self.shape.forwards:
                        self.held.setdefault(link, set()).add(topic)
            for subscription in self.of_topic(topic):
                if not subscription.deleted:
                    subscription.wanted.add(uid)
                    for cluster in subscription.clusters:
                        subscription.kept.setdefault(cluster, set()).add(uid)

    def stored(self, cluster: str, producer: str, number: int) -> None:
        """Record that ``cluster`` stored a message with the sequence id ``number`` as its own."""
        key = (cluster, producer)
        self._highest[key] = max(number, self._highest.get(key, number))

    def of_topic(self, topic: str) -> list[Subscription]:
        return [each for each in self.subscriptions.values() if each.topic == topic]

    def find(self, topic: str, name: str, cluster: str, *, replicated: bool) -> Subscription | None:
        return self.subscriptions.get((topic, name, None if replicated else cluster))

    def made_anew(self, topic: str, cluster: str) -> None:
        """Record that a topic, or the partitions of one, was made again at a cluster that had deleted it."""
        self.topic(topic).absent.discard(cluster)

    def subscribed(self, topic: str, name: str, cluster: str, *, replicated: bool, earliest: bool) -> Subscription:
        """Record that a client created a subscription, or connected to an existing one."""
        home = None if replicated else cluster
        self.topic(topic).absent.discard(cluster)
        found = self.subscriptions.get((topic, name, home))
        if found is None:
            found = Subscription(topic, name, home, {cluster}, untold=cluster)
            self.subscriptions[topic, name, home] = found
            if earliest:
                sent, open_ = self.topic(topic).sent, self._perhaps_trimmed(topic)
                found.wanted = {
                    uid for uid, each in sent.items() if each.confirmed and not each.gone and uid not in open_
                }
                self._excuse_earlier_lives(found)
            self._excuse_unreached(found)
        elif not earliest:
            self._excuse_unreached(found)
            if not any(self.shape.tells(other, cluster) for other in found.made):
                # Nobody can tell this cluster of the subscription: here it begins now.
                found.excused.setdefault(cluster, set()).update(found.wanted)
            elif cluster not in found.clusters:
                # Perhaps it was not told yet. Then origins that the others do not know begin here now.
                sent = self.topic(topic).sent
                unknown = {uid for uid in found.wanted if not self._is_known(sent[uid].origin, found.made)}
                found.excused.setdefault(cluster, set()).update(unknown)
        found.clusters.add(cluster)
        found.made.add(cluster)
        return found

    def subscribed_at(
        self, topic: str, name: str, cluster: str, *, replicated: bool, before: Collection[str], behind: Collection[str]
    ) -> None:
        """Record that an operator created a subscription at a position in the log of ``cluster``.

        ``before`` and ``behind`` are the messages that a reader got at ``cluster``, on both sides of the position.
        Messages that came to the log later are behind the position.
        """
        found = Subscription(topic, name, None if replicated else cluster, {cluster}, made={cluster}, untold=cluster)
        self.subscriptions[topic, name, found.home] = found
        sent, void = self.topic(topic).sent, self.topic(topic).void.get(cluster, set())
        cut = {uid for uid in behind if sent[uid].chunked}  # the place may be in the middle of one
        found.passed_over = bool(cut)
        found.wanted = {
            uid
            for uid, each in sent.items()
            if each.confirmed and not each.gone and self.shape.reaches(each.origin, cluster)
        }
        found.forget({*before, *void, *cut, *self._perhaps_trimmed(topic)})
        self._excuse_earlier_lives(found)
        self._excuse_unreached(found)
        here = {sent[uid].origin for uid in (*before, *behind)}
        for other in self.shape.clusters:
            if other != cluster:  # the place says nothing of origins of which nothing is before it or behind it
                found.excused[other] = {uid for uid in found.wanted if sent[uid].origin not in here}
        if not replicated:
            found.told[cluster] = {uid for uid in before if not sent[uid].chunked}

    def _is_known(self, origin: str, clusters: Iterable[str]) -> bool:
        """Return whether messages of ``origin`` are copied to one of the clusters."""
        return any(self.shape.reaches(origin, cluster) for cluster in clusters)

    def trims(self, topic: str) -> None:
        """Record that retention deletes consumed messages of the topic from now on."""
        found = self.topic(topic)
        found.trims = True
        for subscription in self.of_topic(topic):
            for cluster in subscription.clusters:
                subscription.kept.setdefault(cluster, set()).update(subscription.wanted - found.trimmed)

    def keeps(self, topic: str) -> None:
        """Record that retention deletes nothing of the topic from now on. Earlier messages may be deleted already."""
        self.topic(topic).trimmed = self._perhaps_trimmed(topic)
        self.topic(topic).trims = False

    def _perhaps_trimmed(self, topic: str) -> set[str]:
        """Return the messages that retention may have deleted after they were consumed."""
        found = self.topic(topic)
        return set(found.sent) if found.trims else found.trimmed

    def ages(self, topic: str, *, may: bool) -> None:
        """Record whether messages of the topic ``may`` count as consumed because of their age, from now on.

        While they may, no message has to come. Messages that were sent before this call may come or not.
        """
        self.topic(topic).ages = may
        for subscription in self.of_topic(topic):
            self.passed_over(subscription)

    def _excuse_earlier_lives(self, found: Subscription) -> None:
        topic = self.topic(found.topic)
        found.forget([uid for uid, sent in topic.sent.items() if sent.life < topic.lives.get(sent.origin, 0)])

    def _excuse_unreached(self, found: Subscription) -> None:
        """Leave it open whether messages come if a link of their origin was dropped.

        A cluster that does not receive an origin does not say at which of its messages the subscription starts. So the
        start at another cluster counts.
        """
        live = replace(self.shape, links=tuple(link for link in self.shape.links if link not in self.dropped))
        found.startless.update(
            origin
            for origin, cluster in product(self.shape.clusters, repeat=2)
            if self.shape.reaches(origin, cluster) and not live.reaches(origin, cluster)
        )
        sent = self.topic(found.topic).sent
        found.forget([uid for uid in found.wanted if sent[uid].origin in found.startless])

    def acknowledged(
        self, subscription: Subscription, cluster: str, uids: Collection[str], *, confirmed: bool = True
    ) -> None:
        """Record that ``cluster`` confirmed the acknowledgement of the messages ``uids``.

        An acknowledgement that is not ``confirmed`` may be lost. This happens while clusters merge the starts of a
        subscription that two of them made: the merge moves the subscription, and its consumers connect again.
        """
        if not confirmed and subscription.untold is not None:
            subscription.forget(uids)
            return
        subscription.acknowledged.update(uids)
        if subscription.unsettled_seek in (None, cluster):
            subscription.told.setdefault(cluster, set()).update(uids)
            subscription.here.setdefault(cluster, set()).update(uids)

    def passed_over(self, subscription: Subscription, uids: Collection[str] | None = None) -> None:
        """Record that an operator skipped, cleared or expired messages. They need not come any more."""
        subscription.passed_over = True
        subscription.forget(set(subscription.wanted) if uids is None else uids)

    def sought(self, subscription: Subscription, cluster: str, *, after: int | None) -> None:
        """Record that a client moved the subscription to a place after ``after`` messages of the topic, in the order in
        which they were sent; None means the end.

        The others must come. It is open whether the first ``after`` ones come: their order in a log is not known. The
        seek affects the messages that ``cluster`` knows. Origins that the cluster does not know stay as they are.
        """
        topic = self.topic(subscription.topic)
        reaching = {uid for uid, sent in topic.sent.items() if self.shape.reaches(sent.origin, cluster)}
        subscription.forget(uid for uid, sent in topic.sent.items() if cluster in sent.published_at - {sent.origin})
        later = reaching.intersection(list(topic.sent)[after:])
        is_whole = cluster not in self.behind
        surely = {uid for uid in later if topic.sent[uid].origin == cluster or (topic.sent[uid].copied and is_whole)}
        for known in (*subscription.told.values(), *subscription.here.values(), subscription.safe):
            known -= reaching
        if after is not None and subscription.unsettled_seek in (None, cluster):
            subscription.forget(reaching - (later if is_whole else surely))
            subscription.passed_over |= any(topic.sent[uid].chunked for uid in reaching - later)  # perhaps over a part
            perhaps_trimmed = self._perhaps_trimmed(topic.name)
            subscription.forget(surely & subscription.acknowledged & perhaps_trimmed)
            subscription.acknowledged -= surely
            subscription.wanted |= {
                uid for uid in surely - perhaps_trimmed if topic.sent[uid].confirmed and not topic.sent[uid].gone
            }
            self._excuse_earlier_lives(subscription)
        else:
            subscription.forget(reaching)
        subscription.unsettled_seek = cluster

    def unsubscribed(self, subscription: Subscription) -> None:
        subscription.deleted = True
        subscription.forget(set(subscription.wanted))
        subscription.told.clear()

    def topic_deleted(self, topic: str, cluster: str) -> None:
        """Record that a topic was deleted at ``cluster``. No link carries the deletion."""
        found = self.topic(topic)
        found.lives[cluster] = found.lives.get(cluster, 0) + 1
        found.void[cluster] = set(found.sent)
        found.absent.add(cluster)
        for held in self.held.values():
            held.discard(topic)
        lost = self._lose(found, cluster)
        for key, subscription in list(self.subscriptions.items()):
            if subscription.topic != topic:
                continue
            if subscription.home == cluster:
                del self.subscriptions[key]
            else:
                subscription.excluded.add(cluster)
                subscription.told.pop(cluster, None)
                subscription.here.pop(cluster, None)
                # What only lay there is gone with it; what was copied still comes elsewhere.
                subscription.forget(lost)
                subscription.gone_at(cluster)
        self._cut_off(found)

    def _lose(self, topic: Topic, cluster: str, *, unreadable: str | None = None) -> set[str]:
        """Record that ``cluster`` no longer has its own messages of the topic.

        Return those of them that perhaps no cluster has. The copies at ``unreadable`` do not count.
        """
        having = [name for name in self.shape.clusters if name not in (cluster, unreadable, *self.behind)]
        having = [name for name in having if self.shape.reaches(cluster, name)]

        def is_elsewhere(sent: Sent) -> bool:
            return sent.copied and any(sent.uid not in topic.void.get(name, ()) for name in having)

        lost = {sent.uid for sent in topic.sent.values() if sent.origin == cluster and not is_elsewhere(sent)}
        for uid in lost:
            topic.sent[uid].gone = True
        return lost

    def _cut_off(self, topic: Topic) -> None:
        """Leave it open whether clusters that are behind get messages that an origin published before it deleted the
        topic. Those are only at other clusters, and no link carries them from there."""
        for cluster in self.behind:
            earlier = {
                uid
                for uid, sent in topic.sent.items()
                if sent.origin != cluster and sent.life < topic.lives.get(sent.origin, 0)
            }
            if earlier:
                topic.void.setdefault(cluster, set()).update(earlier)

    def joined(self) -> None:
        """Record that the cluster that can join has joined, with links from and to each other one.

        The new cluster gets all messages that the others still have.
        """
        joined, self.joining = self.joining, None
        assert joined is not None
        self.shape = SHAPES[JOINED[self.shape.name]]
        self.behind.add(joined)
        for topic in self.topics.values():
            self._cut_off(topic)

    def failed_over(self, source: str, to: str, *, planned: bool) -> None:
        """Record that ``to`` serves the clients of ``source``. A planned failover leaves nothing behind."""
        self.moved[source] = to
        if planned:
            for subscription in self.subscriptions.values():
                if subscription.home is None and not subscription.deleted and to not in subscription.excluded:
                    subscription.told.setdefault(to, set()).update(subscription.here.get(source, ()))

    def failed_back(self, to: str) -> None:
        """Record that the cluster ``to`` serves its own clients again, after a planned failback.

        Without a way back for acknowledgements, ``to`` does not learn what was consumed elsewhere.
        """
        by = self.moved.pop(to)
        if not self.shape.tells(by, to):
            return
        for subscription in self.subscriptions.values():
            if subscription.home is None and not subscription.deleted and to not in subscription.excluded:
                subscription.told.setdefault(to, set()).update(subscription.here.get(by, ()))

    def disk_lost(self, cluster: str, *, unreadable: str | None = None) -> None:
        """Record that ``cluster`` lost its disk, and takes back its messages from other clusters.

        Call this again if one of these clusters deletes a topic meanwhile. ``unreadable`` names a cluster that cannot
        give back all messages, because of a damaged block.
        """
        self.losers.add(cluster)
        self.behind.add(cluster)
        gone: set[str] = set()
        for topic in self.topics.values():
            topic.trims |= bool(topic.trimmed)  # the cluster perhaps has an earlier policy again
            gone |= self._lose(topic, cluster, unreadable=unreadable)
            self._cut_off(topic)
        for key, subscription in list(self.subscriptions.items()):
            if subscription.home == cluster:
                del self.subscriptions[key]
                continue
            subscription.forget(gone)
            if subscription.home is not None:
                continue
            if subscription.clusters == {cluster}:
                subscription.deleted = True  # no other cluster may have heard of it
            for known in (subscription.told, subscription.here):
                if cluster in known:
                    known[cluster] &= subscription.safe
            subscription.gone_at(cluster)

    def settled(self) -> None:
        """Record that all clusters and links ran until nothing moved.

        Clusters behind a cluster's links know now what that cluster knows.
        """
        self.behind.clear()
        self.held.clear()
        for topic in self.topics.values():
            for sent in topic.sent.values():
                sent.copied = sent.confirmed and not sent.gone
            self._came_back(topic)
        for subscription in self.subscriptions.values():
            subscription.unsettled_seek = subscription.untold = None
            if subscription.home is not None or subscription.deleted:
                continue
            for source, uids in list(subscription.here.items()):
                for cluster in self.shape.clusters:
                    if cluster not in subscription.excluded and self.shape.tells(source, cluster):
                        subscription.told.setdefault(cluster, set()).update(uids)
                subscription.safe |= uids

    def _came_back(self, topic: Topic) -> None:
        """Record that a cluster that made a deleted topic anew has again the messages that other clusters have."""
        if self.shape.forwards or topic.trims or topic.trimmed:
            return
        for cluster, void in topic.void.items():
            for uid in list(void) if cluster not in topic.absent else ():
                sent = topic.sent[uid]
                is_there = sent.confirmed and not sent.gone and sent.life == topic.lives.get(sent.origin, 0)
                if is_there and sent.origin not in self.losers and (sent.origin, cluster) in self.shape.links:
                    void.discard(uid)
