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
from rich.console import Console

from replicator.cli.admin import OutputFormat, TopologyFile, check_output, opened_topology, rows_table, show

if TYPE_CHECKING:
    from replicator.backup.manifest import Manifest
    from replicator.backup.reclaiming import Reclaimed

app = typer.Typer(help="Backups of a worker's store: made while it runs, checked, restored.", no_args_is_help=True)

err = Console(stderr=True, highlight=False, emoji=False)

NOT_WHOLE: Final = 4
"""The exit status where a backup is as good as the store was, and that had damaged blocks."""
NAMED_MAX: Final = 10
"""Damaged blocks that a warning names; the manifest has all."""

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
    output: OutputFormat = "table",
) -> None:
    """Make a backup of a cluster's store. The worker goes on meanwhile.

    What the destination has already is not sent again. Everything that was confirmed before the command began is in it.
    Exit status 4 if the store has damaged blocks: the backup has everything else, and says which are not in it.
    """
    from functools import partial

    from replicator.backup.creating import create as make
    from replicator.backup.destination import Destination
    from replicator.backup.sources import of_directory, of_worker

    check_output(output)
    of = opened_topology(file).cluster(cluster)
    source: Any = partial(of_directory, of.data, cluster) if offline else partial(of_worker, of.url)
    manifest = make(Destination(at), cluster, source, _progress("copied"))
    _show(output, [manifest])
    _warn_of_damage([manifest])
    if manifest.damaged:
        raise typer.Exit(NOT_WHOLE)


@app.command("list")
def list_backups(
    at: At,
    cluster: Annotated[str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Only of this one.")] = None,
    output: OutputFormat = "table",
) -> None:
    """The backups that are there, the newest first. Exit status 1 if one of them is damaged."""
    from replicator.backup.destination import Destination
    from replicator.backup.errors import BackupDamaged
    from replicator.backup.manifest import Manifests, clusters_at

    check_output(output)
    destination = Destination(at)
    found, problems = [], []
    for each in [cluster] if cluster else clusters_at(destination):
        manifests = Manifests(destination, each)
        for backup in manifests.ids():
            try:
                found.append(manifests.read(backup))
            except BackupDamaged as error:
                problems.append(str(error))
    _show(output, found)
    _tell(problems)


@app.command()
def verify(
    at: At,
    cluster: Of,
    backup: Id = None,
    every: Annotated[bool, typer.Option("--all", help="All backups of the cluster.")] = False,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="Where the store is put together; needs its size.")
    ] = None,
) -> None:
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
        typer.echo(f"{manifest.id}: {checked.topics} topics, {checked.blocks} blocks, {manifest.size} bytes: {damage}")
        not_whole += [manifest] if manifest.damaged else []
    _warn_of_damage(not_whole)
    _tell(problems)
    if not_whole:
        raise typer.Exit(NOT_WHOLE)


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
) -> None:
    """Restore a backup into a cluster's directory, and take back what other clusters have of it since.

    The worker must not run. With --into the other clusters are not asked. Exit status 4 if the backup was made of a
    store with damaged blocks: they are refused wherever they are read, and mended from other clusters.
    """
    from replicator.backup.destination import Destination
    from replicator.backup.restoring import restore as put_back

    if (file is None) == (into is None):
        raise typer.BadParameter("give -f FILE, or --into DIR")
    data = into if file is None else opened_topology(file).cluster(cluster).data
    assert data is not None
    manifest, _, aside = put_back(
        Destination(at), cluster, data, backup=backup, replace=replace, progress=_progress("restored")
    )
    typer.echo(f"restored {cluster} into {data} from backup {manifest.id}, made at {manifest.made_at}")
    if aside is not None:
        typer.echo(f"the store that was there is in {aside}: delete it when you do not need it any more")
    typer.echo(
        "Gone are, as far as they are newer: messages that no other cluster has; acknowledgements that no other "
        "cluster was told, so that these messages are delivered again; policies, permissions, tenants and namespaces; "
        "sequence ids of producers and Spark writers, so that what they send again may be stored twice. The audit log "
        "and drill reports are in Postgres, not in the backup. Topics and subscriptions that were deleted since are "
        "back. See docs/backup.md."
    )
    if file is not None and not no_reclaim:
        _reclaim(file, cluster, without)
    else:
        typer.echo(
            f"Before its worker starts: replicator backup reclaim -f FILE --cluster {cluster}  (takes back what other "
            "clusters have)"
        )
    if manifest.damaged:
        _warn_of_damage([manifest])
        name = file or "FILE"
        err.print(
            "They are not served. The worker asks other clusters for each that is read; "
            f"`replicator verify --fix -f {name}` has all of them mended when it runs, and "
            f"`replicator store repair -f {name} -c {cluster}` before.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(NOT_WHOLE)


@app.command()
def reclaim(file: TopologyFile, cluster: Of, without: Without = None, output: OutputFormat = "table") -> None:
    """Take back what a restored cluster lost of its own messages, from the clusters that have copies.

    `restore` does it by itself. The worker must not run, and the others must. Run it again if it was cut off.
    """
    check_output(output)
    _reclaim(file, cluster, without, output)


@app.command()
def prune(
    at: At,
    cluster: Of,
    keep: Annotated[int, typer.Option("--keep", min=1, metavar="N", help="How many of the newest backups stay.")],
) -> None:
    """Delete old backups, and what no backup needs any more."""
    from replicator.backup.destination import Destination
    from replicator.backup.pruning import prune as delete_old

    done = delete_old(Destination(at), cluster, keep)
    typer.echo(f"deleted {len(done.backups)} backups and {done.chunks} chunks: {done.freed_bytes} bytes")


def _reclaim(file: Path, cluster: str, without: list[str] | None, output: str = "table") -> None:
    from replicator.backup.reclaiming import reclaim as take_back

    done = asyncio.run(take_back(opened_topology(file), cluster, without=frozenset(without or ())))
    if output == "json":
        show(output, _reclaimed_json(done), "")
        return
    for topic in done.topics:
        anew = " (made since the backup)" if topic.made_anew else ""
        typer.echo(f"took back {topic.messages} messages of {topic.name}{anew}, after {topic.after} up to {topic.upto}")
    if not done.topics:
        typer.echo(f"the other clusters have nothing of {cluster}'s messages that it lacks")
    if done.epoch != done.epoch_before:
        typer.echo(f"there was a failover since: epoch {done.epoch} (the backup has {done.epoch_before})")
    for lost in done.lost:
        typer.echo(f"lost: {lost}")
    typer.echo(
        "The worker can be started. By their links the others bring what they published, and what was acknowledged. "
        f"Consumers that connect to {cluster} before that are given again what they had acknowledged since the backup. "
        "If that matters, fail over to another cluster before you start it (--unplanned), and back afterwards."
    )


def _reclaimed_json(done: Reclaimed) -> dict[str, Any]:
    topics = [{**asdict(topic), "after": str(topic.after), "upto": str(topic.upto)} for topic in done.topics]
    return {"topics": topics, "epoch_before": done.epoch_before, "epoch": done.epoch, "lost": done.lost}


def _show(output: str, manifests: list[Manifest]) -> None:
    rows = [
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
    show(output, rows, rows_table(columns, shown))


def _warn_of_damage(manifests: list[Manifest]) -> None:
    """One warning for each backup that is not whole."""
    for manifest in manifests:
        if not manifest.damaged:
            continue
        named = ", ".join(map(str, manifest.damaged[:NAMED_MAX]))
        more = len(manifest.damaged) - NAMED_MAX
        err.print(
            f"not whole: backup {manifest.id} lacks {len(manifest.damaged)} blocks that were damaged in the store: "
            f"{named}{f' and {more} more' if more > 0 else ''} ({manifest.damaged[0].reason}). All else is in it. "
            "Mend the store (docs/store.md), and make another one.",
            style="red",
            markup=False,
            soft_wrap=True,
        )


def _tell(problems: list[str]) -> None:
    for problem in problems:
        err.print(f"damaged: {problem}", style="red", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _progress(what: str) -> Callable[[int], None]:
    """At a terminal, every 256 MB."""
    shown = 0

    def tell(done: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and done - shown >= 256_000_000:
            shown = done
            err.print(f"{what} {done / 1e6:.0f} MB")

    return tell
