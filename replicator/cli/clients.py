"""``replicator clients``: the clients that are connected to a worker."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from replicator.cli.admin import ClusterName, TopologyFile, opened_topology
from replicator.cli.commands import Commands
from replicator.cli.json_types import ClientsClosed
from replicator.cli.output import Shown

app = Commands(help="Clients that are connected: end one that takes too much.", no_args_is_help=True)


@app.command()
def close(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="Which clients to disconnect: HOST:PORT of one connection, as `status` names it, or HOST for all from "
            "there.",
        ),
    ],
    file: TopologyFile,
    cluster: ClusterName = None,
) -> Shown[list[ClientsClosed]]:
    """Close a client's connections to the worker of one cluster, or of all clusters.

    The client may connect again: to keep it away, take its permissions. Exit status 1 if nobody is connected there.
    """
    from replicator.operating.admin_client import AdminClient
    from replicator.operating.errors import RequestRefused, WorkerUnavailable

    topology = opened_topology(file)
    asked = [topology.cluster(cluster)] if cluster else list(topology.clusters)
    closed: list[ClientsClosed] = []
    problems: list[str] = []

    async def ask() -> None:
        for each in asked:
            try:
                async with AdminClient(each.url) as client:
                    closed.append(await client.call_replication("POST", "clients/close", address=address))
            except RequestRefused as error:
                if error.code != "ClientNotFound":
                    raise
            except WorkerUnavailable as error:
                problems.append(str(error))

    asyncio.run(ask())
    if len(problems) == len(asked):
        raise WorkerUnavailable("; ".join(problems))
    lines = [f"{each['cluster']}: closed {each['closed']} connections from {address}" for each in closed]
    return Shown(
        closed,
        "\n".join(lines) or f"nobody is connected from {address}",
        status=3 if problems else 0 if closed else 1,
        notes=[f"warning: {problem}" for problem in problems],
    )
