"""Content of the map: clusters and links, from what each worker says of itself. Pure.

A link's rate is the difference to what it had copied when it was last looked at. How a thing stands is one of four
words (:data:`GOOD` …), which pages show as a word and as a colour, never as a colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.rendering import moment
from replicator.topology import Topology

GOOD: Final = "good"
WARN: Final = "warn"
BAD: Final = "bad"
UNKNOWN: Final = "unknown"
LOST_SHOWN_MAX: Final = 3
"""Losses that a card names; the status has all."""
_STARTS: Final = {
    "asking": "starting: asks the other clusters",
    "waiting": "starting: waits for another cluster",
    "reclaiming": "starting: takes back messages",
}
_TONES: Final = {
    "idle": GOOD,
    "copying": GOOD,
    "backfilling": GOOD,
    "paused": WARN,
    "waiting": WARN,
    "connecting": BAD,
    "failed": BAD,
}


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster, as its worker tells it."""

    name: str
    tone: str
    state: str
    detail: str = ""
    serves: tuple[str, ...] = ()
    epoch: int | None = None
    database: str = ""
    version: str = ""
    connections: int | None = None
    failing: tuple[str, ...] = ()
    store: str = ""
    """State of its store if it is new: since when, as other clusters know it, what was lost, and who was not asked."""


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One link. Figures are None where its worker does not answer."""

    source: str
    destination: str
    key: str
    tone: str
    state: str
    detail: str = ""
    paused: bool = False
    engine: str = ""
    lag_ms: int | None = None
    backlog_entries: int | None = None
    messages_per_second: float | None = None
    bytes_per_second: float | None = None
    gaps: int = 0
    halted: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    clusters: tuple[ClusterRow, ...]
    links: tuple[LinkRow, ...]

    @property
    def troubles(self) -> int:
        tones = [each.tone for each in self.clusters] + [each.tone for each in self.links]
        return sum(tone != GOOD for tone in tones)

    def link(self, source: str, key: str) -> LinkRow | None:
        return next((each for each in self.links if (each.source, each.key) == (source, key)), None)


class Observer:
    """Remembers what links had copied, so that it can tell their rates."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int, int]] = {}

    def overview(self, topology: Topology, answers: Mapping[str, Answer], now: float) -> Overview:
        """Return the overview from each cluster's ``GET /replication/v1/status?topics=false``, at ``now`` in
        seconds.
        """
        told = {name: answer.value for name, answer in answers.items() if answer.good}
        clusters = tuple(
            replace(cluster_row(name, answers[name]), store=store_state(name, told)) for name in topology.names
        )
        links: list[LinkRow] = []
        for name in topology.names:
            answer = answers[name]
            if answer.good:
                links += [self._link_row(name, link, now) for link in answer.value["links"]]
            else:
                links += [
                    LinkRow(name, link.destination, link.key, UNKNOWN, "unknown", f"{name} does not answer")
                    for link in topology.links_from(name)
                ]
        return Overview(clusters, tuple(links))

    def _link_row(self, source: str, link: Mapping[str, Any], now: float) -> LinkRow:
        messages = copied = None
        before = self._seen.get((source, link["key"]))
        if before is not None and now > before[0] and link["messages"] >= before[1] and link["bytes"] >= before[2]:
            seconds = now - before[0]
            messages, copied = (link["messages"] - before[1]) / seconds, (link["bytes"] - before[2]) / seconds
        self._seen[source, link["key"]] = now, link["messages"], link["bytes"]
        tone = _TONES.get(link["state"], UNKNOWN)
        troubled = link["gap_count"] or link["halted_count"] or link["hold_exceeded_count"]
        return LinkRow(
            source,
            link["to"],
            link["key"],
            WARN if tone == GOOD and troubled else tone,
            link["state"],
            link["detail"] or "",
            link["paused"],
            link["engine"],
            link["lag_ms"],
            link["backlog_entries"],
            messages,
            copied,
            link["gap_count"],
            link["halted_count"],
            link["skipped_count"],
        )


def store_state(name: str, told: Mapping[str, Mapping[str, Any]]) -> str:
    """Return in words that the store of cluster ``name`` is a new one; "" if it is not.

    ``told`` has what each worker that answers says of itself.
    """
    said: list[str] = []
    seen = {peer: (status.get("stores") or {}).get(name) for peer, status in told.items() if peer != name}
    since = {peer: row["since_ms"] for peer, row in seen.items() if row and row["earlier"] and row["since_ms"]}
    if since:
        said.append(f"a new store since {moment(min(since.values()))}, as {', '.join(sorted(since))} can tell")
    start = (told.get(name) or {}).get("start")
    if start is not None and start["how"] != "usual":
        said += [] if since else ["its store is new"] if start["how"] != "first" or start["lost"] else []
        if start["unasked"]:
            said.append(f"not asked what they have of it: {', '.join(sorted(start['unasked']))}")
        if start["database"] == "away":
            said.append("Postgres did not answer, and was not asked what an earlier store had")
    lost = [] if start is None else [*start["lost"], *((told[name].get("restored") or {}).get("lost") or ())]
    said += [f"lost: {each}" for each in lost[:LOST_SHOWN_MAX]]
    if len(lost) > LOST_SHOWN_MAX:
        said.append(f"{len(lost) - LOST_SHOWN_MAX} more losses, in its status")
    states = (told.get(name) or {}).get("states")
    if states is not None and states["clusters"]:
        said.append(f"states of subscriptions are awaited from {', '.join(sorted(states['clusters']))}")
    return "; ".join(said)


def _starting(name: str, answer: Answer) -> ClusterRow | None:
    """Return the row of a worker that is starting, and says how far it is; None if it says nothing of the kind."""
    start = answer.value.get("start") if answer.status == 503 and isinstance(answer.value, dict) else None
    if not isinstance(start, dict):
        return None
    state, progress = _STARTS.get(str(start.get("state")), "is starting"), start.get("progress") or {}
    detail = str(answer.value.get("message") or "")
    if progress:
        detail += (
            f": topic {progress.get('number')} of {progress.get('topics')}, {progress.get('messages', 0):,} messages, "
            f"{progress.get('read_bytes', 0) / 1e6:,.0f} MB read"
        )
    return ClusterRow(name, BAD if start.get("state") == "waiting" else WARN, state, detail)


def cluster_row(name: str, answer: Answer) -> ClusterRow:
    if not answer.good and (starting := _starting(name, answer)) is not None:
        return starting
    if not answer.good:
        state = "does not answer" if answer.status in (0, 502, 503, 504) else "refuses"
        return ClusterRow(name, BAD, state, answer.error)
    status = answer.value
    failover, database = status["failover"], status["database"]["state"]
    failing = tuple(task["name"] for task in status["tasks"]["failing"])
    tone, state, detail = GOOD, "serves its clients", ""
    if status["store"]["failed"]:
        tone, state, detail = BAD, "store failed", str(status["store"]["failed"])
    elif twins := (status.get("run") or {}).get("twins"):
        tone, state = BAD, "two live copies of its store"
        detail = f"another run on {twins[0]['host']}: say which one stays (`replicator links stays`)"
    elif failover["switching_to"]:
        tone, state = WARN, f"is being switched to {failover['switching_to']}"
    elif failover["fenced"]:
        tone, state = WARN, f"fenced: {failover['served_by']} serves its clients"
    elif not failover["learned"]:
        tone, state = WARN, "starting"
    elif others := [home for home in failover["serves"] if home != name]:
        state = f"serves the clients of {', '.join(failover['serves'])}"
        tone = WARN if others else GOOD
    if tone == GOOD and (failing or database != "up"):
        tone = WARN
        detail = f"tasks that end again and again: {', '.join(failing)}" if failing else f"database {database}"
    return ClusterRow(
        name,
        tone,
        state,
        detail,
        tuple(failover["serves"]),
        failover["epoch"],
        database,
        status["version"],
        status["clients"]["connections"],
        failing,
    )
