"""Comparison of two clusters for a switch: the source's messages and acknowledgements that the target has. Pure.

Takes what workers answer at ``POST /failover/v1/topics`` and ``GET /replication/v1/ack-vectors``, and says what is
missing. Each worker gives, origin by origin, a digest of what is left to consume. If the digests are equal, the states
are equal, and the target delivers no message that was acknowledged at the source. A target that has less left is as
good: its own consumers acknowledged more, and the source hears of that only if a link leads back. Messages that links
left out at the source may be left at the target: nobody at the source can have consumed them. Nor those of an origin
beyond the source's mark, which come to the target while a third cluster publishes. If the target has nothing of an
origin, that origin is not compared. Backlogs are compared only if a worker is of a version that gives no digests; a
state that could not be had is *not compared*, and never counts as equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from replicator.failover.planned import RequiredEntries
from replicator.failover.report import WHAT_IS_LEFT, SubscriptionReport, TopicReport
from snapshots.ack_vector import Range, claimed, merged_ranges, within, without
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import end_before, end_of_earlier_lives, from_data

UNREPLICATED_NAMED_MAX: Final = 5
"""Most unreplicated subscriptions that a report names. More names would hide the rest of the report."""

Topics = Mapping[str, Mapping[str, Any]]
"""Topics of a worker by name, as it answers them."""


@dataclass(frozen=True, slots=True)
class StateUnavailable:
    """Reason why a worker did not give the state of a topic."""

    reason: str


Digest = Mapping[str, Any] | StateUnavailable | None
"""State of a topic, ``{"high_water": {origin: position}, "left_out": {origin: [[after, upto]]}, "subscriptions": {name:
{"digest": {origin: text}}}}``. None stands for a worker that gives no digests.
"""
Digests = Mapping[str, Mapping[str, Any] | StateUnavailable]
"""States by topic."""


def by_name(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {topic["name"]: topic for topic in answer["topics"]}


def mark(topic: Mapping[str, Any] | None, origin: str) -> RequiredEntries | None:
    """Return the position up to which a topic has the messages and markers of ``origin``; None if it has nothing of
    it.
    """
    has = None if topic is None else topic["has"].get(origin)
    return None if has is None else RequiredEntries(has["incarnation"], Position.parse(has["position"]))


def served(topic: Mapping[str, Any] | None, origin: str) -> RequiredEntries | None:
    """Return the position up to which clients get the messages of ``origin``; None if nothing. Messages that a worker
    has not passed on to the brokers beside it are not served yet.
    """
    has = mark(topic, origin)
    if topic is None or has is None:
        return None
    through = topic.get("served_through", {}).get(origin)
    return has if through is None else RequiredEntries(has.incarnation, Position.parse(through))


def marks(topics: Topics, origin: str) -> dict[str, RequiredEntries]:
    """Return :func:`mark` of each topic that has anything of ``origin``."""
    found = {name: mark(topic, origin) for name, topic in topics.items()}
    return {name: goal for name, goal in found.items() if goal is not None}


def position(text: str) -> Position:
    """Return a position that a worker wrote as text."""
    return Position.parse(text)


def goals(origin: str, topics: Topics, carried: Callable[[str, Mapping[str, Any]], bool]) -> dict[str, RequiredEntries]:
    """Return, for every carried topic, what the target must have of the messages that the source's clients
    published.
    """
    found = {name: mark(topic, origin) for name, topic in topics.items() if carried(name, topic)}
    return {
        name: replace(goal, earlier=earlier(topics[name], origin)) for name, goal in found.items() if goal is not None
    }


def earlier(topic: Mapping[str, Any], origin: str) -> tuple[Position, ...]:
    """Return the newest message that the answering cluster has of each earlier life of the topic."""
    return tuple(map(position, topic.get("earlier", {}).get(origin, ())))


def lacks(topic: Mapping[str, Any] | None, origin: str) -> tuple[Position, ...]:
    """Return the requested messages of earlier lives that the answering cluster lacks."""
    return () if topic is None else tuple(map(position, topic.get("lacks", {}).get(origin, ())))


def replicated(topic: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the replicated subscriptions of a topic."""
    return {} if topic is None else {name: each for name, each in topic["subscriptions"].items() if each["replicated"]}


@dataclass(frozen=True, slots=True)
class _Compared:
    """Comparison of the exact states of a subscription in both clusters."""

    as_good: bool
    """Whether the target's acknowledgements include all of the source's, as far as it has their messages."""
    evidence: str
    behind: bool = False
    """Whether the target lacks entries of the source's clients."""
    same: bool = False
    """Whether the same is left in both, as far as the target has it, and it lacks entries of no other origin."""


def _compare_digests(origin: str, name: str, here: Digest, there: Digest) -> _Compared | StateUnavailable | None:
    """Compare what both clusters have left to consume. Return None if a cluster gives no digests."""
    for topic in (here, there):
        if isinstance(topic, StateUnavailable):
            return topic
    if not isinstance(here, Mapping) or not isinstance(there, Mapping):
        return None
    ours_now, theirs_now = (topic.get("subscriptions", {}).get(name) for topic in (here, there))
    if ours_now is None or theirs_now is None:
        return StateUnavailable("the subscription was made or deleted meanwhile")
    ours, theirs = ours_now.get("digest"), theirs_now.get("digest")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return None
    marks, their_marks = here["high_water"], there["high_water"]
    # Of an origin without a mark the source has nothing but markers that stay where they are: nobody can have consumed
    # that, and the target never gets it.
    compared = sorted(
        each for each in marks if (each == origin or each in their_marks) and (each in ours or each in theirs)
    )
    different = [each for each in compared if ours.get(each) != theirs.get(each)]
    left, left_there = (state.get("unconsumed") or {} for state in (ours_now, theirs_now))
    holes = here.get("left_out") or {}
    lacking = [
        each
        for each in different
        if not _has_more(
            left.get(each),
            left_there.get(each),
            position(marks[each]),
            [(position(a), position(b)) for a, b in holes.get(each, ())]
            + _before_start(each, ours_now.get("starts") or {}),
            _earlier_lives(left.get(each), (ours_now.get("vector") or {}).get(each), position(marks[each])),
            same_life=each == origin,
        )
    ]
    if lacking:
        return _Compared(False, f"acknowledgements of {', '.join(lacking)} differ")
    more = [
        each
        for each in different
        if each not in their_marks
        or not _same_up_to(left[each], left_there[each], min(position(marks[each]), position(their_marks[each])))
    ]
    what = [f"{str(ours[each])[:8]} of {each}'s messages" for each in compared if each not in different]
    what += [f"the same of {each} up to {their_marks[each]}" for each in different if each not in more]
    evidence = [WHAT_IS_LEFT + ", ".join(what)] if what else []
    evidence += ["more of " + ", ".join(more) + " is acknowledged there"] if more else []
    ahead = {each for each in marks if position(marks[each]) > position(their_marks.get(each, str(BEFORE_ALL)))}
    return _Compared(True, ", ".join(evidence), origin in ahead, not more and ahead <= {origin})


def _same_up_to(left: Mapping[str, Any], left_there: Mapping[str, Any], mark: Position) -> bool:
    """Return whether the same is left of an origin in both clusters, up to ``mark``."""
    return _runs(left, mark) == _runs(left_there, mark) and (
        {at: parts for at, parts in left["batches"].items() if position(at) <= mark} == left_there["batches"]
    )


def _runs(left: Mapping[str, Any], mark: Position) -> list[Range]:
    """Return the runs of entries that are left of an origin, up to ``mark``: the first and the last of each."""
    runs = sorted((position(first), position(last)) for first, last in left["beyond"])
    return [(first, min(last, mark)) for first, last in runs if first <= mark]


def _before_start(origin: str, begins: Mapping[str, Any]) -> list[Range]:
    """Return the range of ``origin``'s positions before the subscription's start; an empty list if there are none.

    The source needs no acknowledgement for these entries, though it has none of them left.
    """
    end = end_before(from_data(begins), origin)
    return [(BEFORE_ALL, end)] if end > BEFORE_ALL else []


def _earlier_lives(left: Any, vector: Any, newest: Position) -> tuple[Position, list[Range]]:
    """Return the end of an origin's earlier lives, and the positions up to it that the source acknowledged.

    ``vector`` has the acknowledgements that the source claims. It claims nothing of a life that it does not have, so
    the target may have any of the other messages left.
    """
    if not isinstance(left, Mapping):
        return BEFORE_ALL, []
    end = end_of_earlier_lives(int(left["incarnation"]), newest)
    return end, claimed(vector) if end > BEFORE_ALL and isinstance(vector, Mapping) else []


def _has_more(
    left: Any,
    left_there: Any,
    mark: Position,
    left_out: Sequence[Range],
    earlier: tuple[Position, list[Range]],
    *,
    same_life: bool,
) -> bool:
    """Return whether everything that the source acknowledged of an origin is acknowledged at the target, too.

    ``left`` and ``left_there`` are what both have left. The target may have more left of three kinds: entries beyond
    the source's ``mark``, entries ``left_out`` at the source, and messages of ``earlier`` lives that the source does
    not claim. With ``same_life``, both must have the same life of the topic. Positions tell lives apart, so another
    origin, of whose new life one cluster heard first, can be compared.
    """
    if not isinstance(left, Mapping) or not isinstance(left_there, Mapping):
        return False
    if same_life and left["incarnation"] != left_there["incarnation"]:
        return False
    runs, runs_there = _runs(left, mark), _runs(left_there, mark)
    end, claims = earlier
    if runs_there and (left_out or end > BEFORE_ALL):
        beyond = [(Position(first.ledger, first.entry - 1), last) for first, last in runs_there]
        if end > BEFORE_ALL:
            beyond = within(beyond, merged_ranges([*claims, (end, max(end, runs_there[-1][1]))]))
        runs_there = [
            (Position(after.ledger, after.entry + 1), last) for after, last in without(beyond, left_out) if after < last
        ]
    for first, last in runs_there:
        at = bisect_right(runs, first, key=lambda run: run[0]) - 1
        if at < 0 or last > runs[at][1]:
            return False
    parts_there = left_there["batches"]
    for entry, acknowledged in left["batches"].items():
        at = bisect_right(runs_there, position(entry), key=lambda run: run[0]) - 1
        is_left = at >= 0 and position(entry) <= runs_there[at][1]
        if is_left and not set(acknowledged) <= set(parts_there.get(entry, ())):
            return False
    return True


def note_of_unreplicated(topics: Mapping[str, Mapping[str, Any]], target: str) -> str | None:
    """Return a sentence about subscriptions of ``topics`` that are not replicated; None if all are."""
    found = [
        f"{name} of {topic}"
        for topic, state in sorted(topics.items())
        for name, each in sorted(state["subscriptions"].items())
        if not each["replicated"]
    ]
    if not found:
        return None
    named = ", ".join(found[:UNREPLICATED_NAMED_MAX])
    more = len(found) - UNREPLICATED_NAMED_MAX
    one = len(found) == 1
    return (
        f"{'1 subscription is' if one else f'{len(found):,} subscriptions are'} not compared, because "
        f"{'it is' if one else 'they are'} not replicated ({named}{f', and {more:,} more' if more > 0 else ''}). "
        f"{'Its' if one else 'Their'} consumers do not find their positions at {target}."
    )


def compare_subscription(
    name: str,
    origin: str,
    here: Mapping[str, Any],
    there: Mapping[str, Any] | None,
    digests: tuple[Digest, Digest],
    missing_messages: int,
) -> SubscriptionReport:
    """Compare one subscription at the source (``here``) and at the target. Clients of the source publish messages of
    ``origin``. ``digests`` are those of its topic, if any.
    """
    held = int(here["held_entries"])
    if there is None:
        return SubscriptionReport(name, False, "it is not there yet", None, held)
    if here["generation"] != there["generation"]:
        evidence = f"generation {there['generation']} of {here['generation']}"
        return SubscriptionReport(name, False, evidence, None, held)
    # What is acknowledged at the source and not known so at the target is left there, or has not come there yet.
    left_there = int(there["backlog_messages"])
    bound = left_there + missing_messages
    for state in (here, there):
        if lags := state.get("lags"):
            return SubscriptionReport(name, False, str(lags), bound, held)
    match _compare_digests(origin, name, *digests):
        case None:
            equal = here["backlog_messages"] == left_there
            evidence = f"backlog {left_there} of {here['backlog_messages']} messages"
            return SubscriptionReport(name, equal, evidence, 0 if equal else bound, held)
        case StateUnavailable(reason):
            return SubscriptionReport(name, None, f"not compared: {reason}", None, held)
        case _Compared(as_good=False, evidence=evidence):
            return SubscriptionReport(name, False, evidence, bound, held)
        case _Compared(behind=False, evidence=evidence):
            return SubscriptionReport(name, True, evidence, 0, held)
        case found:
            # Only messages that the target lacks may be repeated. They are counted where the rest of both is the same.
            acknowledged = max(0, left_there - int(here["backlog_messages"]) + missing_messages)
            repeated = min(missing_messages, acknowledged) if found.same else missing_messages
            return SubscriptionReport(name, repeated == 0, found.evidence, repeated, held)


def compare_topic(
    name: str,
    origin: str,
    here: Mapping[str, Any] | None,
    there: Mapping[str, Any] | None,
    *,
    carried: bool,
    missing: Mapping[str, Any] | None,
    digests: tuple[Digests, Digests] = ({}, {}),
) -> TopicReport:
    """Compare one topic. Clients of the source publish messages of ``origin``. ``here`` is None if the source does not
    answer; ``missing`` is the source's count above the target's mark, None if nothing is missing.
    """
    has = mark(there, origin)
    if here is None:
        unknown = tuple(
            SubscriptionReport(each, None, f"generation {state['generation']}", None)
            for each, state in replicated(there).items()
        )
        return TopicReport(name, carried, None, None if has is None else str(has.last), None, subscriptions=unknown)
    messages = 0 if missing is None else int(missing["messages"])
    lacks_earlier = bool(lacks(there, origin))
    if lacks_earlier:  # nobody counted which of them it has
        messages += int(here.get("earlier_messages", {}).get(origin, 0))
    last = mark(here, origin)
    compared = tuple(
        compare_subscription(
            each,
            origin,
            state,
            replicated(there).get(each),
            (digests[0].get(name), digests[1].get(name)),
            messages,
        )
        for each, state in replicated(here).items()
        if carried
    )
    return TopicReport(
        name,
        carried,
        None if last is None else str(last.last),
        None if has is None else str(has.last),
        messages,
        not lacks_earlier and (missing is None or bool(missing["exact"])),
        compared,
    )
