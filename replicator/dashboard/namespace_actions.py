"""Actions on namespaces: making one, and deleting one, in chosen clusters.

1. A namespace is made in every cluster that was chosen. One that has it already refuses, and the page says so.
2. Deleting asks for the namespace's name once more. With topics in it, it is refused unless the form says that they go
   with it. Deletions are not copied by links: a cluster that was not chosen keeps it.
3. Before anything is deleted, the clusters that were chosen are asked whether they have it. Where one does not answer,
   nothing is deleted anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.fan_out import Answer, FanOut
from replicator.dashboard.feeds import Feeds
from replicator.dashboard.form_state import CHOOSE, NOTHING_CHANGED, Change, FormState, carried_out, chosen_in, code_of
from replicator.dashboard.pages import needed
from replicator.dashboard.policy_targets import Target, missing_in
from replicator.dashboard.rendering import url
from replicator.dashboard.views import Parts
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import parse_namespace

MADE: Final = "It is made in {}."
DELETED: Final = "The namespace is deleted in {}."
REFUSED: Final = frozenset({401, 403})


class NamespaceActions:
    """Handlers of namespace actions in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, feeds: Feeds[Parts], fan_out: FanOut) -> None:
        self._access_control = access_control
        self._feeds = feeds
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/namespaces/new", self.show_new),
            web.post("/dashboard/namespaces/new", self.make),
            web.get("/dashboard/namespace/delete", self.show_delete),
            web.post("/dashboard/namespace/delete", self.delete),
        ]

    async def show_new(self, request: web.Request) -> web.Response:
        """Show the form that makes a namespace."""
        return self._new_page(request, FormState({"namespace": ""}, self._fan_out.clusters, status=200))

    async def make(self, request: web.Request) -> web.Response:
        """Make a namespace in the clusters that were chosen."""
        form = await self._access_control.form(request)
        name = form.get("namespace", "").strip()
        attempt = FormState({"namespace": name}, chosen_in(form, self._fan_out.clusters))
        try:
            parse_namespace(name)
        except EngineError as error:
            attempt.wrong("namespace", str(error))
        if not attempt.chosen:
            attempt.wrong("in", CHOOSE)
        if attempt.refused:
            return self._new_page(request, attempt)
        change = Change("PUT", Target(name).admin_path, MADE)
        if not await carried_out(request, self._access_control, self._fan_out, change, attempt, _of_name):
            return self._new_page(request, attempt)
        self._feeds.forget()
        return see_other(url("/dashboard/namespace", name=name, done="made", **{"in": ",".join(attempt.chosen)}))

    async def show_delete(self, request: web.Request) -> web.Response:
        """Show what a namespace has in each cluster, and the form that deletes it: ``?name=tenant/namespace``."""
        target = Target(parse_namespace(needed(request.query, "name")))
        return await self._delete_page(request, target, None)

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a namespace in the clusters that were chosen."""
        form = await self._access_control.form(request)
        target = Target(parse_namespace(needed(form, "name")))
        force = "force" in form
        attempt = FormState({"force": force}, chosen_in(form, self._fan_out.clusters))
        if form.get("typed", "").strip() != target.name:
            attempt.wrong("typed", f"Nothing was deleted: type {target.name}, the namespace.")
        if not attempt.chosen:
            attempt.wrong("in", CHOOSE)
        if attempt.refused:
            return await self._delete_page(request, target, attempt)
        topics = await self._topics(target)
        if away := [problem for problem in (missing_in(name, topics[name]) for name in attempt.chosen) if problem]:
            attempt.in_the_way(NOTHING_CHANGED, *away)
            return await self._delete_page(request, target, attempt)
        path = f"{target.admin_path}?force={str(force).lower()}"
        change = Change("DELETE", path, DELETED)
        done = await carried_out(request, self._access_control, self._fan_out, change, attempt, _of_force)
        self._feeds.forget()
        if not done:
            return await self._delete_page(request, target, attempt)
        return see_other(url("/dashboard/policies", done="deleted", **{"in": ",".join(attempt.chosen)}))

    async def _topics(self, target: Target) -> Mapping[str, Answer]:
        """Return, by cluster, the names of its topics."""
        return await self._fan_out.ask_all(f"{target.admin_path}/topics")

    def _new_page(self, request: web.Request, attempt: FormState) -> web.Response:
        return self._access_control.page(
            request,
            "namespace_new.html",
            status=attempt.status,
            title="Make a namespace",
            clusters=self._fan_out.clusters,
            attempt=attempt,
        )

    async def _delete_page(self, request: web.Request, target: Target, attempt: FormState | None) -> web.Response:
        topics = await self._topics(target)
        counts = {name: len(answer.value) for name, answer in topics.items() if not missing_in(name, answer)}
        return self._access_control.page(
            request,
            "namespace_delete.html",
            status=200 if attempt is None else attempt.status,
            title=f"Delete {target.name}",
            target=target,
            here=list(counts),
            counts=counts,
            silent=[problem for problem in (missing_in(name, answer) for name, answer in topics.items()) if problem],
            attempt=attempt or FormState({"force": False}, list(counts), status=200),
        )


def _of_name(answer: Answer) -> str | None:
    """Return the field that an error is about: ``namespace``, or None if the asker may not do it or a worker is
    silent.
    """
    return "namespace" if code_of(answer) and answer.status not in REFUSED else None


def _of_force(answer: Answer) -> str | None:
    return "force" if code_of(answer) == "NamespaceNotEmpty" else None
