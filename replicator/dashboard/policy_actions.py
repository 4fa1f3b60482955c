"""Actions on policies: setting one for a namespace or a topic, and taking it back.

Each change is a form that bears the token of its browser. The workers of the chosen clusters are asked for it by the
admin paths, with the credentials of the browser's owner. Each of these workers decides whether they may, and whether
the value can be; what one refuses is said beside the field.

1. The page says what counts in each cluster and who set it, and its form bears a mark of that.
2. Before anything is changed, the clusters that were chosen are asked again. Where one does not answer, or has another
   mark than the form because somebody else changed the policy meanwhile, nothing is changed anywhere, and the page
   shows what counts now.
3. All of them are asked for the change at once. Where one refuses, the page says where it was done and where not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.fan_out import Answer, FanOut
from replicator.dashboard.feeds import Feeds
from replicator.dashboard.form_state import (
    CHOOSE,
    Change,
    FormState,
    carried_out,
    change_message,
    check_unchanged,
    chosen_in,
    code_of,
    reason_of,
)
from replicator.dashboard.pages import needed
from replicator.dashboard.policy_catalog import Policy, body_of, field_of, filled
from replicator.dashboard.policy_rows import policy_row
from replicator.dashboard.policy_standing import FILE, PolicyState
from replicator.dashboard.policy_targets import Target, standings, target_of
from replicator.dashboard.rendering import short_topic
from replicator.dashboard.views import Parts

SET: Final = "set"
UNSET: Final = "unset"
TOLD: Final[Mapping[str, str]] = {SET: "It is set in {}.", UNSET: "It is taken back in {}."}
"""Texts of the page after a change, to be filled with known clusters: nothing else can come from its address."""
CHANGED_MEANWHILE: Final = (
    "Nothing was changed: since you opened this page the policy was changed in {}. What counts now stands below."
)


class PolicyActions:
    """Handlers of policy actions in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, feeds: Feeds[Parts], fan_out: FanOut) -> None:
        self._access_control = access_control
        self._feeds = feeds
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/dashboard/policy", self.show), web.post("/dashboard/policy", self.change)]

    async def show(self, request: web.Request) -> web.Response:
        """Show one policy of a namespace or a topic in all clusters, and the form that changes it."""
        target = target_of(request.query)
        policy = policy_of(target, request.query)
        told = change_message(request, self._fan_out.clusters, TOLD)
        return await self._page(request, target, policy, told=told)

    async def change(self, request: web.Request) -> web.Response:
        """Set a policy or take it back in the clusters that were chosen."""
        form = await self._access_control.form(request)
        target = target_of(form)
        policy = policy_of(target, form)
        action = needed(form, "action")
        if action not in TOLD:
            raise BadRequest(f"the form's field action must be one of {', '.join(TOLD)}")
        chosen = chosen_in(form, self._fan_out.clusters)
        body = body_of(policy, form, self._fan_out.clusters)
        attempt = FormState(filled(policy, body), chosen)
        if not chosen:
            attempt.wrong("in", CHOOSE)
            return await self._page(request, target, policy, attempt=attempt)
        found, silent = await standings(self._fan_out, target)
        check_unchanged(attempt, form, silent, lambda name: found[name].mark(policy), CHANGED_MEANWHILE)
        if attempt.refused:
            return await self._page(request, target, policy, attempt=attempt)
        method, path = ("POST" if action == SET else "DELETE"), f"{target.admin_path}/{policy.path}"
        change = Change(method, path, TOLD[action], body if action == SET else None)
        done = await carried_out(
            request, self._access_control, self._fan_out, change, attempt, partial(_field_of, policy)
        )
        self._feeds.forget()
        if done:
            return see_other(target.edit_page(policy, done=action, **{"in": ",".join(chosen)}))
        return await self._page(request, target, policy, attempt=attempt)

    async def _page(
        self, request: web.Request, target: Target, policy: Policy, *, told: str = "", attempt: FormState | None = None
    ) -> web.Response:
        found, silent = await standings(self._fan_out, target)
        row = policy_row(policy, found)
        if attempt is None:
            attempt = _untouched(policy, found, self._fan_out.clusters)
        return self._access_control.page(
            request,
            "policy.html",
            status=attempt.status,
            title=f"{policy.title} of {short_topic(target.name)}",
            target=target,
            policy=policy,
            clusters=self._fan_out.clusters,
            here=list(found),
            marks={name: standing.mark(policy) for name, standing in found.items()},
            row=row,
            from_file=[name for name, cell in zip(found, row.cells, strict=True) if cell.set_by == FILE],
            silent=list(silent.values()),
            told=told,
            attempt=attempt,
        )


def policy_of(target: Target, fields: Mapping[str, str]) -> Policy:
    """Return the policy that a form or an address names. Raise :class:`BadRequest`."""
    key = needed(fields, "policy")
    found = next((policy for policy in target.policies if policy.key == key), None)
    if found is None:
        topics_or_namespaces = "topics" if target.is_topic else "namespaces"
        raise BadRequest(
            f"{topics_or_namespaces} have no policy {key[:60]!r}; they have "
            f"{', '.join(each.key for each in target.policies)}"
        )
    return found


def _untouched(policy: Policy, found: Mapping[str, PolicyState], clusters: Sequence[str]) -> FormState:
    """Return the unchanged form: the value of the first cluster that has the target, with all clusters chosen that have
    the same. Sending it changes no value. If no clusters to copy to are set, all are ticked.
    """
    values = {name: standing.value(policy) for name, standing in found.items()}
    first = next(iter(values.values()), None)
    shown = list(clusters) if policy.key == "replication" and first is None else first
    return FormState(filled(policy, shown), [name for name, value in values.items() if value == first], status=200)


def _field_of(policy: Policy, answer: Answer) -> str | None:
    return field_of(policy, code_of(answer), reason_of(answer))
