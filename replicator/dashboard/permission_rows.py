"""Permissions of a namespace or a topic in several clusters side by side. Pure; read from what the workers answer.

What a worker says of a topic has what its namespace grants in it. That is taken out: a row of a topic has what is
granted for the topic beside that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ROLES_SHOWN_MAX: Final = 500

Granted = Mapping[str, Sequence[str]]
"""Actions that were granted, by role."""


@dataclass(frozen=True, slots=True)
class RoleRow:
    """Actions that a role may take; a cell for each cluster that answered."""

    role: str
    cells: tuple[tuple[str, ...], ...]
    differs: bool


def granted_in(answer: Any) -> dict[str, list[str]]:
    """Return the permissions in an answer of ``GET …/permissions``; malformed ones are left out."""
    found = answer if isinstance(answer, dict) else {}
    return {str(role): sorted(map(str, actions)) for role, actions in found.items() if isinstance(actions, list)}


def beside(of_topic: Granted, of_namespace: Granted) -> dict[str, list[str]]:
    """Return the permissions that are granted for a topic, without those that its namespace grants."""
    own = {role: sorted(set(actions) - set(of_namespace.get(role, ()))) for role, actions in of_topic.items()}
    return {role: actions for role, actions in own.items() if actions}


def role_rows(granted: Mapping[str, Granted]) -> list[RoleRow]:
    """Return a row for each role, the first :data:`ROLES_SHOWN_MAX` of them by name; ``granted`` is by cluster."""
    roles = sorted(set().union(*granted.values()))[:ROLES_SHOWN_MAX]
    rows: list[RoleRow] = []
    for role in roles:
        cells = tuple(tuple(each.get(role, ())) for each in granted.values())
        rows.append(RoleRow(role, cells, len(set(cells)) > 1))
    return rows


def mark(granted: Granted) -> str:
    """Return a text that changes as soon as somebody grants or revokes something there."""
    seen = json.dumps({role: list(actions) for role, actions in granted.items()}, sort_keys=True)
    return hashlib.sha256(seen.encode()).hexdigest()[:16]
