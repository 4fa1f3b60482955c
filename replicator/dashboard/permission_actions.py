"""Permissions of a namespace or a topic: what is granted in all clusters, granting, and revoking.

It is asked of the admin paths of the clusters that were chosen, with what the browser's owner showed, and noted in
their audit logs. The form bears a mark of each cluster's permissions when its page was made. If somebody has changed
them since, nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.fan_out import Answer, FanOut
from replicator.dashboard.form_state import (
    CHOOSE,
    Change,
    FormState,
    carried_out,
    change_message,
    check_unchanged,
    chosen_in,
    reason_of,
)
from replicator.dashboard.pages import needed
from replicator.dashboard.permission_rows import ROLES_SHOWN_MAX, Granted, beside, granted_in, mark, role_rows
from replicator.dashboard.policy_targets import Target, missing_in, target_of
from replicator.dashboard.rendering import short_topic
from replicator.security.permissions import Action

GRANT: Final = "grant"
REVOKE: Final = "revoke"
TOLD: Final[Mapping[str, str]] = {GRANT: "It is granted in {}.", REVOKE: "All is taken back in {}."}
CHANGED_MEANWHILE: Final = (
    "Nothing was changed: since you opened this page permissions were changed in {}. What is granted now stands below."
)
FIELDS: Final = ("role", "actions")


class PermissionActions:
    """Handlers of permissions in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, fan_out: FanOut) -> None:
        self._access_control = access_control
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/dashboard/permissions", self.show), web.post("/dashboard/permissions", self.change)]

    async def show(self, request: web.Request) -> web.Response:
        """Show the permissions of a namespace or a topic in all clusters, and the form that changes them."""
        target = target_of(request.query)
        told = change_message(request, self._fan_out.clusters, TOLD)
        return await self._page(request, target, told=told, role=request.query.get("role", ""))

    async def change(self, request: web.Request) -> web.Response:
        """Grant a role actions in the clusters that were chosen, in place of those that it had there, or take all
        back."""
        form = await self._access_control.form(request)
        target, action = target_of(form), needed(form, "action")
        if action not in TOLD:
            raise BadRequest(f"the form's field action must be one of {', '.join(TOLD)}")
        role, actions = form.get("role", "").strip(), [each.value for each in Action if f"may.{each.value}" in form]
        attempt = FormState({"role": role, "actions": actions}, chosen_in(form, self._fan_out.clusters))
        if not role:
            attempt.wrong("role", "Nothing was changed: name the role.")
        if action == GRANT and not actions:
            attempt.wrong("actions", "Nothing was changed: choose what the role may do, or take all back.")
        if not attempt.chosen:
            attempt.wrong("in", CHOOSE)
        if attempt.refused:
            return await self._page(request, target, attempt=attempt)
        found, silent = await self._granted(target)
        check_unchanged(attempt, form, silent, lambda name: mark(found[name]), CHANGED_MEANWHILE)
        if attempt.refused:
            return await self._page(request, target, attempt=attempt)
        path = f"{target.admin_path}/permissions/{quote(role, safe='')}"
        granting = action == GRANT
        change = Change("POST" if granting else "DELETE", path, TOLD[action], actions if granting else None)
        if await carried_out(request, self._access_control, self._fan_out, change, attempt, _field_of):
            return see_other(target.permissions_page(done=action, **{"in": ",".join(attempt.chosen)}))
        return await self._page(request, target, attempt=attempt)

    async def _granted(self, target: Target) -> tuple[dict[str, Granted], dict[str, str]]:
        """Return the permissions in each cluster that has the target, and why the other clusters are missing."""
        of_namespace = Target(target.namespace)
        answers, of_all = await asyncio.gather(
            self._fan_out.ask_all(f"{target.admin_path}/permissions"),
            self._fan_out.ask_all(f"{of_namespace.admin_path}/permissions"),
        )
        found: dict[str, Granted] = {}
        silent: dict[str, str] = {}
        for name, answer in answers.items():
            if problem := missing_in(name, answer, of_all[name]):
                silent[name] = problem
            else:
                own = granted_in(answer.value)
                found[name] = beside(own, granted_in(of_all[name].value)) if target.is_topic else own
        return found, silent

    async def _page(
        self, request: web.Request, target: Target, *, told: str = "", role: str = "", attempt: FormState | None = None
    ) -> web.Response:
        found, silent = await self._granted(target)
        auth = self._fan_out.topology.auth
        written = auth.permissions.get(target.name, {})
        return self._access_control.page(
            request,
            "permissions.html",
            status=200 if attempt is None else attempt.status,
            title=f"Permissions of {short_topic(target.name)}",
            target=target,
            here=list(found),
            marks={name: mark(granted) for name, granted in found.items()},
            rows=role_rows(found),
            rows_max=ROLES_SHOWN_MAX,
            written={name: sorted(map(str, actions)) for name, actions in sorted(written.items())},
            enabled=auth.enabled,
            actions=[each.value for each in Action],
            silent=list(silent.values()),
            told=told,
            attempt=attempt or _untouched(role, found),
        )


def _untouched(role: str, found: Mapping[str, Granted]) -> FormState:
    """Return the unchanged form: what the role may do in the first cluster, with all clusters chosen that grant it the
    same.
    """
    granted = {name: list(each.get(role, ())) for name, each in found.items()}
    first = next(iter(granted.values()), [])
    return FormState({"role": role, "actions": first}, [n for n, each in granted.items() if each == first], status=200)


def _field_of(answer: Answer) -> str | None:
    """Return the field that an error is about: its text begins with the field's name."""
    return next((name for name in FIELDS if reason_of(answer).startswith(f"{name}:")), None)
