"""docs/reference/http.md: every route of a running worker, who may use it, and what it does.

The routes are those of a worker that runs, with all its parts. Who may is asked of the rules that guard them. What a
route does is the first sentence of its handler's docstring; the page that explains it follows from the path.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from reference_fields import Undocumented, plain

from replicator.api.guarding import ANYBODY_IDENTIFIED, METRICS, PUBLIC, check
from replicator.drills.ports import free_ports
from replicator.topology import load_topology
from replicator.worker.starting import start_worker

PAGE: Final = "reference/http.md"
PAGES: Final = (
    ("/healthz", "Health and status", "http.md"),
    ("/readyz", "Health and status", "http.md"),
    ("/metrics", "Health and status", "http.md"),
    ("/replication/v1/status", "Health and status", "http.md"),
    ("/replication/v1/topic-figures", "Health and status", "http.md"),
    ("/replication/v1/topic-summary", "Health and status", "http.md"),
    ("/replication/v1/topology", "Topology", "http.md"),
    ("/replication/v1/links", "Links", "links.md"),
    ("/replication/v1/audit", "Audit and backup", "security.md"),
    ("/replication/v1/backup", "Audit and backup", "backup.md"),
    ("/replication/v1/mapping", "Mapping", "mapping.md"),
    ("/replication/v1/identity", "Mapping", "mapping.md"),
    ("/replication/v1/place", "Mapping", "mapping.md"),
    ("/replication/v1/", "Data plane", "http.md"),
    ("/failover/v1/", "Failover", "failover.md"),
    ("/pipeline/v1/staged/", "The Spark sink", "http.md"),
    ("/pipeline/v1/", "Live copy and backfill", "live-copy.md"),
    ("/ws/v2/", "WebSockets and REST produce", "websocket.md"),
    ("/topics/", "WebSockets and REST produce", "websocket.md"),
    ("/lookup/v2/", "Lookup", "admin.md"),
    ("/admin/v2/", "Administration", "admin.md"),
    ("/dashboard/", "Dashboard", "dashboard.md"),
)
"""Beginning of a path, its section, and the page that explains it; the first that fits counts."""
OTHERS: Final = "Other paths"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    does: str


def routes_of(app: web.Application) -> list[Route]:
    """Return each route once, without HEAD, which goes with GET."""
    found = {}
    for route in app.router.routes():
        if route.resource is not None and route.method != "HEAD":
            found[route.method, route.resource.canonical] = _does(route.handler)
    return [Route(method, path, does) for (method, path), does in found.items()]


def _does(handler: Any) -> str:
    text = inspect.getdoc(handler) or ""
    if not text:
        return handler.__name__.strip("_").replace("_", " ")
    first = re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0]
    return plain(" ".join(first.split())).rstrip(".")


class _Asked:
    """Stands where the guard stands, and notes what it is asked."""

    def __init__(self) -> None:
        self.rule = ""

    def check_superuser(self, role: str) -> None:
        self.rule = "superusers"

    def check_anywhere(self, role: str, actions: Iterable[Any]) -> None:
        self.rule = f"{_shown(actions)} anywhere; each topic inside is checked"

    def check_topic(self, role: str, actions: Iterable[Any], topic: str) -> None:
        self.rule = f"{_shown(actions)} on the topic"

    def check_subscription(self, role: str, topic: str, subscription: str) -> None:
        self.rule = "`consume` on the topic, and the subscription"

    def check(self, role: str, actions: Iterable[Any], place: str) -> None:
        self.rule = f"{_shown(actions)} on the {'namespace' if '/' in place else 'tenant'}"


def _shown(actions: Iterable[Any]) -> str:
    return " or ".join(f"`{getattr(action, 'value', action)}`" for action in actions)


def who_may(route: Route) -> str:
    """Return which roles may use a route, by the rules of :mod:`replicator.api.guarding`."""
    if route.path in PUBLIC:
        return "anybody"
    if route.path == METRICS:
        return "the roles of `auth.metrics`"
    if route.path in ANYBODY_IDENTIFIED and route.method == "GET":
        return "any role"
    names = dict.fromkeys(re.findall(r"\{(\w+)[^{}]*\}", route.path), "x") | {"domain": "persistent"}
    path = re.sub(r"\{\w+[^{}]*\}", "x", route.path)
    request = make_mocked_request(
        "GET" if route.method == "*" else route.method, f"{path}?topic=x", CIMultiDict(), match_info=names
    )
    asked = _Asked()
    check(request, route.path, "", asked)  # type: ignore[arg-type]
    return asked.rule


async def running_routes() -> list[Route]:
    """Start a worker and return its routes."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="replicator-reference-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # noqa: ASYNC240 - as root, Postgres runs as another user
        file = folder / "topology.yaml"
        file.write_text(
            f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: data}}\npipeline: {{engine: embedded}}\n"
        )
        worker = await start_worker(load_topology(file), "solo")
        try:
            return routes_of(worker._app)
        finally:
            await worker.stop()


def page(routes: list[Route], docs: Path) -> str:
    sections: dict[str, list[str]] = {title: [] for _, title, _ in PAGES} | {OTHERS: []}
    pages: dict[str, set[str]] = {}
    for route in sorted(routes, key=lambda each: (each.path, each.method)):
        title, explained = next(
            ((title, name) for start, title, name in PAGES if route.path.startswith(start)), (OTHERS, "")
        )
        pages.setdefault(title, set()).update({explained} - {""})
        method = "any" if route.method == "*" else f"`{route.method}`"
        sections[title].append(f"| {method} | `{route.path}` | {who_may(route)} | {route.does} |\n")
    gone = sorted(name for names in pages.values() for name in names if not (docs / name).is_file())
    if gone:
        raise Undocumented(
            f"PAGES in .ci/reference/reference_routes.py names {', '.join(gone)}, which docs/ does not have"
        )
    return _HEAD + "".join(
        f"\n## {title}\n\n{_explained(pages.get(title, set()))}{_TABLE}{''.join(rows)}"
        for title, rows in sections.items()
        if rows
    )


def _explained(pages: set[str]) -> str:
    if not pages:
        return ""
    return f"Explained in {' and '.join(f'[{name}](../{name})' for name in sorted(pages))}.\n\n"


def made(docs: Path) -> str:
    return page(asyncio.run(running_routes()), docs)


_TABLE: Final = "| method | path | who may | what it does |\n| --- | --- | --- | --- |\n"
_HEAD: Final = """# Every HTTP route

<!-- Made by `make reference` from the routes of a running worker and replicator/api/guarding.py. Do not edit it. -->

Every path that a worker serves at its `address`. "Who may" counts where [`auth`](../security.md) is set; superusers may
do everything. `GET` answers `HEAD` too. Errors are `{"error": code, "message": text}`: [all of them](errors.md).
"""
