"""``replicator backup``: backups of a worker's store, and restoring them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from replicator.backup.json_types import (
    BackupAnswer,
    BackupsPruned,
    BackupsVerified,
    ReclaimAnswer,
    RestoreAnswer,
    SoundBackup,
)
from replicator.cli.admin import TopologyFile, opened_topology, rows_table
from replicator.cli.commands import Commands
from replicator.cli.output import Shown, tell

if TYPE_CHECKING:
    from replicator.backup.manifest import Manifest
    from replicator.backup.reclaiming import Reclaimed

app = Commands(help="Backups of a worker's store: made while it runs, checked, restored.", no_args_is_help=True)

NOT_WHOLE: Final = 4
"""The exit status where a backup is as good as the store was, and that had damaged blocks."""
NAMED_MAX: Final = 10
"""Damaged blocks that a warning names; the manifest has all."""

GONE: Final = (
    "Gone are, as far as they are newer: messages that no other cluster has; acknowledgements that no other "
    "cluster was told, so that these messages are delivered again; policies, permissions, tenants and namespaces; "
    "sequence ids of producers and Spark writers, so that what they send again may be stored twice. The audit log "
    "and drill reports are in Postgres, not in the backup. Topics and subscriptions that were deleted since are "
    "back. See docs/backup.md."
)

At = Annotated[
    str,
    typer.Option(
        "--at", metavar="URL", help="Where backups are kept: a directory, or a URL that fsspec knows, such as s3://…"
    ),
]
Of = Annotated[str, typer.Option("--cluster", "-c", metavar="NAME", help="Whose backups.")]
Id = Annotated[str | None, typer.Option("--backup", metavar="ID", help="Which backup; the newest if none is named.")]
OptionalFile = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="The topology that has the cluster's directory.")
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without", metavar="NAME", help="A cluster that is not asked, as it will not answer. May be repeated."
    ),
]


@app.command()
def create(
    file: TopologyFile,
    cluster: Of,
    at: At,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the directory itself, of a worker that does not run.")
    ] = False,
) -> Shown[list[BackupAnswer]]:
    """Make a backup of a cluster's store. The worker goes on meanwhile.

    What the destination has already is not sent again. Everything that was confirmed before the command began is in it.
    Exit status 4 if the store has damaged blocks: the backup has everything else, and says which are not in it.
    """
    from functools import partial

    from replicator.backup.creating import create as make
    from replicator.backup.destination import Destination
    from replicator.backup.sources import of_directory, of_worker

    of = opened_topology(file).cluster(cluster)
    source: Any = partial(of_directory, of.data, cluster) if offline else partial(of_worker, of.url)
    manifest = make(Destination(at), cluster, source, _progress("copied"))
    return _shown([manifest], _damage([manifest]), NOT_WHOLE if manifest.damaged else 0)


@app.command("list")
def list_backups(
    at: At,
    cluster: Annotated[str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Only of this one.")] = None,
) -> Shown[list[BackupAnswer]]:
    """The backups that are there, the newest first. Exit status 1 if one of them is damaged."""
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
    every: Annotated[bool, typer.Option("--all", help="All backups of the cluster.")] = False,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="Where the store is put together; needs its size.")
    ] = None,
) -> Shown[BackupsVerified]:
    """Read all of a backup, open the store in it, and check every block. Exit status 1 if something is wrong.

    4 if it is as it was made, of a store with damaged blocks.
    """
    from replicator.backup.destination import Destination
    from replicator.backup.errors import BackupDamaged
    from replicator.backup.manifest import Manifests
    from replicator.backup.restoring import verify as check

    if scratch is not None and not scratch.is_dir():
        raise typer.BadParameter(f"--scratch: {scratch} is no directory")
    destination = Destination(at)
    manifests = Manifests(destination, cluster)
    chosen = manifests.ids() if every else [backup or manifests.newest()]
    if not chosen:
        raise typer.BadParameter(f"there is no backup of {cluster} at {destination.url}")
    problems: list[str] = []
    sound: list[SoundBackup] = []
    lines: list[str] = []
    not_whole: list[Manifest] = []
    for each in chosen:
        with tempfile.TemporaryDirectory(dir=scratch, prefix="replicator-verify-") as directory:
            try:
                checked = check(destination, cluster, Path(directory), backup=each, progress=_progress("read"))
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
        notes=[*_damage(not_whole), *(f"damaged: {problem}" for problem in problems)],
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
        bool, typer.Option("--replace", help="Move a store that is there aside; it is kept in the same directory.")
    ] = False,
    no_reclaim: Annotated[
        bool, typer.Option("--no-reclaim", help="Do not ask the other clusters yet; see `replicator backup reclaim`.")
    ] = False,
    without: Without = None,
) -> Shown[RestoreAnswer]:
    """Restore a backup into a cluster's directory, and take back what other clusters have of it since.

    The worker must not run. With --into the other clusters are not asked. Exit status 4 if the backup was made of a
    store with damaged blocks: they are refused wherever they are read, and mended from other clusters.
    """
    from replicator.backup.destination import Destination
    from replicator.backup.restore_order import beside_in
    from replicator.backup.restoring import restore as put_back
    from replicator.engine.restored import first_restored, order_advice

    if (file is None) == (into is None):
        raise typer.BadParameter("give -f FILE, or --into DIR")
    data = into if file is None else opened_topology(file).cluster(cluster).data
    assert data is not None
    manifest, _, aside = put_back(
        Destination(at), cluster, data, backup=backup, replace=replace, progress=_progress("restored")
    )
    lines = [f"restored {cluster} into {data} from backup {manifest.id}, made at {manifest.made_at}"]
    if aside is not None:
        lines.append(f"the store that was there is in {aside}: delete it when you do not need it any more")
    lines.append(GONE)
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
        done = _reclaimed(file, cluster, without)
        lines += _reclaimed_lines(cluster, done)
        value["reclaimed"] = _reclaimed_json(done)
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
    return Shown(value, "\n".join(lines), status=NOT_WHOLE, notes=[*_damage([manifest]), mending])


@app.command()
def reclaim(file: TopologyFile, cluster: Of, without: Without = None) -> Shown[ReclaimAnswer]:
    """Take back what a restored cluster lost of its own messages, from the clusters that have copies.

    `restore` does it by itself. The worker must not run, and the others must. Run it again if it was cut off.
    Exit status 4 if something is lost because a block is damaged at the only cluster that has it.
    """
    done = _reclaimed(file, cluster, without)
    return Shown(_reclaimed_json(done), "\n".join(_reclaimed_lines(cluster, done)), status=_status(done))


def _status(done: Reclaimed | None) -> int:
    return NOT_WHOLE if done is not None and done.damaged else 0


@app.command()
def prune(
    at: At,
    cluster: Of,
    keep: Annotated[int, typer.Option("--keep", min=1, metavar="N", help="How many of the newest backups stay.")],
) -> Shown[BackupsPruned]:
    """Delete old backups, and what no backup needs any more."""
    from replicator.backup.destination import Destination
    from replicator.backup.pruning import prune as delete_old

    done = delete_old(Destination(at), cluster, keep)
    return Shown(
        {"backups": list(done.backups), "chunks": done.chunks, "freed_bytes": done.freed_bytes},
        f"deleted {len(done.backups)} backups and {done.chunks} chunks: {done.freed_bytes} bytes",
    )


def _reclaimed(file: Path, cluster: str, without: list[str] | None) -> Reclaimed:
    from replicator.backup.reclaiming import reclaim as take_back
    from replicator.backup.restore_order import told_the_order

    topology = opened_topology(file)
    with told_the_order(topology.cluster(cluster).data, cluster):
        return asyncio.run(take_back(topology, cluster, without=frozenset(without or ())))


def _reclaimed_lines(cluster: str, done: Reclaimed) -> list[str]:
    lines: list[str] = []
    for topic in done.topics:
        if not topic.messages:  # only markers came back, which nobody published
            if topic.made_anew:
                lines.append(f"{topic.name} was made since the backup: it is back, with no messages of {cluster}")
            continue
        anew = " (made since the backup)" if topic.made_anew else ""
        lines.append(
            f"took back {topic.messages} messages of {topic.name}{anew}, after {topic.after} up to {topic.upto}"
        )
    if not lines:
        lines.append(f"the other clusters have nothing of {cluster}'s messages that it lacks")
    if done.epoch != done.epoch_before:
        lines.append(f"there was a failover since: epoch {done.epoch} (the backup has {done.epoch_before})")
    lines += [f"lost: {lost}" for lost in done.lost]
    lines.append(
        "The worker can be started. By their links the others bring what they published, and what was acknowledged. "
        f"Consumers that connect to {cluster} before that are given again what they had acknowledged since the backup. "
        "If that matters, fail over to another cluster before you start it (--unplanned), and back afterwards."
    )
    return lines


def _reclaimed_json(done: Reclaimed) -> ReclaimAnswer:
    topics: Any = [{**asdict(topic), "after": str(topic.after), "upto": str(topic.upto)} for topic in done.topics]
    return {"topics": topics, "epoch_before": done.epoch_before, "epoch": done.epoch, "lost": done.lost}


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


def _damage(manifests: list[Manifest]) -> list[str]:
    """What is said of each backup that is not whole."""
    said: list[str] = []
    for manifest in manifests:
        if not manifest.damaged:
            continue
        named = ", ".join(map(str, manifest.damaged[:NAMED_MAX]))
        more = len(manifest.damaged) - NAMED_MAX
        said.append(
            f"not whole: backup {manifest.id} lacks {len(manifest.damaged)} blocks that were damaged in the store: "
            f"{named}{f' and {more} more' if more > 0 else ''} ({manifest.damaged[0].reason}). All else is in it. "
            "Mend the store (docs/store.md), and make another one."
        )
    return said


def _progress(what: str) -> Callable[[int], None]:
    """At a terminal, every 256 MB."""
    shown = 0

    def told(done: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and done - shown >= 256_000_000:
            shown = done
            tell(f"{what} {done / 1e6:.0f} MB")

    return told
