"""The audit logs of several clusters as one list, the newest first. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.dashboard.fan_out import Answer, unreachable_reasons

DETAIL_CHARS_MAX: Final = 4_000
"""Limit of one entry's detail: a longer detail is cut, and `replicator audit list` shows it whole."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    at_ms: int
    cluster: str
    actor: str
    asked_from: str
    action: str
    subject: str
    detail: str
    """Further values of the entry, as JSON on several lines; empty if there are none."""

    @property
    def searched(self) -> str:
        return f"{self.cluster} {self.actor} {self.asked_from} {self.action} {self.subject} {self.detail}".lower()


def audit_rows(answers: Mapping[str, Answer], search: str, limit: int) -> tuple[list[AuditRow], list[str]]:
    """Return the newest ``limit`` entries that contain ``search``, and why those of a cluster are missing. Each cluster
    was asked for its newest entries; the newest of all clusters are among these.
    """
    rows = [_row(name, entry) for name, answer in answers.items() if answer.good for entry in answer.value["entries"]]
    found = [row for row in rows if search.lower() in row.searched]
    found.sort(key=lambda row: (-row.at_ms, row.cluster, row.action, row.subject))
    return found[:limit], unreachable_reasons(answers)


def _row(cluster: str, entry: Mapping[str, Any]) -> AuditRow:
    detail = dict(entry["detail"] or {})
    asked_from = str(detail.pop("from", ""))
    text = json.dumps(detail, ensure_ascii=False, indent=1) if detail else ""
    if len(text) > DETAIL_CHARS_MAX:
        text = f"{text[:DETAIL_CHARS_MAX]}\u2026"
    return AuditRow(entry["at_ms"], cluster, entry["actor"], asked_from, entry["action"], entry["subject"], text)
