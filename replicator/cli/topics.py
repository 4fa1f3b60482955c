"""``replicator topics``: topics of a cluster, over its worker's admin paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from replicator.api.admin.json_types import CompactionStatus, PulsarInternalStats, PulsarMessageId, PulsarTopicStats
from replicator.cli.admin import (
    Force,
    NamespaceArgument,
    TopicArgument,
    WorkerOptions,
    fields_table,
    names_table,
    opened_topology,
    takes_worker_options,
)
from replicator.cli.commands import Commands
from replicator.cli.json_types import Done
from replicator.cli.output import DONE, Shown
from replicator.cli.policies import Kind, add_policy_commands, topic_policies

app = Commands(no_args_is_help=True)

Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, metavar="N", help="Number of partitions.")]


@app.callback()
def topics(context: typer.Context) -> None:
    """Topics of a cluster: make, grow, look at, compact and delete them, and set their policies."""
    context.obj = Kind.TOPIC


@app.command("list", watched=True)
@takes_worker_options
def list_topics(
    namespace: NamespaceArgument = "public/default",
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="Show only partitioned topics, each once, and not their partitions.")
    ] = False,
    *,
    worker: WorkerOptions,
) -> Shown[list[str]]:
    """List every topic of a namespace that has a log, partitions included."""
    from replicator.operating.admin_client import topics_path

    parts = ("partitioned",) if partitioned else ()
    names = worker.call("GET", topics_path(namespace, *parts))
    return Shown(names, names_table(names))


@app.command("create")
@takes_worker_options
def create(topic: TopicArgument, *, worker: WorkerOptions) -> None:
    """Make a topic without partitions."""
    from replicator.operating.admin_client import topic_path

    worker.call("PUT", topic_path(topic))


@app.command("create-partitioned")
@takes_worker_options
def create_partitioned(topic: TopicArgument, partitions: Partitions, *, worker: WorkerOptions) -> None:
    """Make a partitioned topic. Links carry the number to the other clusters."""
    from replicator.operating.admin_client import topic_path

    worker.call("PUT", topic_path(topic, "partitions"), partitions)


@app.command("grow")
@takes_worker_options
def grow(topic: TopicArgument, partitions: Partitions, *, worker: WorkerOptions) -> None:
    """Give a partitioned topic more partitions; fewer are refused."""
    from replicator.operating.admin_client import topic_path

    worker.call("POST", topic_path(topic, "partitions"), partitions)


@app.command("delete")
@takes_worker_options
def delete(topic: TopicArgument, force: Force = False, *, worker: WorkerOptions) -> Shown[Done]:
    """Delete a topic, with its subscriptions and, of a partitioned one, its partitions. In this cluster only."""
    from replicator.operating.admin_client import AdminClient, topic_path

    async def work(client: AdminClient) -> None:
        found = await client.call("GET", topic_path(topic, "partitions"))
        parts = ("partitions",) if found["partitions"] else ()
        await client.call("DELETE", topic_path(topic, *parts), force=str(force).lower())

    worker.ask(work)
    return Shown(DONE, _copies_stay(topic, worker))


@app.command("stats", watched=True)
@takes_worker_options
def stats(
    topic: TopicArgument,
    internal: Annotated[bool, typer.Option("--internal", help="Show ledgers and cursors instead of rates.")] = False,
    *,
    worker: WorkerOptions,
) -> Shown[PulsarTopicStats | PulsarInternalStats]:
    """Show the figures of a topic, its producers, subscriptions and consumers; for a partitioned one the sums."""
    from replicator.operating.admin_client import AdminClient, topic_path

    async def work(client: AdminClient) -> Any:
        if internal:
            return await client.call("GET", topic_path(topic, "internalStats"))
        found = await client.call("GET", topic_path(topic, "partitions"))
        if found["partitions"]:
            return await client.call("GET", topic_path(topic, "partitioned-stats"), perPartition="false")
        return await client.call("GET", topic_path(topic, "stats"))

    answer = worker.ask(work)
    return Shown(answer, fields_table(answer) if internal else fields_table(_shown(answer)))


@app.command("subscriptions", watched=True)
@takes_worker_options
def subscriptions(topic: TopicArgument, *, worker: WorkerOptions) -> Shown[list[str]]:
    """List the names of a topic's subscriptions."""
    from replicator.operating.admin_client import topic_path

    names = worker.call("GET", topic_path(topic, "subscriptions"))
    return Shown(names, names_table(names))


@app.command("compact")
@takes_worker_options
def compact(
    topic: TopicArgument,
    only_status: Annotated[
        bool,
        typer.Option(
            "--status", help="Start no compaction; print whether the latest one runs, succeeded or failed, and why."
        ),
    ] = False,
    *,
    worker: WorkerOptions,
) -> Shown[CompactionStatus] | None:
    """Start compacting a topic: keep the newest message of each key for those who read compacted."""
    from replicator.operating.admin_client import topic_path

    path = topic_path(topic, "compaction")
    if only_status:
        answer = worker.call("GET", path)
        return Shown(answer, fields_table(answer))
    worker.call("PUT", path)
    return None


@app.command("terminate")
@takes_worker_options
def terminate(topic: TopicArgument, *, worker: WorkerOptions) -> Shown[PulsarMessageId | dict[str, PulsarMessageId]]:
    """Take no more messages of a topic, for ever; its messages can still be consumed. In this cluster only."""
    from replicator.operating.admin_client import AdminClient, topic_path

    async def work(client: AdminClient) -> Any:
        found = await client.call("GET", topic_path(topic, "partitions"))
        parts = ("terminate", "partitions") if found["partitions"] else ("terminate",)
        return await client.call("POST", topic_path(topic, *parts))

    answer = worker.ask(work)
    return Shown(answer, fields_table(answer))


def _copies_stay(topic: str, worker: WorkerOptions) -> str:
    """Return what stays of a topic that was deleted. Without a topology file nobody knows its links."""
    from replicator.engine.topic_name import parse_topic

    name = str(parse_topic(topic))
    if worker.file is None or worker.cluster is None:
        return f"deleted {name} here. Copies at other clusters stay."
    topology = opened_topology(worker.file)
    links = [link for link in topology.links_from(worker.cluster) if topology.carries(link, name)]
    if not links:
        return f"deleted {name} at {worker.cluster}. No link copies it from there."
    led_to = ", ".join(dict.fromkeys(link.destination for link in links))
    count = f"{len(links)} link{'s' * (len(links) != 1)}"
    return f"deleted {name} at {worker.cluster}. Copies stay at other clusters: {count} copied it, to {led_to}."


def _shown(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures without the full lists of consumers and producers."""
    shown = {name: value for name, value in stats.items() if name not in ("subscriptions", "publishers", "partitions")}
    shown["publishers"] = [each["producerName"] for each in stats["publishers"]]
    for name, each in stats["subscriptions"].items():
        shown[f"subscription {name}"] = {
            **each, "consumers": [consumer["consumerName"] for consumer in each["consumers"]]
        }  # fmt: skip
    return shown


app.command("policies")(topic_policies)
add_policy_commands(app)
