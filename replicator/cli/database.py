"""``replicator db upgrade | downgrade``: the schema of the clusters' Postgres."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.admin import TopologyFile
from replicator.cli.commands import Commands
from replicator.cli.json_types import DatabaseRevision
from replicator.cli.output import Shown

Revisions = dict[str, DatabaseRevision]

app = Commands(help="The Postgres index of a cluster.", no_args_is_help=True)

OnlyCluster = Annotated[
    str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Only this cluster's database.")
]
Revision = Annotated[
    str, typer.Option("--to", metavar="REVISION", help="The newest revision that the older version knows.")
]


@app.command()
def upgrade(file: TopologyFile, cluster: OnlyCluster = None) -> Shown[Revisions]:
    """Bring the databases of a topology to this version's schema. Workers do so by themselves when they start."""
    return asyncio.run(_change(file, cluster, None))


@app.command()
def downgrade(file: TopologyFile, revision: Revision, cluster: OnlyCluster = None) -> Shown[Revisions]:
    """Take the databases of a topology back to an older version's schema; docs/upgrade.md says when that is needed.

    The workers must be stopped: this version's take the schema up again when they start.
    """
    return asyncio.run(_change(file, cluster, revision))


async def _change(file: Path, cluster: str | None, revision: str | None) -> Shown[Revisions]:
    from replicator.index.database import Database
    from replicator.topology import database_of, load_topology

    topology = load_topology(file)
    chosen = topology.clusters if cluster is None else (topology.cluster(cluster),)
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
