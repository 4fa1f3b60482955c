"""docs/reference/http.md: every route of a running worker, who may use it, and what it does.

The routes are those of a worker that runs, with all its parts. Who may is asked of the rules that guard them. What a
route does is the first sentence of its handler's docstring; the page that explains it follows from the path. Where that
page names the route, it says more, and the sentence is left out.
"""

from __future__ import annotations

import asyncio
import inspect
import posixpath
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
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
SUBSCRIPTION: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}"
DASHBOARD: Final = "Dashboard"
"""The section of paths that people see as pages and forms: what they do stands there."""
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
    ("/admin/v2/namespaces/{tenant}", "Administration of namespaces", "admin.md"),
    (SUBSCRIPTION.partition("/subscription/")[0], "Administration of topics", "admin.md"),
    (SUBSCRIPTION, "Administration of subscriptions", "admin.md"),
    ("/admin/v2/schemas/", "Administration of schemas", "admin.md"),
    ("/dashboard/", DASHBOARD, "dashboard.md"),
)
"""Beginning of a path, its section, and the page that explains it; the longest that fits counts."""
OTHERS: Final = "Other paths"
NOTHING: Final = ("refuse", "no ", "none")
"""Names of handlers without a docstring that say more than the path: that there is nothing to be had."""


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
    if isinstance(handler, partial):
        handler = handler.func
    text = inspect.getdoc(handler) or ""
    if not text:
        name = handler.__name__.strip("_").replace("_", " ")
        return name if name.startswith(NOTHING) else ""
    first = re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0]
    return plain(" ".join(first.split())).rstrip(".")


class _Asked:
    """Stands where the guard stands, and notes what it is asked."""

    def __init__(self) -> None:
        self.rule = ""

    def check_superuser(self, role: str) -> None:
        self.rule = "superusers"

    def check_anywhere(self, role: str, actions: Iterable[Any]) -> None:
        self.rule = f"{_shown(actions)}, each topic"

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
    sections: dict[str, list[Route]] = {title: [] for title in (*(each[1] for each in PAGES), OTHERS)}
    pages: dict[str, set[str]] = {}
    for route in sorted(routes, key=lambda each: (each.path, each.method)):
        fitting = [each for each in PAGES if route.path.startswith(each[0])]
        _, title, explained = max(fitting, key=lambda each: len(each[0]), default=("", OTHERS, ""))
        pages.setdefault(title, set()).update({explained} - {""})
        sections[title].append(route)
    gone = sorted(name for names in pages.values() for name in names if not (docs / name).is_file())
    if gone:
        raise Undocumented(
            f"PAGES in .ci/reference/reference_routes.py names {', '.join(gone)}, which docs/ does not have"
        )
    texts = {name: (docs / name).read_text() for names in pages.values() for name in names}
    return _HEAD + "".join(
        f"\n## {title}\n\n{_section(those, {name: texts[name] for name in pages[title]})}"
        for title, those in sections.items()
        if those
    )


def _section(routes: list[Route], pages: dict[str, str]) -> str:
    """Return a list of routes, explained by ``pages``. Above it stands how they begin, and who may use most of them."""
    start = posixpath.commonpath([route.path for route in routes]) if len(routes) > 1 else ""
    start = start if start.count("/") > 1 or start == "/dashboard" else ""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for route in routes:
        rest = route.path.removeprefix(start) if start else route.path
        method = "" if route.method == "*" else route.method
        told = any(is_explained(method, rest, page) for page in pages.values())
        told = told and not route.does.startswith(NOTHING)
        methods.setdefault((_short(who_may(route)), "" if told else _said(route), rest), []).append(method)
    rows: dict[tuple[str, str], list[str]] = {}
    for (rule, does, rest), verbs in methods.items():
        path = f"{'|'.join(verbs)} {rest}".strip()
        rows.setdefault((rule, does), []).append(f"`{path}`")
    (usual, _), *_ = Counter(_short(who_may(route)) for route in routes).most_common(1)
    others = any(rule != usual for rule, _ in rows)
    lead = [f"Paths begin with `{start}`."] if start else []
    lead.append(f"For {usual}{', unless a route says otherwise' if others else ''}.")
    lead += [f"Explained in {' and '.join(f'[{name}](../{name})' for name in sorted(pages))}."] if pages else []
    items = "".join(
        f"* {', '.join(paths)}{'' if rule == usual else f' ({rule})'}{f': {does}' if does else ''}\n"
        for (rule, does), paths in rows.items()
    )
    return f"{' '.join(lead)}\n\n{items}"


def is_explained(method: str, path: str, page: str) -> bool:
    """Return whether a page's tables name a route: by the end of its path, with its method or without one."""
    parts = [each for each in path.split("/") if each]
    if all("{" in each for each in parts):
        return False
    end = "/".join(r"(?:\{[^/\s]+\}|…)" if "{" in each else re.escape(each) for each in parts)
    for span in re.findall(r"`([^`\n]+)`", "\n".join(line for line in page.splitlines() if line.startswith("| "))):
        methods = re.findall(r"\b(?:GET|POST|PUT|DELETE)\b", span)
        named = methods or "/" in span
        if named and re.search(rf"(?:^|[\s/]){end}(?=[?\s]|$)", span) and (not methods or method in methods):
            return True
    return False


def _short(rule: str) -> str:
    """Return a rule by the letters of its actions, without a place that the path or the query names."""
    rule = re.sub(r"`(admin|consume|produce|replicate)`", lambda action: action[1][0].upper(), rule)
    return re.sub(r" on the (topic|namespace)\b", "", rule)


def _said(route: Route) -> str:
    """Return what a route does. That GET answers, everybody knows."""
    if route.path.startswith("/dashboard/"):
        return ""
    found = re.fullmatch(r"Answer with (.)(.*)", route.does)
    return f"{found[1].upper()}{found[2]}" if found and route.method == "GET" else route.does


def made(docs: Path) -> str:
    return page(asyncio.run(running_routes()), docs)


_HEAD: Final = """# Every HTTP route

<!-- Made by `make reference` from the routes of a running worker and replicator/api/guarding.py. Do not edit it. -->

Every path that a worker serves at its `address`. A path without a method takes any; `GET` answers `HEAD` too. Whom a
route is for counts where [`auth`](../security.md) is set; superusers may do everything. A is the action `admin`, C
`consume`, P `produce`, R `replicate`, on the topic or the namespace that the path or `?topic=` names; with "each topic"
it is needed somewhere, and each topic inside is checked. The dashboard acts in the name of who signed in.
Errors are `{"error": code, "message": text}`: [all of them](errors.md). A route without a description here has
one on the page that explains its section, or says by its path what it does.
"""
