"""``replicator doctor``: what is wrong with this machine and with what its workers need, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replicator.cli.admin import TopologyFile, opened_topology
from replicator.cli.output import Shown
from replicator.operating.json_types import DoctorAnswer

if TYPE_CHECKING:
    from replicator.operating.doctor.findings import Finding
    from replicator.topology import Topology

Here = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        help="Check this machine as the place where the worker of this cluster runs; may be given again. Default: "
        "clusters whose address belongs to this machine; with --offline, all clusters.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="End with exit status 1 also if there are only warnings.")]


Offline = Annotated[
    bool,
    typer.Option(
        "--offline",
        help="Check only what the file says and the files that it names. Asks nobody, and needs no data directory.",
    ),
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="With --offline: a value that a field of the cluster must have in the topology, such as listen=7101; if "
        "it has another, that is an error. May be given again.",
    ),
]
MadeLater = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIRECTORY",
        help="With --offline: files that the topology names in this directory may be missing, such as secrets that "
        "are mounted later; what needs them is not checked. May be given again.",
    ),
]


def doctor(
    file: TopologyFile,
    cluster: Here = None,
    strict: Strict = False,
    offline: Offline = False,
    expect: Expect = None,
    made_later: MadeLater = None,
) -> Shown[DoctorAnswer]:
    """Look for what keeps workers from running well, and say what to do. Starts nothing, and changes nothing.

    On this machine it makes all checks that a starting worker makes, and looks at disks, Postgres, certificates, Java
    and limits. It asks all workers whether they can be reached, and for their versions and clocks.
    With --offline it looks at the topology file and the files that it names alone.
    Exit status 0 if there is no error, 1 if there is one, or with --strict a warning.
    """
    from replicator.operating.doctor.examining import examine
    from replicator.operating.doctor.findings import as_json, as_table, exit_status
    from replicator.topology import load_topology

    if offline:
        return _offline(load_topology(file), cluster, strict, expect or (), made_later or ())
    if expect or made_later:
        raise typer.BadParameter(
            "--expect and --made-later are for --offline alone: give --offline too, or leave them out"
        )
    topology = opened_topology(file)
    chosen = tuple(topology.cluster(name).name for name in cluster or ())
    found = asyncio.run(examine(topology, chosen, _java))
    return Shown(as_json(found), as_table(found), status=exit_status(found, strict=strict))


def _offline(
    topology: Topology, names: Sequence[str] | None, strict: bool, expect: Sequence[str], made_later: Sequence[Path]
) -> Shown[DoctorAnswer]:
    from replicator.operating.doctor.findings import as_json, exit_status
    from replicator.operating.doctor.offline import NotExpectable, as_lines, examine_offline, parse_expectation

    try:
        expected = [parse_expectation(each) for each in expect]
    except NotExpectable as error:
        raise typer.BadParameter(str(error), param_hint="--expect") from None

    async def look() -> list[Finding]:
        return [
            each
            for name in names or topology.names
            for each in await examine_offline(topology, topology.cluster(name), expected, made_later)
        ]

    found = asyncio.run(look())
    return Shown(as_json(found), as_lines(found), status=exit_status(found, strict=strict))


def _java() -> str:
    """Return the Java that Spark would use. Raise :class:`JavaNotFound`."""
    from replicator.pipeline.spark.jre import find_java

    found = find_java()
    return f"Java {found.version} at {found.home}"
