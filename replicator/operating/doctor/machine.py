"""Checks of this machine: Python, extras, Java, limits, disks, ports. They change nothing."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from replicator.engine.errors import StoreUnusable
from replicator.engine.log.segments.files import probe
from replicator.engine.log.store_files import check_no_dangling_link, is_in_use, is_there
from replicator.operating.binding import take_place
from replicator.operating.doctor.findings import MACHINE, Finding, Level
from replicator.running.extras import PACKAGE_OF_EXTRA, is_installed
from replicator.topology import SPARK, Cluster, Topology, rounded_size

PYTHON_MIN: Final = (3, 11)
PYTHON_END: Final = (3, 15)
OPEN_FILES_MIN: Final = 16_384
"""A connection, a segment and a link take one each; systemd's unit of docs/systemd/ allows 65,536."""
FREE_BYTES_MIN: Final = 256 * 1024**2
"""Least free space: with less, a worker takes no messages soon, or already."""
FREE_BYTES_FEW: Final = 2 * 1024**3
FREE_SHARE_FEW: Final = 0.05
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
"""LMDB maps its file and locks it, which these do not do in a way that it can rely on."""
PASSING_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


def look_at_python() -> Iterator[Finding]:
    """Check the interpreter and the installed extras."""
    version = ".".join(map(str, sys.version_info[:3]))
    fits = PYTHON_MIN <= sys.version_info[:2] < PYTHON_END
    promised = f"3.{PYTHON_MIN[1]} to 3.{PYTHON_END[1] - 1}"
    remedy = "" if fits else f"install the service in an environment with Python {promised}"
    yield Finding("python", MACHINE, Level.OK if fits else Level.ERROR, f"Python {version}", remedy)
    have = [extra for extra in PACKAGE_OF_EXTRA if is_installed(extra)]
    yield Finding("extras", MACHINE, Level.OK, f"installed: {', '.join(have) or 'none'}")


def look_at_java(topology: Topology, names: tuple[str, ...], java_found: Callable[[], str]) -> Finding:
    """Check the Java runtime. ``java_found`` returns the one that Spark would use, or raises an error that says that
    there is none.
    """
    spark = [link for link in topology.links if link.source in names and topology.engine_of(link) == SPARK]
    if not spark or topology.pipeline.driver != "worker":
        return Finding("java", MACHINE, Level.OK, "not needed: no worker here starts Spark")
    try:
        return Finding("java", MACHINE, Level.OK, java_found())
    except Exception as error:  # noqa: BLE001  # whatever keeps it from running is what is to be said
        remedy = "install Java 17 or newer or the extra spark, or set `pipeline: {engine: embedded}`"
        return Finding("java", MACHINE, Level.ERROR, str(error), remedy)


def look_at_limits() -> Finding:
    """Check how many files a process that is started here may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "any number of" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
    text = f"a process may have {shown} files and connections open"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN:
        return Finding("open-files", MACHINE, Level.OK, text)
    by_shell = hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_MIN
    raised = ", or run `ulimit -n 65536` in the shell that starts it" if by_shell else ""
    remedy = f"set LimitNOFILE=65536 in the worker's systemd unit (docs/systemd/){raised}"
    return Finding(
        "open-files", MACHINE, Level.WARNING, f"{text}; many clients need {OPEN_FILES_MIN:,} or more", remedy
    )


def look_at_disk(cluster: Cluster) -> Iterator[Finding]:
    """Check the place of a worker's data: whether it can be written, its room, its file system and O_DIRECT."""
    name, data = cluster.name, cluster.data
    try:
        check_no_dangling_link(data)
        there = next(each for each in (data, *data.parents) if is_there(each))
    except StoreUnusable:
        return  # the worker's own start check reports it
    if not there.is_dir():
        yield Finding("disk", name, Level.ERROR, f"{there} is no directory", f"choose another `clusters.{name}.data`")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = f"give it to the worker's user: chown -R USER {there}"
        yield Finding("disk", name, Level.ERROR, f"{there} cannot be written by {_user()}", remedy)
        return
    usage = shutil.disk_usage(there)
    level = Level.OK
    if usage.free < FREE_BYTES_MIN:
        level = Level.ERROR
    elif usage.free < FREE_BYTES_FEW or usage.free < usage.total * FREE_SHARE_FEW:
        level = Level.WARNING
    text = f"{rounded_size(usage.free)} of {rounded_size(usage.total)} are free at {there}"
    remedy = "" if level is Level.OK else "make room, or give `data` a larger disk: a full one takes no messages"
    yield Finding("disk", name, level, text, remedy)
    yield _file_system(name, there)
    medium = probe(there)
    if medium.direct:
        yield Finding("o-direct", name, Level.OK, "the disk takes large messages past the page cache (O_DIRECT)")
    else:
        remedy = "nothing, if large messages may be slower; else choose a local disk with ext4 or XFS for `data`"
        yield Finding("o-direct", name, Level.WARNING, medium.reason, remedy)


def look_at_ports(cluster: Cluster, *, runs: bool) -> Iterator[Finding]:
    """Check that the worker can bind its places. ``runs`` says that it answers: then it has them already."""
    for field, place in cluster.bound_at().items():
        where = f"{place} ({field})"
        problem = _binding_problem(place)
        if problem is None:
            text = f"{where} is free"
            if runs and field in ("address", "listen"):
                yield Finding(
                    "port", cluster.name, Level.OK, f"{text} on this machine: the worker that answers runs elsewhere"
                )
            else:
                yield Finding("port", cluster.name, Level.OK, text)
        elif problem.errno == errno.EADDRINUSE and runs and not is_in_use(cluster.data):
            text = f"{where} is used by another worker: no running worker has its data in {cluster.data}"
            remedy = f"choose another port for `clusters.{cluster.name}`, or end the worker that answers there"
            yield Finding("port", cluster.name, Level.ERROR, text, remedy)
        elif problem.errno == errno.EADDRINUSE and runs:
            yield Finding("port", cluster.name, Level.OK, f"{where} is used by this worker, which is running")
        else:
            yield Finding(
                "port", cluster.name, Level.ERROR, f"{where}: {problem.strerror}", _port_remedy(place, problem)
            )


def _binding_problem(place: str) -> OSError | None:
    try:
        take_place(place, listening=True).close()
    except OSError as error:
        return error
    return None


def _port_remedy(place: str, problem: OSError) -> str:
    port = place.rpartition(":")[2]
    if problem.errno == errno.EADDRINUSE:
        return f"find the process that uses it with `ss -ltnp sport = :{port}`; stop it, or choose another port"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have that address: set `listen` to one that it has, such as 0.0.0.0:{port}"
    if problem.errno == errno.EACCES:
        return "only root may use ports below 1024: choose a higher one"
    return "correct the host name in the topology, or in DNS"


def _file_system(name: str, directory: Path) -> Finding:
    resolved = directory.resolve()
    mounts = [each for each in psutil.disk_partitions(all=True) if resolved.is_relative_to(each.mountpoint)]
    if not mounts:
        return Finding("file-system", name, Level.OK, "the file system of `data` is not known")
    kind = max(mounts, key=lambda each: len(each.mountpoint)).fstype
    if kind in NETWORK_FILE_SYSTEMS:
        remedy = "choose a local disk for `data`: the store needs memory maps and locks that are shared by processes"
        return Finding(
            "file-system", name, Level.ERROR, f"{kind} is a network file system, which cannot hold a store", remedy
        )
    if kind in PASSING_FILE_SYSTEMS:
        remedy = "choose a disk for `data`, unless this is a test"
        return Finding(
            "file-system",
            name,
            Level.WARNING,
            f"{kind} is in memory: the data is lost when the machine restarts",
            remedy,
        )
    return Finding("file-system", name, Level.OK, f"the file system of `data` is {kind}")


def _user() -> str:
    return f"user {os.geteuid()}"
