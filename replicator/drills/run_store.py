"""The database of drill runs and their reports.

Owns which database that is: the one named by ``--store``, else that of a cluster of the topology (the first one, where
none is named), else one of the drill's own in its directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from replicator.drills.errors import DrillError
from replicator.index.database import Database
from replicator.topology import EMBEDDED, Topology, database_of, mask_password
from snapshots.repository import DrillRun, SnapshotRepository

STORE_DIRECTORY: Final = "runs"
"""Name of the folder, in the given directory, with the drill's own database server and its files."""
ID_PREFIX_CHARS_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Database for drill runs. ``setting`` is as in a topology file; an embedded database has a directory, too."""

    setting: str
    data: Path

    @property
    def shown(self) -> str:
        """Return the place for people, without passwords."""
        return str(self.data) if self.setting == EMBEDDED else mask_password(self.setting)


def find_place(store: str | None, out_dir: Path, topology: Topology | None, cluster: str | None = None) -> StorePlace:
    """Return the database in which a drill is kept, or in which runs are looked for."""
    if store is not None and "://" in store:
        return StorePlace(store, out_dir)
    if store is not None:
        return StorePlace(EMBEDDED, Path(store) / STORE_DIRECTORY)
    if topology is not None:
        keeper = topology.clusters[0] if cluster is None else topology.cluster(cluster)
        return StorePlace(database_of(keeper), keeper.data)
    return StorePlace(EMBEDDED, out_dir / STORE_DIRECTORY)


@asynccontextmanager
async def opened_store(place: StorePlace, *, make: bool = False) -> AsyncIterator[SnapshotRepository]:
    """Open the repository there. Raise :class:`DatabaseError`, or :class:`DrillError` if nothing was ever kept there,
    unless ``make`` is set.
    """
    if place.setting == EMBEDDED and not make and not (place.data / "postgres").is_dir():
        raise DrillError(f"no drills are kept in {place.shown}; name the place with --store DIR|URL or --topology FILE")
    database = Database(place.setting, place.data, cluster="drills", known_good=False)
    try:
        await database.start()
        assert database.engine is not None
        yield SnapshotRepository(database.engine, "")
    finally:
        await database.stop()


def new_run(scenario: str, digest: str, started_at: datetime, report: dict[str, Any]) -> DrillRun:
    """Return the row of a finished run; ``digest`` tells systems and topologies apart."""
    moment = started_at.astimezone(UTC)
    suffix = hashlib.sha256(f"{scenario}{moment.isoformat()}".encode()).hexdigest()[:4]
    run_id = f"{moment:%Y%m%d-%H%M%S}-{suffix}"
    return DrillRun(run_id, scenario, digest, moment, datetime.now(UTC), report["passed"], report | {"id": run_id})


def digest_of(topology: Topology) -> str:
    """Return a digest that tells topologies apart for comparing drills: ports, directories and databases do not
    count.
    """
    shape = {
        "clusters": list(topology.names),
        "links": [str(link) for link in topology.links],
        "sync": topology.sync.model_dump(),
        "pipeline": topology.pipeline.model_dump(),
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]


async def find_run(repository: SnapshotRepository, wanted: str) -> DrillRun:
    """Return the run with that id, with an id that begins so, or the newest one (``latest``); raise
    :class:`DrillError`.
    """
    runs = await repository.drill_runs()
    if wanted == "latest":
        found = runs[:1]
    else:
        found = [run for run in runs if run.id == wanted]
        if not found and len(wanted) >= ID_PREFIX_CHARS_MIN:
            found = [run for run in runs if run.id.startswith(wanted)]
    if not found:
        raise DrillError(f"there is no drill whose id begins with {wanted[:60]!r}; see `replicator drills list`")
    if len(found) > 1:
        raise DrillError(
            f"{len(found)} drills have an id that begins with {wanted[:60]!r}; give more of it, as `replicator drills "
            "list` shows it"
        )
    run = await repository.drill_run(found[0].id)
    if run is None:
        raise DrillError(f"drill {wanted[:60]!r} is not there any more; `replicator drills list` shows those there are")
    return run
