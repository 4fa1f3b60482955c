"""``replicator status``: what the workers of a topology say, side by side."""

from __future__ import annotations

import asyncio
import http
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from rich.console import Group
from rich.table import Table
from rich.text import Text

from replicator.engine.topic_name import SCHEME
from replicator.security.asking import worker_session, worker_url
from replicator.topology import Topology

ANSWER_SECONDS_MAX: Final = 5.0
REASON_CHARS_MAX: Final = 500
TROUBLES_SHOWN_MAX: Final = 10
"""Of one worker beside Apache Pulsar; a broker that is away troubles every topic."""
_REFUSED: Final = frozenset({401, 403})
_GOING_WELL: Final = frozenset({"idle", "copying", "backfilling"})


async def fetch_all(topology: Topology) -> dict[str, dict[str, Any]]:
    """The status of every worker by cluster; for one that gives none, what :func:`fetch` says."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    async with worker_session(timeout=timeout) as session:
        answers = await asyncio.gather(*(fetch(session, cluster.address) for cluster in topology.clusters))
    return dict(zip(topology.names, answers, strict=True))


async def fetch(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    """The status of the worker at ``address``; else ``error`` says why not, and ``status`` is HTTP's, or None if it did
    not answer."""
    try:
        async with session.get(f"{worker_url(address)}/replication/v1/status") as response:
            if response.status >= http.HTTPStatus.BAD_REQUEST:
                reason = _reason(await response.text(errors="replace")) or response.reason
                return {"error": f"{address}: status {response.status}: {reason}", "status": response.status}
            answer: dict[str, Any] = await response.json()
            return answer
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno  # its text repeats the address, and not what is wrong
        return _unanswered(f"{address}: {os.strerror(number).lower() if number else 'cannot connect'}")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return _unanswered(f"{address}: {error or 'no answer'}")


def _unanswered(text: str) -> dict[str, Any]:
    return {"error": text, "status": None}


def _reason(body: str) -> str:
    """What a worker says; of what stands between, such as a proxy's page, nothing."""
    try:
        return str(json.loads(body)["message"])[:REASON_CHARS_MAX]
    except (ValueError, KeyError, TypeError):
        return ""


def exit_status(answers: Mapping[str, Mapping[str, Any]]) -> int:
    """3 if a worker does not answer, 2 if those that give nothing all refuse, else 0."""
    without = [answer for answer in answers.values() if "error" in answer]
    if not without:
        return 0
    return 2 if all(answer["status"] in (401, 403) for answer in without) else 3


def render(answers: Mapping[str, Mapping[str, Any]]) -> Group:
    """Three tables for people: workers, topics with their subscriptions, links."""
    tables = [_workers(answers)]
    if not all("error" in answer for answer in answers.values()):
        tables += [_topics(answers), _links(answers)]
    statuses = {answer["status"] for answer in answers.values() if "error" in answer}
    if statuses & _REFUSED:
        return Group(*tables, "A worker that refuses wants the token of a role that may read it: docs/security.md.")
    if len(tables) == 1 and statuses == {None}:
        return Group(*tables, "No worker answers; start them with `replicator up -f FILE`.")
    return Group(*tables)


def _workers(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    headings = ("cluster", "state", "serves", "epoch", "database", "topics", "store MB")
    table = Table(*headings, title="Workers", title_justify="left")
    for cluster, answer in answers.items():
        if "error" in answer:
            table.add_row(cluster, Text(answer["error"], style="red"), "", "", "", "", "")
            continue
        failed = answer["store"]["failed"]
        state = Text(failed, style="red") if failed else _ready(answer.get("tasks"))
        if full := answer["store"].get("full") or (answer["store"].get("disk") or {}).get("full"):
            state.append(f"\ntakes no messages: {full}", style="red")
        if exposed := answer.get("exposed"):
            state.append(f"\ninsecure: anybody can connect to {', '.join(exposed)}", style="yellow")
        if restored := answer.get("restored"):
            state.append(f"\n{_restored(restored)}", style="yellow")
        for trouble in _troubles_of_bridge(answer.get("apache")):
            state.append(f"\n{trouble}", style="red")
        size = f"{answer['store']['bytes'] / 1e6:.1f}"
        serves, epoch = _serves(answer.get("failover"))
        table.add_row(cluster, state, serves, epoch, answer["database"]["state"], str(len(answer["topics"])), size)
    return table


def _troubles_of_bridge(apache: Mapping[str, Any] | None) -> list[str]:
    """What keeps a worker beside Apache Pulsar from copying, a line each; at most :data:`TROUBLES_SHOWN_MAX`."""
    if apache is None:
        return []
    troubles = [f"Apache Pulsar: {each}" for each in (apache["error"], apache.get("limited")) if each]
    troubles += [f"not bridged {topic}: {reason}" for topic, reason in apache["refused"].items()]
    for topic in apache["topics"]:
        word = "halted" if topic["halted"] else "failing"
        troubles += [f"{word} {topic['topic']}, {part}: {reason}" for part, reason in topic["errors"].items()]
        states = topic["state"]["errors"].items()
        troubles += [f"subscription {name} of {topic['topic']}: {reason}" for name, reason in states]
    more = len(troubles) - TROUBLES_SHOWN_MAX
    return troubles if more <= 0 else [*troubles[:TROUBLES_SHOWN_MAX], f"… and {more} more (--output json)"]


def _restored(mark: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(mark["made_at_ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    lost = "".join(f"; lost: {each}" for each in mark["lost"])
    return f"restored to {at} (backup {mark['backup']}); {mark['reclaimed_messages']} messages came back{lost}"


def _ready(tasks: Mapping[str, Any] | None) -> Text:
    """A worker that is ready names its tasks that end again and again; one of an older version does not say."""
    failing = [] if tasks is None else tasks["failing"]
    if not failing:
        return Text("ready", style="green")
    return Text("ready; failing: " + ", ".join(f"{task['name']} ({task['cause']})" for task in failing), style="yellow")


def _serves(failover: Mapping[str, Any] | None) -> tuple[Text, str]:
    """Whose clients a worker serves, and since which failover; a worker of an older version does not say."""
    if failover is None:
        return Text(""), ""
    if failover["fenced"]:
        return Text(f"nobody: fenced, {failover['served_by']} serves", style="red"), str(failover["epoch"])
    serves = ", ".join(failover["serves"])
    if failover["producers"] != "open":
        serves += f" ({failover['producers']})"
    return Text(serves), str(failover["epoch"])


def _topics(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="Topics", title_justify="left")
    for heading in ("topic", "cluster", "messages", "LAC", "subscription", "type", "mark-delete", "backlog"):
        table.add_column(heading, overflow="fold")  # a name or a position that is cut off names nothing
    rows = [
        (topic["name"], cluster, topic) for cluster, answer in answers.items() for topic in answer.get("topics", ())
    ]
    for name, cluster, topic in sorted(rows, key=lambda row: row[:2]):
        subscriptions = topic["subscriptions"] or [None]
        for index, subscription in enumerate(subscriptions):
            head = [_short(name), cluster, str(topic["messages"]), topic["lac"]] if index == 0 else ["", "", "", ""]
            table.add_row(*head, *_subscription(subscription))
    return table


def _short(topic: str) -> str:
    """The shortest form of a topic's name that every command accepts."""
    return topic.removeprefix(SCHEME).removeprefix("public/default/")


def _subscription(subscription: Mapping[str, Any] | None) -> list[str]:
    if subscription is None:
        return ["", "", "", ""]
    name = subscription["name"] + (" (replicated)" if subscription["replicated"] else "")
    return [
        name, subscription["type"] or "–", subscription["mark_delete"], str(subscription["backlog_messages"])
    ]  # fmt: skip


def _links(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(
        *("from", "to", "state", "backlog", "lag", "messages sent", "MB sent", "reconnects"),
        title="Links",
        title_justify="left",
    )
    for cluster, answer in answers.items():
        for link in answer.get("links", ()):
            state = Text(link["state"], style="green" if link["state"] in _GOING_WELL else "red")
            if (progress := link.get("backfill")) is not None:
                state.append(f" {progress['percent']} %")
            if link["detail"]:
                state.append(f": {link['detail']}")
            for topic, reason in link["halted"].items():
                state.append(f"\nhalted {topic}: {reason}", style="red")
            for topic in link["hold_exceeded"]:
                state.append(f"\nholds back too much of {topic} ({link['on_hold_exceeded']})", style="red")
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
