"""Ends the gaps of one link's topics: carries out a policy at the destination, and records what was done.

:mod:`replicator.links.gaps` judges what is missing. :mod:`replicator.links.link_topics` halts topics and lets them go
on. Invariants (DESIGN §3): 2, a message is passed over only if a policy says so, and that is recorded; 5, messages that
this cluster lost become a hole of its own, which it never claims.

1. If the topic has a gap that the policy does not end, the topic stops there.
2. The policy is carried out. A refusal of the destination is kept, because the gap's text names it. If there is another
   gap then, the topic stops there. Messages that may be passed over are remembered: the destination learns of them only
   with a later block of their origin.
3. The destination learns later lives that need no decision.
4. The destination is asked what it lacks of earlier lives that are here. That can be a gap, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import TopicNotFound
from replicator.engine.topic import Topic
from replicator.links.errors import PeerRefused
from replicator.links.gaps import (
    COPY_ANEW,
    KEEP_BOTH,
    LOST_DATA,
    POLICIES,
    SKIP_AND_RECORD,
    Gap,
    GapPlace,
    Mark,
    PolicyRefused,
)
from replicator.links.memory import LinkMemory
from replicator.links.route import Route
from replicator.links.start_positions import StartPositions
from replicator.peering.lives import NO_SUCH_ROUTE
from snapshots.position import BEFORE_ALL, Position

log = structlog.get_logger(__name__)


class LinkIndex(Protocol):
    """Index in Postgres that records the progress of a link's topics, and what was done to the link and to them."""

    def link_state(
        self, link_key: str, topic: str, *, state: str, acknowledged: Position, backlog_entries: int, detail: str
    ) -> None: ...
    def link_gone(self, link_key: str) -> None: ...
    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None: ...


class CopyKeeper(Protocol):
    """Interface of the destination for decisions about its copies."""

    async def delete_copy(self, topic: str, here: Mapping[str, Mark]) -> None: ...
    async def keep_both(self, topic: str, lives: Mapping[str, Mark]) -> None: ...
    async def lacking(self, topic: str, earlier: Mapping[str, Mark], *, note: bool = False) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class Stopped:
    """Reason why a topic does not go on: a gap, or a text. Both are empty if the topic is gone."""

    gap: Gap | None = None
    reason: str = ""


class GapEnding:
    """Ends gaps for one link. ``is_here`` returns whether the topic still exists and the link still carries it."""

    def __init__(
        self,
        engine: Engine,
        route: Route,
        memory: LinkMemory,
        start_positions: StartPositions,
        index: LinkIndex | None,
        is_here: Callable[[Topic], bool],
    ) -> None:
        self._engine = engine
        self._route = route
        self._memory = memory
        self._start_positions = start_positions
        self._index = index
        self._is_here = is_here
        self._refused: dict[str, tuple[str, PolicyRefused]] = {}
        """For each topic, the kind of its gap, and the destination's last refusal to end it."""
        self._not_asked: set[str] = set()
        """Topics that go on although the destination's version cannot say what it lacks of their earlier lives."""
        self.copied_anew: dict[str, Mapping[str, Mark]] = {}
        """For each topic that the destination is asked to delete now, the marks of the origins complete here."""

    def forget(self, name: str) -> None:
        """Forget the refusals and decisions remembered for a topic that is gone."""
        self._refused.pop(name, None)
        self._not_asked.discard(name)

    def gap(self, topic: Topic, there: Mapping[str, Mark], before: Gap | None = None) -> Gap | None:
        """Return the gap between what is here and what is ``there``; None if there is none.

        What is still missing of the origins in ``before.missing`` stays a part of the gap.
        """
        return self._start_positions.gap(
            topic,
            there,
            copied_before=self._memory.mark(topic.topic_id) > BEFORE_ALL,
            accepted=self._memory.accepted(topic.topic_id),
            also=before.missing if before else (),
        )

    def must_ask_destination(self, topic: Topic, there: Mapping[str, Mark]) -> bool:
        """Return whether the link must tell the destination a later life, or ask it for messages of an earlier one."""
        positions = self._start_positions
        return bool(positions.lives_to_raise(topic, there) or (there and positions.earlier(topic)))

    def placed(self, name: str, gap: Gap) -> Gap:
        """Return ``gap`` with a text that names this link, and what the destination has refused."""
        link = self._route.link
        kind, refused = self._refused.get(name, ("", None))
        place = GapPlace(link.source, link.destination, name, link.name)
        return replace(gap, place=place, refused=refused if kind == gap.kind else None)

    async def end(
        self,
        topic: Topic,
        there: Mapping[str, Mark],
        before: Gap | None,
        policy: str,
        keeper: CopyKeeper,
        *,
        asked: bool,
    ) -> Mapping[str, Mark] | Stopped:
        """End the gap of ``topic`` if ``policy`` does. Return what the destination has then, or why the topic stops.

        ``before`` is the gap that the topic had until now. ``asked`` is True if an operator chose the policy.
        """
        gap = self.gap(topic, there, before)
        if gap is not None:
            outcome = await self._end_gap(topic, gap, there, policy, keeper, asked=asked)
            if isinstance(outcome, Stopped):
                return outcome
            there = outcome
            if (gap := self.gap(topic, there, None if policy == COPY_ANEW else before)) is not None:
                return Stopped(gap)
        if raised := self._start_positions.lives_to_raise(topic, there):
            try:
                await keeper.keep_both(topic.name, raised)
            except PeerRefused as error:
                return Stopped(reason=f"the destination does not take the later life of the topic: {error}")
            if not self._is_here(topic):
                return Stopped()
            there = _raised(there, raised)
        stopped = await self._ask_for_earlier_lives(topic, policy, keeper, asked=asked)
        if stopped is None and not self._is_here(topic):
            stopped = Stopped()
        if stopped is None:
            self._refused.pop(topic.name, None)
        return there if stopped is None else stopped

    async def _end_gap(
        self, topic: Topic, gap: Gap, there: Mapping[str, Mark], policy: str, keeper: CopyKeeper, *, asked: bool
    ) -> Mapping[str, Mark] | Stopped:
        """End ``gap`` by ``policy``. Return the destination's marks afterwards, or why the topic stops."""
        if policy not in POLICIES or not gap.allows(policy, asked=asked):
            return Stopped(gap)
        try:
            there = await self._carry_out(topic, there, policy, keeper)
        except PeerRefused as error:
            self._refused[topic.name] = gap.kind, PolicyRefused(policy, str(error))
            return Stopped(gap)
        self._refused.pop(topic.name, None)
        if policy == SKIP_AND_RECORD:
            await self._record_skip(topic, gap)
        else:
            await self._record(topic, gap, policy)
        if gap.kind == LOST_DATA and policy == SKIP_AND_RECORD:
            await self._note_lost(topic, there[self._engine.cluster].position)
        return there if self._is_here(topic) else Stopped()

    async def _carry_out(
        self, topic: Topic, there: Mapping[str, Mark], policy: str, keeper: CopyKeeper
    ) -> Mapping[str, Mark]:
        """Carry out ``policy`` at the destination, and return its marks afterwards.

        Raise :class:`PeerRefused` if the destination refuses it.
        """
        if policy == KEEP_BOTH:
            lives = self._start_positions.lives_to_raise(topic, there, asked=True)
            await keeper.keep_both(topic.name, lives)
            return _raised(there, lives)
        if policy == COPY_ANEW:
            self.copied_anew[topic.name] = whole = self._start_positions.whole(topic)
            try:
                await keeper.delete_copy(topic.name, whole)  # the destination asks back
            except PeerRefused as error:
                if error.code != TopicNotFound.__name__ or self._memory.mark(topic.topic_id) == BEFORE_ALL:
                    raise  # without a copy that is gone, the link waits for what comes on another way
            finally:
                del self.copied_anew[topic.name]
            self._memory.moved(topic.topic_id, BEFORE_ALL)
            return {}
        return there

    async def _ask_for_earlier_lives(
        self, topic: Topic, policy: str, keeper: CopyKeeper, *, asked: bool
    ) -> Stopped | None:
        """Ask the destination whether it lacks messages of earlier lives that are here.

        Return None if it lacks none, or if ``policy`` ends that gap. Otherwise return why the topic stops.
        """
        for earlier in self._start_positions.earlier(topic):
            try:
                lacking = await keeper.lacking(topic.name, earlier)
                for origin in sorted(lacking):
                    gap = Gap.earlier_life(origin, earlier[origin].position, self._route.link.destination)
                    if not gap.allows(policy, asked=asked):
                        return Stopped(gap)
                    await keeper.lacking(topic.name, {origin: earlier[origin]}, note=True)
                    await self._record(topic, gap, policy)
            except PeerRefused as error:
                if error.code == TopicNotFound.__name__:
                    return None  # it gets all lives in order
                if error.code != NO_SUCH_ROUTE:
                    return Stopped(reason=f"the destination does not say what it lacks of earlier lives: {error}")
                return await self._continue_unverified(topic, earlier, policy, asked=asked)
        return None

    async def _continue_unverified(
        self, topic: Topic, earlier: Mapping[str, Mark], policy: str, *, asked: bool
    ) -> Stopped | None:
        """Let a topic continue though the destination cannot say what it lacks, if ``policy`` allows that or did
        before.
        """
        if topic.name in self._not_asked:
            return None
        origin, last = max(earlier.items(), key=lambda each: each[1].position)
        gap = Gap.unknown_lives(origin, last.position, self._route.link.destination)
        if not gap.allows(policy, asked=asked):
            return Stopped(gap)
        self._not_asked.add(topic.name)
        await self._record(topic, gap, policy)
        return None

    async def _note_lost(self, topic: Topic, upto: Position) -> None:
        """Record as lost the positions up to ``upto`` that the log here does not have.

        Only the destination has these messages.
        """
        last = topic.log.last
        hole = (topic.log.last_known(upto), upto)
        await self._engine.writer.reclaim(topic.tail, last, (), holes=[hole], upto=upto, numbered=False)

    async def _record(self, topic: Topic, gap: Gap, policy: str) -> None:
        """Record how the gap was ended. Every policy but keep-both gives up invariant 2 on purpose, so this is
        recorded."""
        parts = gap.by_origin()
        self._audit(topic, parts, policy)
        if policy != KEEP_BOTH:  # which leaves nothing out
            await self._memory.note_skips(self._skips(topic, parts, policy))

    async def _record_skip(self, topic: Topic, gap: Gap) -> None:
        """Record that the messages of the gap are left out, and that the destination may lack them.

        If the store does not take that, nothing is left out and nothing is recorded, as this is tried again.
        """
        parts = gap.by_origin()
        skips = self._skips(topic, parts, SKIP_AND_RECORD)
        await self._memory.note_skips(skips, topic_id=topic.topic_id, missing=gap.missing)
        self._audit(topic, parts, SKIP_AND_RECORD)

    def _skips(self, topic: Topic, parts: Sequence[Gap], policy: str) -> list[dict[str, Any]]:
        at_ms = self._engine.writer.wall_clock_ms()
        return [
            {"topic": topic.name, "kind": part.kind, "detail": part.what, "policy": policy, "at_ms": at_ms}
            for part in parts
        ]

    def _audit(self, topic: Topic, parts: Sequence[Gap], policy: str) -> None:
        link = self._route.link
        for part in parts:
            log.warning("link went over a gap", link=link.key, topic=topic.name, kind=part.kind, policy=policy)
            if self._index is not None:
                about: dict[str, Any] = {"kind": part.kind, "origin": part.origin, "detail": part.what}
                if policy == COPY_ANEW and part.held is not None:
                    about["messages_deleted"] = part.held
                self._index.audit(f"link {link.key}", policy, topic.name, about)


def _raised(there: Mapping[str, Mark], lives: Mapping[str, Mark]) -> dict[str, Mark]:
    """Return the marks ``there`` with the incarnations of ``lives``, which the destination has learned. The destination
    has no more messages than before."""
    return {
        origin: replace(mark, incarnation=lives[origin].incarnation) if origin in lives else mark
        for origin, mark in there.items()
    }
