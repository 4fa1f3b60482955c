"""``replicator store``: what a worker's store holds, whether it is whole, and giving room back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from replicator.backup.json_types import RepairAnswer
from replicator.cli.admin import TopologyFile, opened_topology, rows_table
from replicator.cli.commands import Commands
from replicator.cli.json_types import StoreChecked, StoreCompacted, StoreUnknown
from replicator.cli.output import Shown, tell
from replicator.worker.json_types import StoreStatus

app = Commands(help="A worker's store: its size, whether it is whole, room in its segments.", no_args_is_help=True)

Of = Annotated[
    str, typer.Option("--cluster", "-c", metavar="NAME", help="Cluster of the topology whose store is meant.")
]


@app.command(watched=True)
def status(file: TopologyFile) -> Shown[dict[str, StoreStatus | StoreUnknown]]:
    """Show how large the stores of the running workers are, and what lives in their segments."""
    from replicator.operating.status import exit_status, fetch_all

    answers = asyncio.run(fetch_all(opened_topology(file)))
    stores: dict[str, Any] = {
        cluster: {"error": answer["error"]} if "error" in answer else answer["store"]
        for cluster, answer in answers.items()
    }
    columns = ("cluster", "used", "segments", "live in them", "free", "dead", "written", "free on the disk")
    table = rows_table(columns, [(cluster, *_cells(store)) for cluster, store in stores.items()])
    return Shown(stores, table, status=exit_status(answers))


def _cells(store: dict[str, Any]) -> tuple[object, ...]:
    from replicator.topology import rounded_size

    if "error" in store:
        return (store["error"], "", "", "", "", "", "")
    found, disk = store["segments"], store.get("disk") or {}
    written = "past the page cache" if found["direct"] else f"through the page cache: {found['reason']}"
    return (
        rounded_size(store["bytes"]),
        found["segments"],
        *(rounded_size(found[each]) for each in ("live_bytes", "free_bytes", "dead_bytes")),
        written if found["segments"] else "",
        store.get("full") or disk.get("full") or (rounded_size(disk["free_bytes"]) if "free_bytes" in disk else ""),
    )


@app.command()
def check(file: TopologyFile, cluster: Of) -> Shown[StoreChecked]:
    """Check every block of a cluster's store, and look for rows that are missing.

    Exit status 1 if a problem is found. The worker must not run. `replicator verify` compares
    running clusters.
    """
    from replicator.engine.log.store import Store
    from replicator.engine.log.store_check import check_store
    from replicator.engine.log.store_files import check_there

    topology = opened_topology(file)
    of = topology.cluster(cluster)
    check_there(of.data)
    store = Store(of.data, cluster=cluster, size_max=topology.store.size_max, segments=topology.store.segments())
    try:
        found = check_store(store)
    finally:
        store.close()
    problems = [str(problem) for problem in found.problems]
    return Shown(
        {"topics": found.topics, "blocks": found.blocks, "problems": problems},
        f"{found.topics} topics, {found.blocks} blocks: {'damaged' if problems else 'sound'}",
        status=1 if problems else 0,
        notes=[f"damaged: {problem}" for problem in problems],
    )


@app.command()
def repair(
    file: TopologyFile,
    cluster: Of,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Give up messages that are damaged here and that no other cluster has, and list them. All other "
            "clusters must run.",
        ),
    ] = False,
) -> Shown[RepairAnswer]:
    """Repair damaged blocks of a cluster's store, and blocks without rows, from the copies in other clusters.

    The worker must not run, and the other workers must. A worker that does not answer is waited for once, for some
    seconds. Exit status 1 if some blocks stay damaged.
    """
    from replicator.backup.repairing import repair as mend

    done = asyncio.run(mend(opened_topology(file), cluster, tell, accept_loss=accept_loss))
    left = [str(each) for each in done.left]
    return Shown(
        {"blocks": done.blocks, "rows": done.rows, "left": left, "lost": list(done.lost)},
        f"{done.blocks} blocks were mended" + (f", and {done.rows} other rows" if done.rows else ""),
        status=1 if left else 0,
        notes=[*(f"lost: {each}" for each in done.lost), *(f"damaged: {each}" for each in left)],
    )


@app.command()
def compact(file: TopologyFile, cluster: Of) -> Shown[StoreCompacted]:
    """Move what lives in sparse segments together, so that their room is free. The worker must not run.

    A running worker does it by itself for segments in which nothing changes.
    """
    freed, left = asyncio.run(_compact(opened_topology(file), cluster))
    return Shown(
        {"freed_bytes": freed, "dead_bytes": left},
        f"freed {freed} bytes; {left} bytes are dead in segments that are not sparse enough to be moved",
    )


async def _compact(topology: Any, name: str) -> tuple[int, int]:
    from replicator.engine.engine import Engine, EngineSettings
    from replicator.engine.log.store_files import check_there

    check_there(topology.cluster(name).data)
    settings = EngineSettings(
        store_bytes_max=topology.store.size_max, segments=topology.store.segments(), maintained=False
    )
    engine = await Engine.open(topology.cluster(name).data, cluster=name, settings=settings)
    try:
        before = engine.store.segments.status()
        await engine.writer.compact_segments(quiet_only=False)
        after = engine.store.segments.status()
        return before["dead_bytes"] - after["dead_bytes"], after["dead_bytes"]
    finally:
        await engine.close()
