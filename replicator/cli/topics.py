"""``replicator topics``: topics of a cluster, over its worker's admin paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from replicator.cli.admin import (
    ClusterName,
    Force,
    NamespaceArgument,
    OutputFormat,
    TopicArgument,
    TopologyFile,
    Url,
    ask,
    call,
    check_output,
    fields_table,
    names_table,
    show,
)
from replicator.cli.policies import Kind, add_policy_commands

app = typer.Typer(no_args_is_help=True)

Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, metavar="N", help="How many partitions.")]


@app.callback()
def topics(context: typer.Context) -> None:
    """Topics of a cluster: make, grow, look at, compact and delete them, and set their policies."""
    context.obj = Kind.TOPIC


@app.command("list")
def list_topics(
    namespace: NamespaceArgument = "public/default",
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="Only partitioned topics, by their own names.")
    ] = False,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
    output: OutputFormat = "table",
) -> None:
    """Every topic of a namespace that has a log, partitions included."""
    from replicator.operating.admin_client import topics_path

    check_output(output)
    parts = ("partitioned",) if partitioned else ()
    names = call(url, file, cluster, "GET", topics_path(namespace, *parts))
    show(output, names, names_table(names))


@app.command("create")
def create(topic: TopicArgument, url: Url = None, file: TopologyFile = None, cluster: ClusterName = None) -> None:
    """Make a topic without partitions."""
    from replicator.operating.admin_client import topic_path

    call(url, file, cluster, "PUT", topic_path(topic))


@app.command("create-partitioned")
def create_partitioned(
    topic: TopicArgument,
    partitions: Partitions,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
) -> None:
    """Make a partitioned topic. Links carry the number to the other clusters."""
    from replicator.operating.admin_client import topic_path

    call(url, file, cluster, "PUT", topic_path(topic, "partitions"), partitions)


@app.command("grow")
def grow(
    topic: TopicArgument,
    partitions: Partitions,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
) -> None:
    """Give a partitioned topic more partitions; fewer are refused."""
    from replicator.operating.admin_client import topic_path

    call(url, file, cluster, "POST", topic_path(topic, "partitions"), partitions)


@app.command("delete")
def delete(
    topic: TopicArgument,
    force: Force = False,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
) -> None:
    """Delete a topic, with its subscriptions and, of a partitioned one, its partitions. In this cluster only."""
    from replicator.operating.admin_client import AdminClient, topic_path

    async def work(client: AdminClient) -> None:
        found = await client.call("GET", topic_path(topic, "partitions"))
        parts = ("partitions",) if found["partitions"] else ()
        await client.call("DELETE", topic_path(topic, *parts), force=str(force).lower())

    ask(url, file, cluster, work)


@app.command("stats")
def stats(
    topic: TopicArgument,
    internal: Annotated[bool, typer.Option("--internal", help="Ledgers and cursors instead.")] = False,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
    output: OutputFormat = "table",
) -> None:
    """The figures of a topic, its producers, subscriptions and consumers; of a partitioned one the sums."""
    from replicator.operating.admin_client import AdminClient, topic_path

    check_output(output)

    async def work(client: AdminClient) -> Any:
        if internal:
            return await client.call("GET", topic_path(topic, "internalStats"))
        found = await client.call("GET", topic_path(topic, "partitions"))
        if found["partitions"]:
            return await client.call("GET", topic_path(topic, "partitioned-stats"), perPartition="false")
        return await client.call("GET", topic_path(topic, "stats"))

    answer = ask(url, file, cluster, work)
    show(output, answer, fields_table(answer) if internal else fields_table(_shown(answer)))


@app.command("subscriptions")
def subscriptions(
    topic: TopicArgument,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
    output: OutputFormat = "table",
) -> None:
    """The names of a topic's subscriptions."""
    from replicator.operating.admin_client import topic_path

    check_output(output)
    names = call(url, file, cluster, "GET", topic_path(topic, "subscriptions"))
    show(output, names, names_table(names))


@app.command("compact")
def compact(
    topic: TopicArgument,
    only_status: Annotated[bool, typer.Option("--status", help="Only say how far it is.")] = False,
    url: Url = None,
    file: TopologyFile = None,
    cluster: ClusterName = None,
    output: OutputFormat = "table",
) -> None:
    """Start compacting a topic: keep the newest message of each key for those who read compacted."""
    from replicator.operating.admin_client import topic_path

    check_output(output)
    path = topic_path(topic, "compaction")
    if only_status:
        answer = call(url, file, cluster, "GET", path)
        show(output, answer, fields_table(answer))
    else:
        call(url, file, cluster, "PUT", path)


def _shown(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Without what lists consumers and producers whole."""
    shown = {name: value for name, value in stats.items() if name not in ("subscriptions", "publishers", "partitions")}
    shown["publishers"] = [each["producerName"] for each in stats["publishers"]]
    for name, each in stats["subscriptions"].items():
        shown[f"subscription {name}"] = {
            **each, "consumers": [consumer["consumerName"] for consumer in each["consumers"]]
        }  # fmt: skip
    return shown


add_policy_commands(app)
