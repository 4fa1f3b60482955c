"""Reports of switches for people: one sentence for each cluster, and one for each topic that needs attention.

Positions and hashes are only in the details. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replicator.engine.topic_name import SCHEME
from replicator.failover.report import StatusReport, Stranded, SubscriptionReport, SwitchReport, TopicReport
from replicator.running.screen import SCREEN_LINES_MAX, Screenful, Sentence, in_one_line

DIFFERENCES_SHOWN_MAX: Final = 8
"""Differences between two clusters on the screen, so that topics have room beside them."""
NAMES_SHOWN_MAX: Final = 3
"""Topics or subscriptions that one sentence names."""
PLANNED_KINDS: Final = ("planned", "failback")
_DEFAULT_NAMESPACE: Final = "public/default/"
_TABLE_LINES: Final = 6
"""Lines of the status's table beside its clusters, which take two lines each on a narrow screen."""
_STATUS_LINES_MIN: Final = 12
"""Lines of a status for its sentences, even if its table fills the screen."""


def shown_switch(report: SwitchReport, *, details: bool = False) -> RenderableType:
    """Return a switch's report to print: at most one screen of sentences, or everything with ``details``."""
    if details:
        return _uncut([*_of_clusters(report), *_summary(report), *_differences(report, None), *_positions(report)])
    always = [*_of_clusters(report), *_summary(report), *_differences(report, DIFFERENCES_SHOWN_MAX)]
    worst_first = sorted(filter(_needs_attention, report.topics), key=_severity_key)
    return Screenful(always, [Sentence(_of_topic(each, report)) for each in worst_first])


def shown_status(report: StatusReport, *, details: bool = False) -> RenderableType:
    """Return who serves whom, and which topics wait for messages that a switch left behind."""
    always = [Sentence(f"{state['error'].rstrip('.')}.", "red") for state in report.states.values() if "error" in state]
    if not report.agreed:
        always.append(Sentence("The clusters do not agree on the epoch; the highest wins as soon as they hear of it."))
    waiting: list[Sentence] = []
    if (switch := report.switch) is not None:
        source, target = str(switch["source"]), str(switch["target"])
        always.append(Sentence(f"Newest switch: {switch['kind']}, {source} to {target}, {_moment(switch['at_ms'])}."))
        always.append(Sentence(_stranded_line(report, source, target), whole=True))
        stranded = sorted(report.stranded or (), key=lambda each: (-each.messages, each.topic))
        waiting = [Sentence(_of_stranded(each, source, target)) for each in stranded if not each.flowed]
    room = max(SCREEN_LINES_MAX - _TABLE_LINES - 2 * len(report.states), _STATUS_LINES_MIN)
    shown = _uncut([*always, *waiting]) if details else Screenful(always, waiting, lines_max=room)
    return Group(_clusters_table(report), shown)


def _uncut(sentences: Sequence[Sentence]) -> Group:
    """Return every sentence as a line that the terminal may wrap."""
    return Group(
        *(Text(in_one_line(each.text), style=each.style, no_wrap=True, overflow="ignore") for each in sentences)
    )


# A switch: its clusters.


def _of_clusters(report: SwitchReport) -> Iterator[Sentence]:
    """Yield sentences about the state of each cluster, the target first, and the notes.

    The first sentence says whether the target serves the clients, or why not, and what it lacks of the source. The
    notes come early: one of them may say that a planned switch is refused.
    """
    homes = ", ".join(report.homes)
    lacks = _lacks(report)
    if report.outcome == "done":
        yield Sentence(f"{report.target} serves {homes} since epoch {report.epoch}. {lacks}", "green")
    elif report.outcome == "dry run":
        yield Sentence(f"Dry run: {report.target} would serve {homes}. Nothing was changed. {lacks}")
    else:
        yield Sentence(f"Refused: {report.reason.rstrip('.')}.", "red", whole=True)
        yield Sentence(f"Nothing was switched. {lacks}")
    if not report.source_answers:
        told = report.announced.get(report.source)
        yield Sentence(f"{report.source} does not answer{f': {told}' if told else ''}.", "yellow")
    elif report.source not in report.announced:
        yield Sentence(f"{report.source} answers.")
    for cluster, told in report.announced.items():
        if cluster != report.source or report.source_answers:
            yield Sentence(f"{cluster} {told}.")
    for note in report.notes:
        yield Sentence(note, whole=True)


def _lacks(report: SwitchReport) -> str:
    """Return a sentence about the messages and acknowledgements of the source that the target lacks."""
    it, start = ("it", "It") if report.outcome == "done" else (report.target, report.target)
    if not report.source_answers:
        since = "" if report.unknown_since_ms is None else f" since {_moment(report.unknown_since_ms)}"
        return f"What {it} lacks of {report.source} is unknown{since}."
    if report.source_unknown:
        return f"What {it} lacks of {report.source} is unknown: {report.source_unknown}."
    if not report.topics:
        return "No topic was compared."
    received, repeated = report.not_received, report.may_be_repeated
    equal = all(each.equal for topic in report.topics for each in topic.subscriptions)
    if received == 0 and repeated == 0 and equal:
        return f"{start} has every message of {report.source} that links carry to it, and every acknowledgement."
    messages = "an unknown number of messages" if received is None else _messages(received)
    again = "an unknown number of" if repeated is None else f"at most {repeated:,}" if repeated else "no"
    ones = "one" if repeated == 1 else "ones"
    return f"{start} lacks {messages} of {report.source}; {again} acknowledged {ones} may be repeated."


# A switch: its topics.


def _summary(report: SwitchReport) -> Iterator[Sentence]:
    """Yield the sentences that cover many topics together: equal, unknown and staying topics, and held entries."""
    topics = report.topics
    same = sum(1 for each in topics if each.carried and not _needs_attention(each) and not _is_unknown(each))
    unknown = sum(1 for each in topics if each.carried and _is_unknown(each))
    if same:
        yield Sentence(f"{_topics(same)} {'is' if same == 1 else 'are'} the same.")
    if unknown:
        yield Sentence(f"What {report.target} lacks of {_topics(unknown)} is unknown until {report.source} answers.")
    staying = [_short(each.topic) for each in topics if not each.carried]
    if staying:
        verb = "stays" if len(staying) == 1 else "stay"
        where = f"at {report.source}, because no link carries {'it' if len(staying) == 1 else 'them'}"
        yield Sentence(f"{_topics(len(staying))} {verb} {where} to {report.target}: {_named(staying)}.")
    held = sum(each.held_entries for topic in topics for each in topic.subscriptions)
    if held:
        yield Sentence(
            f"{held:,} {'entry was' if held == 1 else 'entries were'} delivered at {report.source} and not "
            "acknowledged: they are delivered again, as after any disconnect."
        )


def _is_unknown(topic: TopicReport) -> bool:
    return topic.missing_messages is None


def _needs_attention(topic: TopicReport) -> bool:
    """Return whether a topic that links carry lacks something at the target."""
    if not topic.carried or topic.missing_messages is None:
        return False
    return topic.missing_messages > 0 or any(not each.equal for each in topic.subscriptions)


def _severity_key(topic: TopicReport) -> tuple[int, int, int, str]:
    """Return the sort key of a topic, which puts the worst topic first."""
    unknown = sum(1 for each in topic.subscriptions if each.may_be_repeated is None)
    repeated = sum(each.may_be_repeated or 0 for each in topic.subscriptions)
    return -(topic.missing_messages or 0), -unknown, -repeated, topic.topic


def _of_topic(topic: TopicReport, report: SwitchReport) -> str:
    parts: list[str] = []
    if missing := topic.missing_messages:
        they = "it follows" if missing == 1 else "they follow"
        then = f"{they} by links from {report.source}"
        if report.outcome == "dry run" and report.kind in PLANNED_KINDS:
            then = f"a planned switch waits for {'it' if missing == 1 else 'them'}"
        parts.append(f"{_not_there(missing, report.target, exact=topic.exact)}; {then}")
    different = [each for each in topic.subscriptions if not each.equal]
    different.sort(key=lambda each: (each.may_be_repeated is not None, -(each.may_be_repeated or 0), each.name))
    parts += [_of_subscription(each) for each in different[:NAMES_SHOWN_MAX]]
    if (more := len(different) - NAMES_SHOWN_MAX) > 0:
        parts.append(f"{more:,} more subscription{'s differ' if more > 1 else ' differs'}")
    return f"{_short(topic.topic)}: {'; '.join(parts)}."


def _of_subscription(subscription: SubscriptionReport) -> str:
    why = f" ({subscription.difference})" if subscription.difference else ""
    match subscription.may_be_repeated:
        case None:
            return f"how much subscription {subscription.name} repeats is unknown{why}"
        case 0:
            return f"subscription {subscription.name} differs{why}, and repeats nothing"
        case repeated:
            return f"subscription {subscription.name} may repeat at most {_messages(repeated)}{why}"


def _positions(report: SwitchReport) -> Iterator[Sentence]:
    """Yield each topic with its positions, and each subscription with the evidence."""
    for topic in sorted(report.topics, key=lambda each: (not _needs_attention(each), *_severity_key(each))):
        missing = "no link carries it" if not topic.carried else f"missing {_count(topic)}"
        last = "nothing" if topic.source_last is None else f"up to {topic.source_last}"
        has = "nothing" if topic.target_has is None else f"up to {topic.target_has}"
        yield Sentence(f"{topic.topic}: {report.source} has {last}, {report.target} has {has} of it; {missing}")
        for each in topic.subscriptions:
            state = {True: "equal", False: "differs", None: "unknown"}[each.equal]
            repeated = "unknown" if each.may_be_repeated is None else f"at most {each.may_be_repeated:,}"
            yield Sentence(
                f"  {each.name}: {state}{f' ({each.evidence})' if each.evidence else ''}; "
                f"repeated: {repeated}; held entries: {each.held_entries:,}"
            )
    for step, seconds in report.steps:
        yield Sentence(f"step {step}: {seconds:.3f} s")


# A switch: what clients would find otherwise.


def _differences(report: SwitchReport, shown_max: int | None) -> Iterator[Sentence]:
    """Yield at most ``shown_max`` differences between the clusters, and a count of the rest. None means all of them."""
    if report.differences:
        yield Sentence(f"differences that clients would find at {report.target}:", "yellow")
        for each in report.differences[:shown_max]:
            yield Sentence(f"  {each}")
        if shown_max is not None and (more := len(report.differences) - shown_max) > 0:
            yield Sentence(f"  … and {more:,} more difference{'s' * (more > 1)}: --details")
    elif report.differences is not None:
        yield Sentence(
            "tenants, namespaces, permissions, policies, schemas, partitions: the same "
            f"at {report.target} as at {report.source}"
        )


# The status.


def _clusters_table(report: StatusReport) -> Table:
    table = Table(title=f"Failover epoch {report.epoch}", title_justify="left")
    for heading in ("cluster", "epoch", "serves", "served by", "producers", "consumers"):
        table.add_column(heading, overflow="fold")
    for cluster, state in report.states.items():
        if "error" in state:
            table.add_row(cluster, Text("no answer", style="red"), "", "", "", "")
            continue
        style = "red" if state["fenced"] else "green"
        serves = ", ".join(state["serves"]) or "nobody: fenced"
        table.add_row(
            cluster,
            str(state["epoch"]),
            Text(serves, style=style),
            state["served_by"],
            state["producers"],
            state["consumers"],
        )
    return table


def _stranded_line(report: StatusReport, source: str, target: str) -> str:
    if report.stranded is None:
        return f"What {target} had not received then is unknown: {report.unknown}."
    if not report.stranded and report.unknown:
        return f"What {target} had not received then is unknown: {report.unknown}."
    if not report.stranded:
        return f"{target} had received every message of {source} then."
    total = sum(each.messages for each in report.stranded)
    waiting = sum(1 for each in report.stranded if not each.flowed)
    state = "all of them have come since"
    if waiting:
        state = "1 topic still waits for its own" if waiting == 1 else f"{waiting:,} topics still wait for theirs"
    there = _topics(len(report.stranded))
    more = f" There may be more: {report.unknown}." if report.unknown else ""
    return f"{target} had not received {_messages(total)} of {source} in {there}: {state}.{more}"


def _of_stranded(each: Stranded, source: str, target: str) -> str:
    they = "it follows" if each.messages == 1 else "they follow"
    return (
        f"{_short(each.topic)}: {_not_there(each.messages, target, exact=each.exact)}; {they} by links from {source}."
    )


# Words.


def _not_there(messages: int, target: str, *, exact: bool) -> str:
    most = "" if exact else "at most "
    return f"{most}{_messages(messages)} {'is' if messages == 1 else 'are'} not at {target} yet"


def _messages(count: int) -> str:
    return f"{count:,} message{'s' * (count != 1)}"


def _topics(count: int) -> str:
    return f"{count:,} topic{'s' * (count != 1)}"


def _count(topic: TopicReport) -> str:
    if topic.missing_messages is None:
        return "unknown"
    return f"{'' if topic.exact else 'at most '}{topic.missing_messages:,}"


def _short(topic: str) -> str:
    """Return a topic's name as its users write it: without the scheme, and without the default namespace."""
    return topic.removeprefix(SCHEME).removeprefix(_DEFAULT_NAMESPACE)


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return f"{', '.join(names[:NAMES_SHOWN_MAX])}{f', and {more:,} more' if more > 0 else ''}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
