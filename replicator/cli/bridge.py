"""``replicator bridge``: topics between workers and the Apache Pulsar brokers that they run beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.console import Group
from rich.text import Text

from replicator.cli.admin import ClusterName, TopicArgument, TopologyFile, opened_topology, rows_table
from replicator.cli.commands import Commands
from replicator.cli.json_types import AcknowledgedTopic, BridgedTopic, RenewedTopic
from replicator.cli.output import Shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection

    from replicator.operating.admin_client import AdminClient

app = Commands(
    help="Topics beside Apache Pulsar brokers: how one stands, and getting one going again that has halted.",
    no_args_is_help=True,
)

NOT_BRIDGED: Final = "NotBridged"


@app.command("status", watched=True)
def status(topic: TopicArgument, file: TopologyFile, cluster: ClusterName = None) -> Shown[list[BridgedTopic]]:
    """Show how a topic stands at the brokers of each cluster: read to, published to, the brokers' end, what is wrong.

    Below the table stands each error, with the command that ends it. Exit status 1 if there is one, or a difference.
    """

    async def ask(client: AdminClient) -> list[Any]:
        answer = await client.call_replication("GET", "bridge", topic=topic)
        return [{"cluster": answer["cluster"], **each} for each in answer["topics"]]

    found, problems = _asked(file, cluster, ask)
    columns = ("cluster", "topic", "state", "read to", "published to", "brokers' end", "unread", "compared")
    table = rows_table(columns, [_row(each) for each in found])
    remarks = [Text(f"\n{remark}", overflow="fold") for each in found for remark in _remarks(each)]
    return Shown(
        found,
        Group(table, *remarks),
        status=3 if problems else 1 if remarks else 0,
        notes=[f"warning: {problem.text}" for problem in problems],
    )


@app.command("renew")
def renew(
    topic: TopicArgument,
    file: TopologyFile,
    cluster: ClusterName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
) -> Shown[list[RenewedTopic]]:
    """Get a topic going again whose reading at brokers has halted, in all clusters or one.

    It deletes no message anywhere. It refuses if new messages would be taken for others, and says how to keep both.
    All clusters are asked first: if one refuses (exit status 1) or does not answer (3), nothing is changed anywhere. If
    one fails after that, it is named, and the others are renewed.
    """

    async def ask(client: AdminClient, dry_run: bool) -> list[Any]:
        answer = await client.call_replication("POST", "bridge/renew", {"topic": topic, "dry_run": dry_run})
        return [{"cluster": answer["cluster"], **each} for each in answer["renewals"]]

    found, problems = _asked(file, cluster, lambda client: ask(client, True))
    if not dry_run and not problems:
        bridging = {each["cluster"] for each in found}
        found, problems = _asked(file, cluster, lambda client: ask(client, False), bridging)
    columns = ("cluster", "topic", "way")
    table = rows_table(columns, [(each["cluster"], each["topic"], each["way"]) for each in found])
    texts = [Text(f"\n{each['cluster']}: {each['topic']}: {each['text']}", overflow="fold") for each in found]
    return _changed(found, Group(table, *texts), problems)


@app.command("acknowledge-missing")
def acknowledge_missing(
    topic: TopicArgument, file: TopologyFile, cluster: ClusterName = None
) -> Shown[list[AcknowledgedTopic]]:
    """Acknowledge that messages of a topic may be missing, in all clusters or one: the status no longer names that.

    Nothing else changes. The places stand in the audit log, with who acknowledged them. Exit status 1 if a cluster
    refuses, 3 if one does not answer.
    """

    async def ask(client: AdminClient) -> list[Any]:
        answer = await client.call_replication("POST", "bridge/acknowledge-missing", {"topic": topic})
        return [{"cluster": answer["cluster"], **each} for each in answer["topics"]]

    found, problems = _asked(file, cluster, ask)
    rows = [
        (each["cluster"], each["topic"], place["after"], place["before"]) for each in found for place in each["places"]
    ]
    return _changed(found, rows_table(("cluster", "topic", "after", "before"), rows), problems)


class _Problem(NamedTuple):
    """Problem in one cluster: it refused the request, or did not answer."""

    text: str
    refused: bool


def _changed(found: list[Any], table: Any, problems: list[_Problem]) -> Shown[list[Any]]:
    """Return the result of a change: exit status 1 if a cluster refused it, else 3 if one did not answer."""
    refused = any(problem.refused for problem in problems)
    return Shown(
        found,
        table,
        status=(1 if refused else 3) if problems else 0,
        notes=[f"{'refused' if problem.refused else 'warning'}: {problem.text}" for problem in problems],
    )


def _asked(
    file: Path,
    cluster: str | None,
    ask: Callable[[AdminClient], Awaitable[list[Any]]],
    bridging: Collection[str] = (),
) -> tuple[list[Any], list[_Problem]]:
    """Ask the workers beside brokers, or the one of ``cluster``; return their answers, and what went wrong.

    Clusters that do not bridge the topic are left out, unless none does, or they are among ``bridging``. Raises the
    error of a cluster that is asked alone and does not answer.
    """
    from replicator.operating.admin_client import AdminClient
    from replicator.operating.errors import AdminError, InvalidAddress, RequestRefused

    topology = opened_topology(file)
    asked = [topology.cluster(cluster)] if cluster else [each for each in topology.clusters if each.apache is not None]
    if not asked:
        raise InvalidAddress(
            f"{file}: no cluster has `kind: pulsar`, and this command is about clusters beside Apache Pulsar brokers: "
            "give the topology file that has them"
        )
    found: list[Any] = []
    problems: list[_Problem] = []
    unknown: list[RequestRefused] = []

    async def run() -> None:
        for each in asked:
            try:
                async with AdminClient(each.url) as client:
                    found.extend(await ask(client))
            except RequestRefused as error:
                if error.code == NOT_BRIDGED and each.name not in bridging:
                    unknown.append(error)
                    continue
                problems.append(_Problem(f"{each.name}: {error}", refused=True))
            except AdminError as error:
                if len(asked) == 1:
                    raise
                problems.append(_Problem(f"{each.name}: {error}", refused=False))

    asyncio.run(run())
    if len(unknown) == len(asked):
        raise unknown[0]
    return found, problems


def _row(topic: Mapping[str, Any]) -> tuple[object, ...]:
    published = [f"{origin} {ends['last'][0]}" for origin, ends in topic["published"].items()]
    compared = topic.get("comparison") or {}  # older workers do not report it
    age = compared.get("age_seconds")
    return (
        topic["cluster"],
        topic["topic"],
        "halted" if topic["halted"] else "failing" if topic["errors"] else "well",
        topic["read_through"] or "–",
        ", ".join(published) or "–",
        compared.get("brokers_end") or "–",
        compared.get("unread", "–"),
        "never" if age is None else f"{age:.0f} s ago",
    )


def _remarks(topic: Mapping[str, Any]) -> Iterator[str]:
    name = f"{topic['cluster']}: {topic['topic']}"
    for part, reason in topic["errors"].items():
        yield f"{name}: {part}: {reason}"
    for difference in (topic.get("comparison") or {}).get("differences", ()):
        yield f"{name}: {difference}"
    for place in topic.get("may_be_missing", ()):
        yield (
            f"{name}: messages may be missing after {place['after']} and before {place['before']}. Once you know what: "
            f"`replicator bridge acknowledge-missing {topic['topic']} -f FILE`"
        )
    late = topic.get("out_of_order") or {"entries": 0}
    if late["entries"]:
        yield f"{name}: {late['entries']} entries stand behind later ones: {', '.join(late['first'])}"
    for subscription, reason in topic["state"]["errors"].items():
        yield f"{name}: subscription {subscription}: {reason}"
