"""The topics of one link: which it carries, where each starts, which have stopped, and what is held back for them.

Between the copy state machine and the source's engine; the connection is :mod:`replicator.links.link`'s. A topic that
stopped is looked at again on every connection and every few seconds, and reported once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.lineage import LOST_HERE
from replicator.engine.log.block import BlockKind
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.topic import Topic
from replicator.links.backlog_sum import BacklogSum
from replicator.links.copier import Copier, Start
from replicator.links.gap_ending import CopyKeeper, GapEnding, LinkIndex, Stopped
from replicator.links.gaps import Gap, Mark
from replicator.links.holding import Holding
from replicator.links.memory import LinkMemory
from replicator.links.refusals import Refusals
from replicator.links.route import Route, TopicSelection
from replicator.links.start_positions import StartPositions
from snapshots.position import BEFORE_ALL, Position

DELETED_SHOWN_MAX: Final = 1_000
INDEXED_AT_ONCE: Final = 200
"""Topics that each save writes into the index, or a fifth of those that moved: none waits over ten seconds."""
INDEXED_IN_SAVES: Final = 5
OPERATOR: Final = "operator"
"""Name of the actor in the audit log. The paths are for operators only, and do not tell one from another."""
BEING_ASKED: Final = "the destination is being asked what it has of the topic"

log = structlog.get_logger(__name__)


class LinkTopics:
    """Topics of the link ``route`` that leads out of ``engine``: their progress, their gaps, and their halts."""

    def __init__(
        self,
        engine: Engine,
        route: Route,
        index: LinkIndex | None = None,
        on_lost_copy: Callable[[str], None] | None = None,
    ) -> None:
        self.copier = Copier()
        self.memory = LinkMemory(engine, route.link.key)
        self.start_positions = StartPositions(engine, route)
        self.carried = TopicSelection(engine, route)
        self.unsettled: dict[str, None] = {}
        """Topics that wait until the destination's copy is deleted, or is a prefix of the log here."""
        self.ask_again = asyncio.Event()
        """Set to look at :attr:`unsettled` again at once."""
        self.deleted_here: dict[str, None] = {}
        """Topics that were deleted here while the destination has a copy, the newest last."""
        self.lost_here: dict[str, str] = {}
        """Topics that this cluster lost while the destination has a copy, each with the cause in words."""
        self.on_copied: Callable[[str], None] = lambda _: None
        """Called with a topic when the destination got the first blocks of the topic, or of an origin in it."""
        self._origins_told: dict[str, int] = {}
        """For each topic, the number of origins that it had at the last call of :attr:`on_copied`."""
        self._left_alone: set[str] = set()
        """Topics that the destination deleted, and to which the link would bring only markers."""
        self._made_again: set[str] = set()
        """Topics that the destination deleted and made again, so markers alone do not make them."""
        self._made_since: set[str] = set()
        """Topics that the destination made since it was last asked about them: an older answer does not count."""
        self._told_again: set[str] = set()
        """Topics of which the destination has nothing, and whose subscriptions it is told again."""
        self._engine = engine
        self._route = route
        self._index = index
        self._on_lost_copy = on_lost_copy
        self._holding = Holding(engine, route.link)
        self._reported: dict[str, str] = {}
        """For each topic that has stopped, the reason that was logged."""
        self.ending = GapEnding(engine, route, self.memory, self.start_positions, index, self._is_here)
        self._refusals = Refusals()
        self.backlogs = BacklogSum(self.backlog_of)
        self._news: dict[str, None] = {}
        """Topics that moved, stopped or went on since the index was updated, those that waited longest first."""
        for topic in engine.topics():
            if self.carries(topic):
                self._take_up(topic)

    @property
    def destination(self) -> str:
        return self._route.link.destination

    @property
    def origins(self) -> frozenset[str]:
        """Return the clusters whose messages the link carries."""
        return self._route.origins

    @property
    def link_key(self) -> str:
        return self._route.link.key

    def detach(self) -> None:
        """Stop holding back the logs of all topics."""
        for topic in self._engine.topics():
            self._holding.release(topic)

    def topics_over_hold_quota(self) -> list[str]:
        """Return the topics for which the link holds back more from retention than it may."""
        return self._holding.exceeded(self.copier.topics)

    # Choice of topics.

    def carries(self, topic: Topic) -> bool:
        return self.carried.has(topic.name)

    def moved(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> bool:
        """Record that ``blocks`` were appended to ``topic``. Return whether the link has something to copy."""
        if not self.carries(topic):
            return False
        if topic.name not in self.copier.topics:
            if topic.name in self._left_alone and self.start_positions.has_only_markers_for(topic):
                return False
            self._left_alone.discard(topic.name)
            self._take_up(topic)
            if self.memory.mark(topic.topic_id) > BEFORE_ALL:  # carried before: the destination says how far
                self.ask([topic.name])
            return True
        self.backlogs.moved(topic.name)
        copy, origins = self.copier.topics[topic.name], self._route.origins
        carried = any(
            each.header.origin in origins and each.header.kind is not BlockKind.LOCAL_MARKERS for each in blocks
        )
        if carried or topic.log.next_after(copy.last) != blocks[0].position:
            self.copier.topic_moved(topic.name, topic.log.last, origins)
            return True
        # In a mesh most appended blocks came over links. No outgoing link carries them, so none needs to read them.
        self.reached(self.copier.topic_passed(topic.name, topic.log.last))
        return False

    def stayed(self, topic: Topic) -> None:
        """Go on copying ``topic``, whose deletion was refused, from what the destination says that it has.

        Messages that came while the deletion was under way were not read.
        """
        self.ask([topic.name], halted_too=True)  # what was halted was not looked at meanwhile

    def deleted(self, topic: Topic) -> None:
        """Forget ``topic``, whose log was deleted. Note the deletion if the destination has a copy."""
        copy = self.copier.topic_gone(topic.name)
        self._drop(topic.name)
        self.memory.forget(topic.topic_id)
        self.lost_here.pop(topic.name, None)
        self._left_alone.discard(topic.name)
        if copy is not None and copy.sent:
            self._note_deleted(topic.name)

    def look_again(self, name: str) -> None:
        """Start or stop copying the topic ``name``: the clusters of its namespace may have changed.

        A topic that starts waits until the destination has said how much of it is there.
        """
        topic = self._engine.find(name)
        self.carried.look_again(name)
        if topic is None or self.carries(topic) is (name in self.copier.topics):
            return
        if self.carries(topic):
            self._take_up(topic)
            self.ask([name])
        else:
            self._holding.release(topic)
            self.copier.topic_gone(name)
            self._drop(name)

    def _take_up(self, topic: Topic) -> None:
        self.lost_here.pop(topic.name, None)  # from now on the topic's gap reports the loss
        mark = self.memory.mark(topic.topic_id)
        self._holding.begin(topic, mark)
        self.copier.topic_moved(topic.name, topic.log.last, self._route.origins)
        self.backlogs.moved(topic.name)
        if not self.copier.connected:
            self.copier.topics[topic.name].acknowledged = min(mark, topic.log.last)

    def _leave_alone(self, topic: Topic, there: Mapping[str, Mark]) -> bool:
        """Stop carrying a topic that the destination deleted, if the link would create it again with markers only.

        Return whether the link stopped. It carries the topic again once it has a message to bring.
        """
        if there or topic.name in self._made_again or not self.start_positions.has_only_markers_for(topic):
            return False
        self._holding.release(topic)
        self.copier.topic_gone(topic.name)
        self._drop(topic.name)
        self._left_alone.add(topic.name)
        return True

    def _drop(self, name: str) -> None:
        self.carried.look_again(name)
        self.backlogs.forget(name)
        self._origins_told.pop(name, None)
        self.unsettled.pop(name, None)
        self._reported.pop(name, None)
        self._made_since.discard(name)
        self._told_again.discard(name)
        self.ending.forget(name)
        self._refusals.forget(name)

    def _note_deleted(self, name: str) -> None:
        self.deleted_here.pop(name, None)
        self.deleted_here[name] = None
        if len(self.deleted_here) > DELETED_SHOWN_MAX:
            del self.deleted_here[next(iter(self.deleted_here))]

    # Starts and stops.

    def on_connected(self, there: Mapping[str, Mapping[str, Mark]]) -> None:
        """Start all topics at the marks that the destination has. ``there`` has its marks by topic and origin."""
        self.unsettled.clear()
        for name in list(self.copier.topics):
            if (found := self._engine.find(name)) is not None:
                self._leave_alone(found, there.get(name, {}))
        starts: dict[str, Start] = {}
        gaps: dict[str, Gap] = {}
        to_raise: list[str] = []
        unreadable: dict[str, str] = {}
        for name in self.copier.topics:
            topic = self._engine.find(name)
            if topic is None:  # it is being deleted
                continue
            mark = self.memory.mark(topic.topic_id)
            starts[name] = Start(mark)
            try:
                if (gap := self.ending.gap(topic, there.get(name, {}))) is not None:
                    gaps[name] = gap
                elif self.ending.must_ask_destination(topic, there.get(name, {})):
                    to_raise.append(name)
                else:
                    starts[name] = self._start(topic, there.get(name, {}), mark)
            except EngineError as error:  # such as a damaged block; other topics go on
                unreadable[name] = str(error)
        self.copier.on_connected(starts)
        for name in starts:
            self._hold(name)
        for name, gap in gaps.items():
            self.found_gap(name, gap)
        for name, reason in unreadable.items():
            self.unsettled[name] = None
            self.halt(name, reason)
        self.ask(to_raise)
        self.lost_here.clear()
        for name, marks in there.items():
            if self._engine.find(name) is None:
                self._note_gone(name, marks.get(self._engine.cluster))
        if self.lost_here:
            such_as, cause = next(iter(self.lost_here.items()))
            log.error(
                "the destination has topics that were lost here",
                link=self.link_key,
                topics=len(self.lost_here),
                such_as=such_as,
                cause=cause,
            )

    def _note_gone(self, name: str, theirs: Mark | None) -> None:
        """Record a topic that this cluster no longer has while the destination has a copy. It was deleted here, or
        lost."""
        if theirs is not None and theirs.store is not None:  # an earlier version does not report which life this is
            judgement, cause = self.start_positions.judged(name, theirs)
            if judgement in LOST_HERE:
                if len(self.lost_here) < DELETED_SHOWN_MAX:
                    self.lost_here[name] = cause
                return
        self._note_deleted(name)

    async def on_restore(self, restore_id: str) -> None:
        """Note that the destination was restored from a backup, or that a reclaim was run on it, if that is news.

        It may have lost subscriptions, and what its own consumers had acknowledged. Other clusters tell it again.
        """
        if restore_id == self.memory.restore_id:
            return
        log.warning(
            "the destination was restored from a backup, or a reclaim was run on it",
            link=self.link_key,
            restore=restore_id,
        )
        if self._on_lost_copy is not None:
            for name in self.copier.topics:
                self._on_lost_copy(name)
        await self.memory.note_restore(restore_id)

    def gap_of(self, name: str) -> Gap | None:
        copy = self.copier.topics.get(name)
        return None if copy is None else copy.gap

    def found_gap(self, name: str, gap: Gap) -> None:
        """Halt topic ``name`` at ``gap``. If the link's policy says how to end the gap, end it at once."""
        self._halt_at(name, gap)
        self.unsettled[name] = None
        if gap.allows(self._route.link.on_gap):
            self.ask_again.set()

    def refused(self, name: str, reason: str, *, seconds_max: float) -> None:
        """Halt a topic that the destination refused. The refusal may end: ask the destination at once, and then after
        pauses that grow to ``seconds_max``."""
        if name not in self.copier.topics:  # it was deleted meanwhile
            return
        self.unsettled[name] = None
        loop = asyncio.get_running_loop()
        seconds = self._refusals.note(name, reason, loop.time(), seconds_max)
        loop.call_later(seconds, self.ask_again.set)
        self.halt(name, reason)

    def ask(self, names: Iterable[str], *, halted_too: bool = False) -> None:
        """Halt topics until the destination was asked what it has of them.

        With ``halted_too``, ask also about topics that are halted already. They keep the reason of their halt.
        """
        for name in names:
            copy = self.copier.topics.get(name)
            if copy is None or (copy.halted is not None and not halted_too):
                continue
            if copy.halted is None:
                self.copier.on_halted(name, BEING_ASKED)
            self.unsettled[name] = None
            self.ask_again.set()

    async def watch_created_topics(self, next_made: Callable[[], Awaitable[str]]) -> None:
        """Ask the destination about each topic that it makes and that the link brought before.

        The destination deleted such a topic in between. Without the question, the link would copy it again only with
        its next message. ``next_made`` waits until the destination makes a topic, and returns the name.
        """
        while True:
            name = await next_made()
            if name in self._left_alone and (topic := self._engine.find(name)) is not None:
                self._left_alone.discard(name)
                self._take_up(topic)
            elif name not in self._origins_told:
                continue
            self.ask([name], halted_too=True)
            if name in self.copier.topics:
                self._made_since.add(name)

    def note_question(self, names: Iterable[str]) -> None:
        """Note that the destination is asked about ``names`` from now on."""
        self._made_since.difference_update(names)

    def note_made_again(self, found: Iterable[str], asked: Collection[str]) -> None:
        """Record which topics the destination deleted and made again: all, or those among ``asked``."""
        self._made_again.difference_update(asked or tuple(self._made_again))
        self._made_again.update(found)

    def try_again(self, name: str) -> None:
        """Ask the destination about a halted topic, if a reason other than a gap halts it. That reason may be gone."""
        copy = self.copier.topics.get(name)
        if copy is not None and copy.halted is not None and copy.gap is None:
            self.unsettled[name] = None
            self.ask_again.set()

    def to_settle(self) -> list[str]:
        """Return the waiting topics about which the destination must be asked now."""
        now = asyncio.get_running_loop().time()
        return [name for name in self.unsettled if self._refusals.is_due(name, now)]

    def stopped(self) -> dict[str, str]:
        """Return the topics that are not copied, each with the reason.

        Topics that are just being tried again are included. Topics that only wait for an answer are not, as after a
        plan that was given up.
        """
        refused = dict(self._refusals.reasons())
        halted = ((name, copy.halted) for name, copy in self.copier.topics.items())
        return refused | {name: reason for name, reason in halted if reason is not None and reason != BEING_ASKED}

    def halt(self, name: str, reason: str, gap: Gap | None = None) -> None:
        if name not in self.copier.topics:
            return
        self.copier.on_halted(name, reason, gap)
        self._news[name] = None
        if self._reported.get(name) != reason:
            self._reported[name] = reason
            kind = "halted" if gap is None else f"gap: {gap.kind}"
            log.error(
                "link halted a topic",
                cluster=self._engine.cluster,
                to=self._route.link.destination,
                topic=name,
                kind=kind,
                reason=reason,
            )

    def _halt_at(self, name: str, gap: Gap) -> None:
        """Halt the topic because of ``gap``."""
        told = self.ending.placed(name, gap)
        self.halt(name, told.detail, told)

    async def settle(
        self, name: str, there: Mapping[str, Mark], policy: str, keeper: CopyKeeper, *, asked: bool = False
    ) -> bool:
        """Look again at a waiting topic, now that the destination said what it has. Return whether it goes on.

        End its gap if ``policy`` does. ``asked`` is True if an operator chose the policy."""
        topic = self._engine.find(name)
        if topic is None or name not in self.unsettled or name not in self.copier.topics:
            self.unsettled.pop(name, None)
            return False
        if self._leave_alone(topic, there):
            return False
        mark = self.memory.mark(topic.topic_id)
        try:
            outcome = await self.ending.end(topic, there, self.gap_of(name), policy, keeper, asked=asked)
            if isinstance(outcome, Stopped):
                if outcome.gap is not None:
                    self._halt_at(name, outcome.gap)
                elif outcome.reason:
                    self.halt(name, outcome.reason)
                return False
            start = self._start(topic, outcome, mark)
        except EngineError as error:  # such as a damaged block; the topic waits, and other topics go on
            self.halt(name, str(error), self.gap_of(name))
            return False
        if name in self._made_since:
            self.ask_again.set()
            return False
        del self.unsettled[name]
        self._origins_told.pop(name, None)  # the destination may have another copy by now
        self._news[name] = None
        if name not in self._refusals:
            self._goes_on(name)
        self.copier.on_resumed(name, start, probing=name in self._refusals)
        self._hold(name)
        return True

    def _is_here(self, topic: Topic) -> bool:
        """Return whether the topic still exists and the link still carries it."""
        return self._engine.find(topic.name) is topic and topic.name in self.copier.topics

    def _start(self, topic: Topic, there: Mapping[str, Mark], mark: Position) -> Start:
        """Return the position at which copying starts. Report a destination that lost a part of its copy.

        The destination had everything up to ``mark``. If it has less, it also lost what its own consumers acknowledged,
        which other clusters must tell it.
        """
        start = self.start_positions.start(topic, there)
        if self._on_lost_copy is None:
            return start
        if self.start_positions.lost(topic, there, mark, accepted=self.memory.accepted(topic.topic_id)):
            link = self._route.link
            log.warning("destination lost a part of its copy", link=link.key, topic=topic.name, has=str(start.read))
            self._on_lost_copy(topic.name)
        elif topic.name not in self._told_again and self.start_positions.has_nothing_again(topic, there):
            self._told_again.add(topic.name)
            self._on_lost_copy(topic.name)
        return start

    def _goes_on(self, name: str) -> None:
        self._refusals.forget(name)
        if self._reported.pop(name, None) is not None:
            link = self._route.link
            log.info("link copies a topic again", cluster=self._engine.cluster, to=link.destination, topic=name)

    def audit(self, action: str, **detail: str) -> None:
        """Record in the audit log that an operator did ``action`` to the link."""
        if self._index is not None:
            self._index.audit(OPERATOR, action, f"link {self._route.link.key}", detail or None)

    # Progress.

    def reached(self, moved: Mapping[str, Position]) -> None:
        """Record that the destination has everything that it should have of the topics in ``moved``, up to these
        positions."""
        for name in moved:
            if name in self._refusals:
                self._goes_on(name)
            self._hold(name)

    def _hold(self, name: str) -> None:
        self.backlogs.moved(name)
        topic, copy = self._engine.find(name), self.copier.topics.get(name)
        if topic is not None and copy is not None:
            self._holding.move(topic, copy.acknowledged)
            if copy.sent:  # else the destination never had anything of it, however far the log was read
                self._told_again.discard(name)
                if self.memory.moved(topic.topic_id, copy.acknowledged):
                    self._news[name] = None
                if len(copy.sent) != self._origins_told.get(name):
                    self._origins_told[name] = len(copy.sent)
                    self.on_copied(name)

    def backlog_of(self, name: str) -> int:
        """Return the number of entries of a topic, of any origin, that the destination has not confirmed."""
        topic, copy = self._engine.find(name), self.copier.topics.get(name)
        if topic is None or copy is None or copy.acknowledged >= copy.last:
            return 0
        return topic.log.entries_between(copy.acknowledged, copy.last)

    async def save(self, *, everything: bool = False) -> None:
        """Write down how far the topics are. Update the index for a part of those that moved, or for ``everything``.

        Raises the store's errors.
        """
        await self.memory.save()
        count = max(INDEXED_AT_ONCE, len(self._news) // INDEXED_IN_SAVES)
        names = list(self._news if everything else islice(self._news, count))
        for name in names:
            del self._news[name]
        self.update_index(names)

    def update_index(self, names: Iterable[str]) -> None:
        """Write into the index how far these topics are."""
        index = self._index
        if index is None:
            return
        for name in names:
            copy = self.copier.topics.get(name)
            if copy is None:
                continue
            stopped = copy.halted not in (None, BEING_ASKED) or name in self._refusals
            state = "gap" if copy.gap is not None else "halted" if stopped else "copying"
            index.link_state(
                self._route.link.key,
                name,
                state=state,
                acknowledged=copy.acknowledged,
                backlog_entries=self.backlog_of(name),
                detail=copy.halted or self._refusals.reason(name),
            )
