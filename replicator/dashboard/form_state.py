"""A form that changes several clusters: what it asked for, what is wrong with it, and asking all of them at once.

Each cluster's worker is asked with what the browser's owner showed, and decides by itself. Where one refuses and
another does not, the page says where it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from replicator.dashboard.access_control import AccessControl
from replicator.dashboard.fan_out import Answer, FanOut

CHOOSE: Final = "Nothing was changed: choose a cluster."
NOTHING_CHANGED: Final = "Nothing was changed: not every cluster that you chose can be asked."
BY_CERTIFICATE: Final = "You came in by a certificate, which cannot be passed on. Sign in with a token."


@dataclass(slots=True)
class FormState:
    """Content of a form that was not carried out in full: what its fields held, and what is wrong."""

    filled: Mapping[str, Any]
    chosen: Sequence[str]
    errors: dict[str, list[str]] = field(default_factory=dict)
    """Errors by the field's name in the form."""
    reasons: list[str] = field(default_factory=list)
    """Errors that are about no field."""
    status: int = 400

    @property
    def refused(self) -> bool:
        return bool(self.errors or self.reasons)

    def wrong(self, name: str, said: str) -> None:
        """Add an error beside a field."""
        self.errors.setdefault(name, []).append(said)

    def in_the_way(self, *reasons: str) -> None:
        """Add reasons why nothing is changed now."""
        self.reasons += reasons
        self.status = 409


@dataclass(frozen=True, slots=True)
class Change:
    """A request of the admin paths."""

    method: str
    path: str
    told: str
    """Text about the change where it was done, with ``{}`` for the clusters."""
    body: Any = None


def chosen_in(form: Mapping[str, str], clusters: Sequence[str]) -> list[str]:
    """Return the clusters that are ticked in a form."""
    return [name for name in clusters if f"in.{name}" in form]


def change_message(request: web.Request, clusters: Sequence[str], said: Mapping[str, str]) -> str:
    """Return a page's text about the change that led to it. From the address it takes only known clusters and a key of
    ``said``.
    """
    done = [name for name in request.query.get("in", "").split(",") if name in clusters]
    return said.get(request.query.get("done", ""), "").format(", ".join(done)) if done else ""


def check_unchanged(
    attempt: FormState,
    form: Mapping[str, str],
    silent: Mapping[str, str],
    mark_of: Callable[[str], str],
    changed_meanwhile: str,
) -> None:
    """Check that the chosen clusters answer, and that nothing changed since the form's page was made, by the marks in
    it. If not, ``attempt`` says so, and nothing is changed anywhere. ``silent`` has why a cluster does not answer.
    """
    if away := [silent[name] for name in attempt.chosen if name in silent]:
        attempt.in_the_way(NOTHING_CHANGED, *away)
    elif changed := [name for name in attempt.chosen if form.get(f"mark.{name}") != mark_of(name)]:
        attempt.in_the_way(changed_meanwhile.format(", ".join(changed)))


async def carried_out(
    request: web.Request,
    access_control: AccessControl,
    fan_out: FanOut,
    change: Change,
    attempt: FormState,
    field_of: Callable[[Answer], str | None],
) -> bool:
    """Ask the chosen clusters to change; return whether all did. If not, ``attempt`` has their errors, beside the field
    that ``field_of`` names for an answer.
    """
    visit, chosen = access_control.visit(request), attempt.chosen
    answers = await asyncio.gather(
        *(fan_out.change(visit.shown, name, change.method, change.path, change.body) for name in chosen)
    )
    done = [name for name, answer in zip(chosen, answers, strict=True) if answer.good]
    if len(done) == len(chosen):
        return True
    if done:
        refused = [name for name in chosen if name not in done]
        attempt.reasons.append(f"{change.told.format(', '.join(done))} It is not done in {', '.join(refused)}.")
    for answer in answers:
        if not answer.good:
            _note(attempt, answer, field_of(answer))
    if visit.asks and visit.shown is None:
        attempt.reasons.append(BY_CERTIFICATE)
    return False


def _note(attempt: FormState, answer: Answer, name: str | None) -> None:
    """Add an error beside its field, or as a reason."""
    if name is None:
        attempt.reasons.append(answer.error)
    else:
        attempt.wrong(name, answer.error)
    attempt.status = answer.status if answer.status >= 400 else 502


def code_of(answer: Answer) -> str:
    """Return the code of a worker's error; empty if the answer has none."""
    return str(answer.value.get("error", "")) if isinstance(answer.value, dict) else ""


def reason_of(answer: Answer) -> str:
    """Return the text of a worker's error."""
    said = answer.value if isinstance(answer.value, dict) else {}
    return str(said.get("reason") or said.get("message") or "")
