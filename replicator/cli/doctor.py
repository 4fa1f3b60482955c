"""``replicator doctor``: what is wrong with this machine and with what its workers need, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from replicator.cli.admin import TopologyFile, opened_topology
from replicator.cli.output import Shown
from replicator.operating.json_types import DoctorAnswer

Here = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        help="Whose worker is to run on this machine; may be given again. Default: those whose address is its.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit status 1 for warnings too.")]


def doctor(file: TopologyFile, cluster: Here = None, strict: Strict = False) -> Shown[DoctorAnswer]:
    """Look for what keeps workers from running well, and say what to do. Starts nothing, and changes nothing.

    On this machine it makes all checks that a starting worker makes, and looks at disks, Postgres, certificates, Java
    and limits. It asks all workers whether they can be reached, and for their versions and clocks.
    Exit status 0 if there is no error, 1 if there is one, or with --strict a warning.
    """
    from replicator.operating.doctor.examining import examine
    from replicator.operating.doctor.findings import as_json, as_table, exit_status

    topology = opened_topology(file)
    chosen = tuple(topology.cluster(name).name for name in cluster or ())
    found = asyncio.run(examine(topology, chosen, _java))
    return Shown(as_json(found), as_table(found), status=exit_status(found, strict=strict))


def _java() -> str:
    """Raises :class:`JavaNotFound`."""
    from replicator.pipeline.spark.jre import find_java

    found = find_java()
    return f"Java {found.version} at {found.home}"
