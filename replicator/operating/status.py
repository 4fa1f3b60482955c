"""Command ``replicator status``: collects the state of all workers of a topology, and shows it."""

from __future__ import annotations

import asyncio
import heapq
import http
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import aiohttp
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replicator.engine.topic_name import SCHEME
from replicator.operating.troubles import GOING_WELL, remarks, troubles
from replicator.peering.topic_summary import LIMIT, SUMMARY_ROUTE, Backlog, TopicSummary
from replicator.running.connecting import why_no_answer
from replicator.security.asking import worker_session, worker_url
from replicator.topology import Topology
from replicator.topology.patterns import DEFAULT_NAMESPACE, is_named

ANSWER_SECONDS_MAX: Final = 5.0
TOPICS_SECONDS_MAX: Final = 30.0
"""Time limit for a status with all topics. An idle worker needs a second for ten thousand topics."""
LISTED_TOPICS_MAX: Final = 20
"""Limit of topics in a cluster: beyond it, the status shows a summary of topics."""
WRONG_SHOWN_MAX: Final = 10
"""Most lines on faults of one worker and its links, unless ``--all`` is given."""
REASON_CHARS_MAX: Final = 500
_REFUSED: Final = frozenset({401, 403})


async def fetch_all(topology: Topology, patterns: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the status of every worker with its topics, or those that match ``patterns``, by cluster.

    For a worker that does not give its status, the value has ``error`` and ``status``, as :func:`fetch` returns them.
    """
    timeout = aiohttp.ClientTimeout(total=TOPICS_SECONDS_MAX, sock_connect=ANSWER_SECONDS_MAX)
    async with worker_session(timeout=timeout) as session:
        query = tuple(("topic", pattern) for pattern in patterns)
        answers = await asyncio.gather(*(fetch(session, each.address, query) for each in topology.clusters))
    for answer in answers:
        if patterns and "topics" in answer:  # a worker of an older version returns all topics
            answer["topics"] = [each for each in answer["topics"] if is_named(tuple(patterns), each["name"])]
    return dict(zip(topology.names, answers, strict=True))


async def fetch_summaries(
    topology: Topology, limit: int = LIMIT
) -> tuple[dict[str, dict[str, Any]], dict[str, TopicSummary]]:
    """Ask every worker for its status without topics, and for a summary of its topics; return both by cluster.

    If a worker gives no status, the first result has what :func:`fetch` returns, and the second leaves the worker out.
    If it gives a status and no summary, its status has ``summary_error``, and the second result leaves it out, too.
    """
    async with worker_session(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)) as session:
        asked = [_fetch_summary(session, cluster.address, limit) for cluster in topology.clusters]
        found = dict(zip(topology.names, await asyncio.gather(*asked), strict=True))
    answers = {name: answer for name, (answer, _) in found.items()}
    return answers, {name: summary for name, (_, summary) in found.items() if summary is not None}


async def look(
    topology: Topology, patterns: Sequence[str] = (), *, top: int | None = None, every: bool = False
) -> tuple[dict[str, dict[str, Any]], Group]:
    """Ask every worker; return the answers, and the text to show.

    If a cluster has more than :data:`LISTED_TOPICS_MAX` topics, the text has a summary of topics. Otherwise, or with
    ``patterns`` or ``every``, it has a list of topics; with ``top``, only the ``top`` topics with the largest backlogs.
    """
    if not patterns and not every:
        limit = LIMIT if top is None else top
        answers, summaries = await fetch_summaries(topology, limit)
        many = any(summary.topics > LISTED_TOPICS_MAX for summary in summaries.values())
        if many or not summaries or any("summary_error" in answer for answer in answers.values()):
            return answers, render(answers, summaries, limit)
    answers = await fetch_all(topology, patterns)
    return answers, render(answers, top=top, matching=bool(patterns))


async def _fetch_summary(
    session: aiohttp.ClientSession, address: str, limit: int
) -> tuple[dict[str, Any], TopicSummary | None]:
    answer, summary = await asyncio.gather(
        fetch(session, address, (("topics", "false"),)),
        _fetch(session, address, SUMMARY_ROUTE, (("limit", str(limit)),)),
    )
    if "error" in answer:
        return answer, None
    if summary.get("status") == http.HTTPStatus.NOT_FOUND:  # a worker of an older version
        whole = await fetch(session, address)
        return (whole, None) if "error" in whole else (answer, summary_of(whole, limit))
    if "error" in summary:
        return {**answer, "summary_error": summary["error"]}, None
    try:
        return answer, TopicSummary.of_json(summary)
    except (KeyError, TypeError, ValueError) as error:
        return {**answer, "summary_error": f"{address}: it cannot be read: {error!r:.200}"}, None


def summary_of(answer: Mapping[str, Any], limit: int = LIMIT) -> TopicSummary:
    """Return the summary of a status with topics. Its list of topics that links lag with is empty."""
    topics = answer["topics"]
    rows = [(topic, each) for topic in topics for each in topic["subscriptions"] if each["backlog_messages"]]
    largest = heapq.nlargest(limit, rows, key=lambda row: row[1]["backlog_messages"])
    return TopicSummary(
        answer["cluster"],
        len(topics),
        sum(topic["messages"] for topic in topics),
        sum(len(topic["subscriptions"]) for topic in topics),
        [Backlog.of_status(topic, subscription) for topic, subscription in largest],
        [],
    )


async def fetch(session: aiohttp.ClientSession, address: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return the status of the worker at ``address``.

    If the status cannot be had, ``error`` says why, and ``status`` is the HTTP status, or None if the worker did not
    answer.
    """
    return await _fetch(session, address, "/replication/v1/status", query)


async def _fetch(
    session: aiohttp.ClientSession, address: str, path: str, query: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    try:
        async with session.get(f"{worker_url(address)}{path}", params=query) as response:
            if response.status >= http.HTTPStatus.BAD_REQUEST:
                reason = _reason(await response.text(errors="replace")) or response.reason
                return {"error": f"{address}: status {response.status}: {reason}", "status": response.status}
            answer = await response.json()
            return answer if isinstance(answer, dict) else _unanswered(f"{address}: its answer is no object")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # a line below says what to do
        return _unanswered(f"{address}: {why_no_answer(error, remedy='')}")


def _unanswered(text: str) -> dict[str, Any]:
    return {"error": text, "status": None}


def _reason(body: str) -> str:
    """Return the message of a worker's error answer; empty if the answer is not a worker's, such as a proxy's page."""
    try:
        return str(json.loads(body)["message"])[:REASON_CHARS_MAX]
    except (ValueError, KeyError, TypeError):
        return ""


def exit_status(answers: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the exit status of the command.

    It is 3 if a worker does not answer, or does not answer with a summary; else 2 if every failing worker refuses; else
    0.
    """
    without = [answer for answer in answers.values() if "error" in answer]
    if any("summary_error" in answer for answer in answers.values()):
        return 3
    if not without:
        return 0
    return 2 if all(answer["status"] in (401, 403) for answer in without) else 3


def render(
    answers: Mapping[str, Mapping[str, Any]],
    summaries: Mapping[str, TopicSummary] | None = None,
    top: int | None = None,
    *,
    matching: bool = False,
) -> Group:
    """Return the text to show: workers, links, faults, and topics.

    With ``summaries`` the text has at most ``top`` topics of each kind. Without, it lists the topics of ``answers``
    with their subscriptions: all topics, or the ``top`` topics with the largest backlogs. ``matching`` says that
    ``answers`` have only the topics that a pattern matches.
    """
    parts: list[RenderableType] = [_workers(answers, summaries or {}, matching=matching)]
    unanswered = [answer for answer in answers.values() if "error" in answer]
    if len(unanswered) < len(answers):
        parts += [_links(answers), _wrong(answers, None if summaries is None else WRONG_SHOWN_MAX)]
        parts += [f"{cluster}: {remark}" for cluster, answer in answers.items() for remark in remarks(answer)]
        if summaries is None:
            parts.append(_topics(answers, top))
        else:
            parts += [_backlogs(summaries, top or LIMIT), _behind(summaries, top or LIMIT)]
    statuses = {answer["status"] for answer in unanswered}
    if statuses & _REFUSED:
        parts.append(
            "A worker refused the request: give the token of a role that may read its status (docs/security.md)."
        )
    elif len(unanswered) == len(answers) and statuses == {None}:
        parts.append("No worker answers; start them with `replicator up -f FILE`.")
    return Group(*parts)


def _workers(
    answers: Mapping[str, Mapping[str, Any]], summaries: Mapping[str, TopicSummary], *, matching: bool
) -> Table:
    counted = ("matching topics", "their messages") if matching else ("topics", "messages")
    headings = ("cluster", "state", "serves", "epoch", "database", *counted, "store MB")
    table = Table(*headings, title="Workers", title_justify="left")
    for cluster, answer in answers.items():
        if "error" in answer:
            table.add_row(cluster, Text(answer["error"], style="red"), "", "", "", "", "", "")
            continue
        size = f"{answer['store']['bytes'] / 1e6:.1f}"
        serves, epoch = _serves(answer.get("failover"))
        row = (serves, epoch, answer["database"]["state"], *_sums(answer, summaries.get(cluster)), size)
        table.add_row(cluster, _state(answer), *row)
    return table


def _sums(answer: Mapping[str, Any], summary: TopicSummary | None) -> tuple[str, str]:
    """Return the numbers of topics and of messages; "?" if the worker gave neither topics nor a summary of them."""
    if summary is not None:
        return str(summary.topics), str(summary.messages)
    if "summary_error" in answer:
        return "?", "?"
    return str(len(answer["topics"])), str(sum(each["messages"] for each in answer["topics"]))


def _state(answer: Mapping[str, Any]) -> Text:
    if answer["store"]["failed"]:
        return Text("failed", style="red")
    found = list(troubles(answer))
    return Text("ready, but see below", style=found[0].style) if found else Text("ready", style="green")


def _wrong(answers: Mapping[str, Mapping[str, Any]], shown_max: int | None) -> Text:
    """Return a line for each fault or warning, at most ``shown_max`` of each cluster; all if ``shown_max`` is None."""
    found = Text()
    for cluster, answer in answers.items():
        wrong = [Text(answer["error"], style="red")] if "error" in answer else list(troubles(answer))
        for trouble in wrong[:shown_max]:
            found.append(f"\n{cluster}: ").append(trouble)
        if shown_max is not None and (more := len(wrong) - shown_max) > 0:
            found.append(f"\n{cluster}: … and {more} more (--all)", style="red")
    if found:
        return Text("Wrong:").append(found)
    links = [link for answer in answers.values() for link in answer.get("links", ())]
    left = sum(int(link["backlog_entries"]) for link in links)
    return Text("Nothing is wrong.", style="green").append(f" Links have {left:,} entries to copy." if left else "")


def _serves(failover: Mapping[str, Any] | None) -> tuple[Text, str]:
    """Return the clusters whose clients a worker serves, and the failover epoch; both empty if it reports neither."""
    if failover is None:
        return Text(""), ""
    if failover["fenced"]:
        return Text(f"nobody: fenced, {failover['served_by']} serves", style="red"), str(failover["epoch"])
    serves = ", ".join(failover["serves"])
    if failover["producers"] != "open":
        serves += f" ({failover['producers']})"
    return Text(serves), str(failover["epoch"])


def _topics(answers: Mapping[str, Mapping[str, Any]], top: int | None) -> RenderableType:
    """Return a table of the topics of ``answers`` with their subscriptions, or a sentence if there are none.

    With ``top`` the table has only so many topics, those with the largest backlogs.
    """
    table = Table(title="Topics", title_justify="left")
    for heading in ("topic", "cluster", "messages", "LAC", "subscription", "type", "mark-delete", "backlog"):
        table.add_column(heading, overflow="fold")  # a name or a position that is cut off names nothing
    rows = [
        (topic["name"], cluster, topic) for cluster, answer in answers.items() for topic in answer.get("topics", ())
    ]
    if not rows:
        return "No topics, or none that matches."
    names = {name for name, _, _ in rows}
    if top is not None and len(names) > top:
        table.title = f"Topics with the largest backlogs: {top} of {len(names)}"
        backlogs = dict.fromkeys(names, 0)
        for name, _, topic in rows:
            largest = max((each["backlog_messages"] for each in topic["subscriptions"]), default=0)
            backlogs[name] = max(backlogs[name], largest)
        names = set(heapq.nsmallest(top, names, key=lambda name: (-backlogs[name], name)))
    for name, cluster, topic in sorted((row for row in rows if row[0] in names), key=lambda row: row[:2]):
        subscriptions = topic["subscriptions"] or [None]
        for index, subscription in enumerate(subscriptions):
            head = [_short(name), cluster, str(topic["messages"]), topic["lac"]] if index == 0 else ["", "", "", ""]
            table.add_row(*head, *_subscription(subscription))
    return table


def _short(topic: str) -> str:
    """Return the shortest form of a topic's name that every command accepts."""
    return topic.removeprefix(SCHEME).removeprefix(DEFAULT_NAMESPACE)


def _subscription(subscription: Mapping[str, Any] | None) -> list[str]:
    if subscription is None:
        return ["", "", "", ""]
    name = subscription["name"] + (" (replicated)" if subscription["replicated"] else "")
    return [
        name, subscription["type"] or "–", subscription["mark_delete"], str(subscription["backlog_messages"])
    ]  # fmt: skip


def _backlogs(summaries: Mapping[str, TopicSummary], top: int) -> Table:
    """Return a table of the ``top`` largest backlogs of subscriptions in all clusters."""
    table = Table(title=f"Largest backlogs: {top} at most", title_justify="left")
    for heading in ("topic", "cluster", "messages", "LAC", "subscription", "type", "mark-delete", "backlog"):
        table.add_column(heading, overflow="fold")
    rows = [(each, cluster) for cluster, summary in summaries.items() for each in summary.backlogs]
    for each, cluster in heapq.nlargest(top, rows, key=lambda row: row[0].backlog_messages):
        shown = {"name": each.subscription, **asdict(each)}
        table.add_row(_short(each.topic), cluster, str(each.messages), each.lac, *_subscription(shown))
    return table


def _behind(summaries: Mapping[str, TopicSummary], top: int) -> RenderableType:
    """Return a table of the ``top`` topics that links lag with most, or a sentence if there are none."""
    table = Table(title=f"Topics that links are behind with: {top} at most", title_justify="left")
    for heading in ("topic", "link", "backlog", "lag"):
        table.add_column(heading, overflow="fold")
    rows = [each for summary in summaries.values() for each in summary.behind]
    if not rows:
        return "No link is behind."
    for each in heapq.nlargest(top, rows, key=lambda row: (row.lag_ms, row.backlog_entries)):
        table.add_row(_short(each.topic), each.link, str(each.backlog_entries), f"{each.lag_ms / 1000:.1f} s")
    return table


def _links(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(
        *("from", "to", "state", "backlog", "lag", "messages sent", "MB sent", "disconnects"),
        title="Links",
        title_justify="left",
    )
    for cluster, answer in answers.items():
        for link in answer.get("links", ()):
            state = Text(link["state"], style="green" if link["state"] in GOING_WELL else "red")
            if (progress := link.get("backfill")) is not None:
                state.append(f" {progress['percent']} %")
            if link["detail"]:
                state.append(f": {link['detail']}")
            table.add_row(
                cluster,
                f"{link['to']} ({link['name']})" if link["name"] else link["to"],
                state,
                str(link["backlog_entries"]),
                f"{link['lag_ms'] / 1000:.1f} s",
                str(link["messages"]),
                f"{link['bytes'] / 1e6:.1f}",
                str(link["reconnects"]),
            )
    return table
