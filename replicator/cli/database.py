"""``replicator db upgrade | downgrade``: the schema of the clusters' Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replicator.cli.admin import TopologyFile
from replicator.cli.commands import Commands
from replicator.cli.json_types import DatabaseRevision
from replicator.cli.output import Shown

if TYPE_CHECKING:
    from replicator.topology import Cluster, Topology

Revisions = dict[str, DatabaseRevision]

app = Commands(help="The Postgres index of a cluster.", no_args_is_help=True)

OnlyCluster = Annotated[
    str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Change only this cluster's database.")
]
Revision = Annotated[
    str,
    typer.Option(
        "--to", metavar="REVISION", help="Revision that the schema gets: the newest one that the older version knows."
    ),
]


@app.command()
def upgrade(file: TopologyFile, cluster: OnlyCluster = None) -> Shown[Revisions]:
    """Bring the databases of a topology to this version's schema. Workers do so by themselves when they start."""
    return asyncio.run(_change(file, cluster, None))


@app.command()
def downgrade(file: TopologyFile, revision: Revision, cluster: OnlyCluster = None) -> Shown[Revisions]:
    """Take the databases of a topology back to an older version's schema; docs/upgrade.md says when that is needed.

    Refused while a worker that uses the database runs, because a new worker would upgrade the schema again.
    """
    return asyncio.run(_change(file, cluster, revision))


async def _change(file: Path, cluster: str | None, revision: str | None) -> Shown[Revisions]:
    from replicator.index.database import Database
    from replicator.topology import database_of, load_topology

    topology = load_topology(file)
    chosen = topology.clusters if cluster is None else (topology.cluster(cluster),)
    if revision is not None:
        await _check_unused(topology, chosen)
    revisions: dict[str, str | None] = {}
    for each in chosen:
        database = Database(database_of(each), each.data, cluster=each.name, known_good=False)
        try:
            await database.start()
            if revision is not None:
                await database.downgrade(revision)
            revisions[each.name] = await database.revision()
        finally:
            await database.stop()
    lines = [f"{name}: the database is at revision {at}" for name, at in revisions.items()]
    return Shown({name: {"revision": at} for name, at in revisions.items()}, "\n".join(lines))


async def _check_unused(topology: Topology, chosen: Sequence[Cluster]) -> None:
    """Raise :class:`DatabaseInUse` if a running worker uses the database of a chosen cluster.

    A worker on this machine is found by its data directory, a worker elsewhere by an answer at its address. Clusters
    may share a database.
    """
    from replicator.engine.log.store_files import is_in_use
    from replicator.index.database import DatabaseInUse
    from replicator.operating.status import fetch_all

    shared = {_shared_database(each) for each in chosen} - {None}
    answers = await fetch_all(topology)
    for each in topology.clusters:
        if each not in chosen and _shared_database(each) not in shared:
            continue
        if is_in_use(each.data):
            where = f"on {each.data}"
        elif "error" not in answers[each.name] or answers[each.name]["status"] is not None:
            where = f"and answers at {each.address}"
        else:
            continue
        raise DatabaseInUse(
            f"clusters.{each.name}.database: the worker of {each.name} runs {where}: stop it, then downgrade the "
            "database's schema; a running worker would upgrade the schema again"
        )


def _shared_database(cluster: Cluster) -> str | None:
    """Return a fingerprint of the cluster's database; None if the cluster has its own, or if its setting cannot be read
    here."""
    from sqlalchemy.exc import ArgumentError

    from replicator.index.database import Database
    from replicator.topology import EMBEDDED, TopologyError, database_of

    try:
        setting = database_of(cluster)
        return None if setting == EMBEDDED else Database.fingerprint_of(setting)
    except (ArgumentError, ValueError, TopologyError):
        return None
