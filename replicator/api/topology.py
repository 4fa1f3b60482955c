"""Routes that show the topology that the worker runs, and make the worker read its topology file again. ``GET
/replication/v1/topology``, ``POST /replication/v1/topology/reload``; the forms are in docs/http.md. A reload request
carries no topology: the worker reads its own file. A caller can therefore only make it take what its operator wrote.

``GET /replication/v1/topology``, ``POST /replication/v1/topology/reload``; the forms are in docs/http.md. A reload
carries no topology: the worker reads its own file, so who may call this can make it take what its operator wrote, and
nothing else.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from aiohttp import web

from replicator import __version__
from replicator.api.errors import BadRequest
from replicator.topology import TopologyError

BODY_BYTES_MAX: Final = 4096


class TopologySource(Protocol):
    """The part of the worker that the paths use."""

    def topology_status(self) -> dict[str, Any]:
        """Return the digest, file and text of the topology that runs."""

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        """See :class:`replicator.worker.reload.TopologyReloader`."""


SOURCE: Final[web.AppKey[TopologySource]] = web.AppKey("topology_source", TopologySource)


def add_topology(app: web.Application, source: TopologySource) -> None:
    app[SOURCE] = source
    app.add_routes(
        [
            web.get("/replication/v1/topology", show),
            web.post("/replication/v1/topology/reload", reload),
        ]
    )


async def show(request: web.Request) -> web.Response:
    """Answer with the topology that runs, by digest and in the form of the file, and the worker's version."""
    return web.json_response({**request.app[SOURCE].topology_status(), "version": __version__})


async def reload(request: web.Request) -> web.Response:
    """Read the file again and run it. Body: ``{"digest": …, "dry_run": false}``, both optional."""
    expected, dry_run = await _asked(request)
    source = request.app[SOURCE]
    try:
        changed = await source.reload_file(expected=expected, dry_run=dry_run)
    except TopologyError as error:
        body = {"error": "TopologyRefused", "message": str(error), "problems": list(error.problems)}
        return web.json_response(body, status=409)
    return web.json_response({**source.topology_status(), "dry_run": dry_run, "changed": changed})


async def _asked(request: web.Request) -> tuple[str | None, bool]:
    raw = bytearray()
    async for piece in request.content.iter_any():
        raw += piece
        if len(raw) > BODY_BYTES_MAX:
            raise BadRequest(f"the body is larger than {BODY_BYTES_MAX} bytes: send only digest and dry_run")
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object with the fields digest and dry_run")
    expected, dry_run = body.get("digest"), body.get("dry_run", False)
    if not (expected is None or isinstance(expected, str)) or not isinstance(dry_run, bool):
        raise BadRequest("field digest must be text, and field dry_run true or false")
    return expected, dry_run
