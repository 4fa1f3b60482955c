"""``replicator backup``: backups of a worker's store, and restoring them."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from replicator.backup.json_types import (
    BackupAnswer,
    BackupsPruned,
    BackupsVerified,
    ReclaimAnswer,
    ReclaimPlanAnswer,
    RestoreAnswer,
    SoundBackup,
)
from replicator.cli.admin import TopologyFile, opened_topology, rows_table
from replicator.cli.commands import Commands
from replicator.cli.output import Shown, megabytes_told, tell
from replicator.cli.reclaim_texts import damage_lines, plan_json, plan_lines, reclaimed_json, reclaimed_lines

if TYPE_CHECKING:
    from replicator.backup.manifest import Manifest
    from replicator.backup.reclaiming import Progress, Reclaimed

app = Commands(help="Backups of a worker's store: made while it runs, checked, restored.", no_args_is_help=True)

NOT_WHOLE: Final = 4
"""Exit status for a backup that lacks blocks because they were damaged in the store."""
PROGRESS_SECONDS: Final = 5.0
"""Pause between two lines about the progress of a reclaim."""

GONE: Final = (
    "Gone are, as far as they are newer: messages that no other cluster has; acknowledgements that no other "
    "cluster was told, so that these messages are delivered again; policies, permissions, tenants and namespaces that "
    "no other cluster was told; sequence ids of producers and Spark writers, so that what they send again may be "
    "stored twice. The audit log and drill reports are in Postgres, not in the backup. Topics and subscriptions that "
    "were deleted since are back. See docs/backup.md."
)

TAKES_PLACE: Final = (
    "Caution: a worker that is started on this store with the topology of {cluster} takes the place of a worker of "
    "{cluster} that still runs elsewhere. The other clusters then take this store for the newest, and that worker ends "
    "with status 2."
)

At = Annotated[
    str,
    typer.Option(
        "--at", metavar="URL", help="Place of the backups: a directory, or a URL that fsspec knows, such as s3://…"
    ),
]
Of = Annotated[str, typer.Option("--cluster", "-c", metavar="NAME", help="Cluster whose store the backup holds.")]
TakesBack = Annotated[
    str,
    typer.Option(
        "--cluster", "-c", metavar="NAME", help="Cluster whose lost messages are taken back from the other clusters."
    ),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--backup",
        metavar="ID",
        help="Id of the backup to use, as `backup list` shows it; without it, the newest backup.",
    ),
]
OptionalFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Topology file, which names the cluster's directory to restore into; or give --into.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="NAME",
        help="Take back nothing from this cluster, as its worker cannot answer. May be given again.",
    ),
]


@app.command()
def create(
    file: TopologyFile,
    cluster: Of,
    at: At,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Read the store's directory, and do not ask its worker, which must not run."),
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", min=1, metavar="N", help="Afterwards delete all but the N newest backups, as `prune` does."
        ),
    ] = None,
) -> Shown[list[BackupAnswer]]:
    """Make a backup of a cluster's store, while the worker runs.

    The backup has everything that was confirmed before the command began. Parts of the store that the destination
    already has are not sent again. Exit status 4 if the store has damaged blocks: the backup names them, and has
    everything else.
    """
    from functools import partial

    from replicator.backup.creating import create as make
    from replicator.backup.destination import Destination
    from replicator.backup.errors import BackupError
    from replicator.backup.manifest import time_of
    from replicator.backup.pruning import prune as delete_old
    from replicator.backup.sources import of_directory, of_worker

    of = opened_topology(file).cluster(cluster)
    source: Any = partial(of_directory, of.data, cluster) if offline else partial(of_worker, of.url)
    manifest = make(Destination(at), cluster, source, megabytes_told("copied"))
    notes = damage_lines([manifest])
    if time_of(manifest.id) > manifest.made_at_ms:
        notes.append(
            f"the backup is named {manifest.id}, after the newest one there, which was made when a clock was ahead: "
            f"this machine's clock said {manifest.made_at}"
        )
    if keep is not None:
        try:
            delete_old(Destination(at), cluster, keep)
        except BackupError as error:
            notes.append(f"older backups stay for now: {error}")
    return _shown([manifest], notes, NOT_WHOLE if manifest.damaged else 0)


@app.command("list")
def list_backups(
    at: At,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Show only backups of this cluster.")
    ] = None,
) -> Shown[list[BackupAnswer]]:
    """List the backups at a destination, the newest first. Exit status 1 if a backup is damaged."""
    from replicator.backup.destination import Destination
    from replicator.backup.errors import BackupDamaged
    from replicator.backup.manifest import Manifests, clusters_at

    destination = Destination(at)
    found, problems = [], []
    for each in [cluster] if cluster else clusters_at(destination):
        manifests = Manifests(destination, each)
        for backup in manifests.ids():
            try:
                found.append(manifests.read(backup))
            except BackupDamaged as error:
                problems.append(str(error))
    return _shown(found, [f"damaged: {problem}" for problem in problems], 1 if problems else 0)


@app.command()
def verify(
    at: At,
    cluster: Of,
    backup: Id = None,
    every: Annotated[bool, typer.Option("--all", help="Verify all backups of the cluster.")] = False,
    scratch: Annotated[
        Path | None,
        typer.Option(
            "--scratch",
            metavar="DIR",
            help="Directory to unpack the backup's store in for the check; it needs room for all of it.",
        ),
    ] = None,
) -> Shown[BackupsVerified]:
    """Read all of a backup, open the store in it, and check every block. Exit status 1 if a problem is found.

    Exit status 4 if the backup is as it was made, but the store had damaged blocks then.
    """
    from replicator.backup.destination import Destination
    from replicator.backup.errors import BackupDamaged
    from replicator.backup.manifest import Manifests
    from replicator.backup.restoring import verify as check

    if scratch is not None and not scratch.is_dir():
        raise typer.BadParameter(f"--scratch: {scratch} is no directory: make it, or name another one")
    destination = Destination(at)
    manifests = Manifests(destination, cluster)
    chosen = manifests.ids() if every else [backup or manifests.newest()]
    if not chosen:
        raise typer.BadParameter(
            f"there is no backup of cluster {cluster} at {destination.url}: correct --cluster or --at"
        )
    problems: list[str] = []
    sound: list[SoundBackup] = []
    lines: list[str] = []
    not_whole: list[Manifest] = []
    for each in chosen:
        with tempfile.TemporaryDirectory(dir=scratch, prefix="replicator-verify-") as directory:
            try:
                checked = check(destination, cluster, Path(directory), backup=each, progress=megabytes_told("read"))
            except BackupDamaged as error:  # its manifest; the others may be whole
                problems.append(str(error))
                continue
        manifest = checked.manifest
        if checked.problems:
            problems += [f"{manifest.id}: {problem}" for problem in checked.problems]
            continue
        damage = f"sound but for {len(manifest.damaged)} blocks" if manifest.damaged else "sound"
        lines.append(
            f"{manifest.id}: {checked.topics} topics, {checked.blocks} blocks, {manifest.size} bytes: {damage}"
        )
        sound.append({"id": manifest.id, "topics": checked.topics, "blocks": checked.blocks, "bytes": manifest.size,
                      "damaged_blocks": len(manifest.damaged)})  # fmt: skip
        not_whole += [manifest] if manifest.damaged else []
    return Shown(
        {"sound": sound, "problems": problems},
        "\n".join(lines),
        status=1 if problems else NOT_WHOLE if not_whole else 0,
        notes=[*damage_lines(not_whole), *(f"damaged: {problem}" for problem in problems)],
    )


@app.command()
def restore(
    at: At,
    cluster: Of,
    file: OptionalFile = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Restore into this directory, instead of the cluster's."),
    ] = None,
    backup: Id = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move a store that is already there aside; it stays in the directory.")
    ] = False,
    if_empty: Annotated[
        bool,
        typer.Option(
            "--if-empty",
            help="Change nothing if the cluster has a store; go on with a restore that was cut off. For scripts that "
            "run before each start of a worker.",
        ),
    ] = False,
    no_reclaim: Annotated[
        bool,
        typer.Option(
            "--no-reclaim",
            help="Take back no newer messages from other clusters yet; `replicator backup reclaim` does so later.",
        ),
    ] = False,
    without: Without = None,
) -> Shown[RestoreAnswer]:
    """Restore a backup into a cluster's directory, and take back the cluster's later messages from other clusters.

    The worker must not run. With --into the other clusters are not asked. Exit status 4 if the store had damaged
    blocks when the backup was made. These blocks cannot be read until they are mended from other clusters.
    """
    from replicator.backup.destination import Destination
    from replicator.backup.restore_order import beside_in
    from replicator.backup.restoring import RemainingStep, remaining_step
    from replicator.backup.restoring import restore as put_back
    from replicator.engine.lineage import reclaim_command
    from replicator.engine.restored import first_restored, order_advice

    if (file is None) == (into is None):
        raise typer.BadParameter(
            "give either -f FILE, to restore into the cluster's directory, or --into DIR, and not both"
        )
    if replace and if_empty:
        raise typer.BadParameter("--replace and --if-empty exclude each other: give one of them, or none")
    data = into if file is None else opened_topology(file).cluster(cluster).data
    assert data is not None
    left = remaining_step(data) if if_empty else RemainingStep.ALL
    if left is not RemainingStep.ALL:
        reclaims = left is RemainingStep.RECLAIM and not no_reclaim
        return _restored_before(file if reclaims else None, cluster, data, without)
    manifest, _, aside = put_back(
        Destination(at), cluster, data, backup=backup, replace=replace, progress=megabytes_told("restored")
    )
    lines = [f"restored {cluster} into {data} from backup {manifest.id}, made at {manifest.made_at}"]
    if aside is not None:
        lines.append(
            f"the store that was there is in {aside}. It may have the only copy of what is newer than the backup: "
            f"`{reclaim_command(cluster)} --from-directory {shlex.quote(str(aside))}` takes that over, before the "
            "worker starts"
        )
    lines += [GONE, TAKES_PLACE.format(cluster=cluster)]
    value: RestoreAnswer = {
        "cluster": cluster,
        "into": str(data),
        "backup": manifest.id,
        "aside": None if aside is None else str(aside),
        "damaged_blocks": len(manifest.damaged),
        "reclaimed": None,
    }
    done: Reclaimed | None = None
    lines += [
        f"Warning: {each} may have messages of {cluster} that are not taken back, as --without names {each.cluster}. "
        f"If it can be restored, restore it first, and start it: then restore {cluster} again (docs/backup.md)"
        for each in first_restored(cluster, beside_in(data))
        if each.cluster in (without or ())
    ]
    if file is not None and not no_reclaim:
        done, settings = _reclaimed(file, cluster, without)
        lines += reclaimed_lines(cluster, done, settings)
        value["reclaimed"] = reclaimed_json(done, settings)
    else:
        lines.append(
            f"Before its worker starts: replicator backup reclaim -f FILE --cluster {cluster}  (takes back what other "
            "clusters have)"
        )
        lines.append(f"{order_advice(cluster, beside_in(data))}.")
    if not manifest.damaged:
        return Shown(value, "\n".join(lines), status=_status(done))
    name = file or "FILE"
    mending = (
        "They are not served. The worker asks other clusters for each that is read; "
        f"`replicator verify --fix -f {name}` has all of them mended when it runs, and "
        f"`replicator store repair -f {name} -c {cluster}` before."
    )
    return Shown(value, "\n".join(lines), status=NOT_WHOLE, notes=[*damage_lines([manifest]), mending])


def _restored_before(file: Path | None, cluster: str, data: Path, without: list[str] | None) -> Shown[RestoreAnswer]:
    """Restore nothing, because ``data`` has a store. With ``file``, finish the reclaim of a restore before."""
    value: RestoreAnswer = {
        "cluster": cluster,
        "into": str(data),
        "backup": None,
        "aside": None,
        "damaged_blocks": 0,
        "reclaimed": None,
    }
    if file is None:
        return Shown(value, f"{data} has a store: nothing was restored")
    done, settings = _reclaimed(file, cluster, without)
    lines = [f"{data} has a restored store already: the other clusters were asked"]
    lines += reclaimed_lines(cluster, done, settings)
    return Shown({**value, "reclaimed": reclaimed_json(done, settings)}, "\n".join(lines), status=_status(done))


@app.command()
def reclaim(
    file: TopologyFile,
    cluster: TakesBack,
    without: Without = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show which messages would come back, from which clusters. Change nothing."),
    ] = False,
    bytes_per_second: Annotated[
        int | None,
        typer.Option(
            "--bytes-per-second",
            metavar="N",
            min=1,
            help="Limit of bytes that are read each second, from all clusters together.",
        ),
    ] = None,
    from_directory: Annotated[
        Path | None,
        typer.Option(
            "--from-directory",
            metavar="DIR",
            help="Also read messages from this directory, which holds another copy of the cluster's store.",
        ),
    ] = None,
) -> Shown[ReclaimAnswer] | Shown[ReclaimPlanAnswer]:
    """Take back lost messages of a cluster from other clusters that have copies, and newer policies and permissions
    that they keep for it. `restore` also does this.

    The worker of the cluster must not run, and the other workers must. With --from-directory, also take back what only
    another copy of the store has; the worker of that copy must not run either.

    Ctrl-C pauses it, with exit status 3. Run it again if it was paused or cut off. Exit status 4 if messages are lost
    because the only cluster that has them has a damaged block.
    """
    if dry_run:
        from replicator.backup.dry_run import plan_reclaim

        planned = plan_reclaim(
            opened_topology(file), cluster, without=frozenset(without or ()), from_directory=from_directory
        )
        plan = asyncio.run(planned)
        return Shown(plan_json(plan), "\n".join(plan_lines(cluster, plan)))
    done, settings = _reclaimed(file, cluster, without, bytes_per_second, from_directory)
    lines = reclaimed_lines(cluster, done, settings)
    return Shown(reclaimed_json(done, settings), "\n".join(lines), status=_status(done))


def _status(done: Reclaimed | None) -> int:
    return NOT_WHOLE if done is not None and done.damaged else 0


@app.command()
def prune(
    at: At,
    cluster: Of,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", min=1, metavar="N", help="Number of the newest backups to keep; older ones are deleted."
        ),
    ],
) -> Shown[BackupsPruned]:
    """Delete old backups, and the stored parts that no backup needs any more."""
    from replicator.backup.destination import Destination
    from replicator.backup.pruning import prune as delete_old

    done = delete_old(Destination(at), cluster, keep)
    return Shown(
        {"backups": list(done.backups), "chunks": done.chunks, "freed_bytes": done.freed_bytes},
        f"deleted {len(done.backups)} backups and {done.chunks} chunks: {done.freed_bytes} bytes",
    )


def _reclaimed(
    file: Path,
    cluster: str,
    without: list[str] | None,
    bytes_per_second: int | None = None,
    from_directory: Path | None = None,
) -> tuple[Reclaimed, dict[str, Any] | None]:
    """Take back messages, and then policies and permissions. Return what came back of both."""
    from replicator.backup.reclaim_reading import Pace
    from replicator.backup.reclaiming import reclaim as take_back
    from replicator.backup.restore_order import add_restore_order
    from replicator.worker.taking_settings import take_settings_of

    async def run() -> tuple[Reclaimed, dict[str, Any] | None]:
        pace, loop = Pace(bytes_per_second), asyncio.get_running_loop()

        def interrupted() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            tell("pausing after what is read now; Ctrl-C again ends it at once, which loses nothing either")
            pace.pause()

        with suppress(NotImplementedError, RuntimeError, ValueError):  # not on the main thread, or not on this platform
            loop.add_signal_handler(signal.SIGINT, interrupted)
        done = await take_back(
            topology,
            cluster,
            without=frozenset(without or ()),
            from_directory=from_directory,
            pace=pace,
            on_progress=_reclaim_progress(),
        )
        return done, await take_settings_of(topology, cluster, without or ())

    topology = opened_topology(file)
    with add_restore_order(topology.cluster(cluster).data, cluster):
        return asyncio.run(run())


def _reclaim_progress() -> Callable[[Progress], None]:
    """Return a function that shows at a terminal, every few seconds, how far a reclaim is."""
    shown = time.monotonic()

    def told(progress: Progress) -> None:
        nonlocal shown
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown >= PROGRESS_SECONDS:
            shown = now
            tell(
                f"topic {progress.number} of {progress.topics}: {progress.messages} messages of {progress.topic}; "
                f"read {progress.read_bytes / 1e6:.0f} MB in all"
            )

    return told


def _shown(manifests: list[Manifest], notes: list[str], status: int) -> Shown[list[BackupAnswer]]:
    rows: list[BackupAnswer] = [
        {
            "id": each.id,
            "cluster": each.cluster,
            "made_at_ms": each.made_at_ms,
            "bytes": each.size,
            "written_bytes": each.written_bytes,
            "topics": len(each.topics),
            "damaged_blocks": len(each.damaged),
            "version": each.version,
        }
        for each in manifests
    ]
    columns = ("backup", "cluster", "made at", "bytes", "written", "topics", "damaged blocks", "version")
    shown = [
        (m.id, m.cluster, m.made_at, m.size, m.written_bytes, len(m.topics), len(m.damaged), m.version)
        for m in manifests
    ]
    return Shown(rows, rows_table(columns, shown), status=status, notes=notes)
