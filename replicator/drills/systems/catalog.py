"""The systems by the names of ``--system``, and how a drill of each is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from replicator.drills.errors import DrillError
from replicator.drills.jobs import DrillOptions, plan_jobs
from replicator.drills.systems import own
from replicator.drills.systems.mirrormaker2 import MIRRORMAKER2
from replicator.drills.systems.peer import plan_peer
from replicator.drills.systems.pulsar_geo import PULSAR_GEO
from replicator.drills.systems.system import Job

Plan = Callable[[DrillOptions], tuple[Sequence[Job], list[str]]]

SYSTEMS: Final[Mapping[str, Plan]] = {
    own.NAME: plan_jobs,
    **{kind.name: partial(plan_peer, kind) for kind in (PULSAR_GEO, MIRRORMAKER2)},
}


def plan(options: DrillOptions) -> tuple[Sequence[Job], list[str]]:
    """Return every run, checked before the first one starts. Of all scenarios, also return those that are left out,
    with the reason.
    """
    if options.system not in SYSTEMS:
        raise DrillError(f"--system {options.system!r} is not known; there are: {', '.join(SYSTEMS)}")
    return SYSTEMS[options.system](options)
