"""Routes that show the drills kept in this worker's Postgres to readers without access to the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol

from aiohttp import web

from replicator.api.admin.errors import NotThere
from replicator.api.data_plane import number
from replicator.api.errors import BadRequest, DatabaseDown
from replicator.index.drill_reports import kept_as_json
from snapshots.errors import SnapshotsError
from snapshots.repository import DrillRun

LISTED: Final = 50
LISTED_MAX: Final = 1_000
ID_CHARS_MAX: Final = 64
REPORT_BYTES_MAX: Final = 2 * 1024 * 1024
"""A report has some 10 KiB; `replicator drills show` reads a larger one from the database."""


class DrillRuns(Protocol):
    """The part of the index that the routes use."""

    async def drill_runs(self, *, newest: int) -> Sequence[DrillRun]: ...
    async def drill_run(self, run_id: str) -> DrillRun | None: ...


def add_drills(app: web.Application, runs: DrillRuns) -> None:
    """Add the routes."""

    async def listed(request: web.Request) -> web.Response:
        """Answer with the drills kept in this worker's Postgres, newest first, without their reports: ``?newest=``."""
        try:
            found = await runs.drill_runs(newest=number(request, "newest", LISTED, LISTED_MAX))
        except SnapshotsError as error:
            raise _away(error) from None
        return web.json_response({"drills": [kept_as_json(run) for run in found]})

    async def shown(request: web.Request) -> web.Response:
        """Answer with one drill and its report."""
        run_id = request.match_info["id"]
        try:
            run = await runs.drill_run(run_id) if len(run_id) <= ID_CHARS_MAX else None
        except SnapshotsError as error:
            raise _away(error) from None
        if run is None:
            raise NotThere(
                f"this worker's store of drills has no drill {run_id[:ID_CHARS_MAX]!r}; `replicator drills list` "
                "shows those there are"
            )
        body = json.dumps({**kept_as_json(run), "report": run.report})
        if len(body) > REPORT_BYTES_MAX:
            raise BadRequest(
                f"the report of drill {run.id} has {len(body)} bytes, over the limit of {REPORT_BYTES_MAX}: "
                f"`replicator drills show {run.id}` shows it"
            )
        return web.Response(text=body, content_type="application/json")

    app.router.add_get("/replication/v1/drills", listed)
    app.router.add_get("/replication/v1/drills/{id}", shown)


def _away(error: SnapshotsError) -> DatabaseDown:
    return DatabaseDown(f"drills are kept in Postgres, which is away: {error}")
