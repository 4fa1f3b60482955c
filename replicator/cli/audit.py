"""``replicator audit``: who changed what."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from replicator.cli.admin import (
    ClusterName,
    TopologyFile,
    opened_topology,
    rows_table,
)
from replicator.cli.commands import Commands
from replicator.cli.json_types import AuditEntry
from replicator.cli.output import Shown

app = Commands(help="The audit log: what operators changed.", no_args_is_help=True)


@app.command("list", watched=True)
def list_entries(
    file: TopologyFile,
    cluster: ClusterName = None,
    newest: Annotated[
        int,
        typer.Option(
            "--newest",
            min=1,
            max=10_000,
            help="Number of entries of the audit log to show of each cluster, the newest ones.",
        ),
    ] = 100,
) -> Shown[list[AuditEntry]]:
    """List what was changed in all clusters, or in one, the newest change first: when, from where, and from what to
    what.
    """
    from replicator.operating.admin_client import AdminClient
    from replicator.operating.errors import WorkerUnavailable

    topology = opened_topology(file)
    asked = [topology.cluster(cluster)] if cluster else list(topology.clusters)

    async def ask() -> tuple[list[AuditEntry], list[str]]:
        entries: list[Any] = []
        problems: list[str] = []
        for each in asked:
            try:
                async with AdminClient(each.url) as client:
                    answer = await client.call_replication("GET", "audit", newest=str(newest))
                entries += [{"cluster": each.name, **entry} for entry in answer["entries"]]
            except WorkerUnavailable as error:
                problems.append(str(error))
        return sorted(entries, key=lambda entry: -entry["at_ms"]), problems

    entries, problems = asyncio.run(ask())
    if problems and not entries:
        raise WorkerUnavailable("; ".join(problems))
    columns = ("when", "cluster", "who", "from", "what", "of", "detail")
    return Shown(
        entries,
        rows_table(columns, map(_row, entries)),
        status=3 if problems else 0,  # as `status`: what is shown is not all
        notes=[f"warning: {problem}" for problem in problems],
    )


def _row(entry: AuditEntry) -> tuple[object, ...]:
    detail = dict(entry["detail"] or {})
    asked_from = detail.pop("from", "")
    at = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    shown = json.dumps(detail, ensure_ascii=False) if detail else ""
    return at, entry["cluster"], entry["actor"], asked_from, entry["action"], entry["subject"], shown
