"""Lines of ``replicator status`` about what is wrong with a worker, and remarks about it, from its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.markup import escape
from rich.text import Text

from replicator.engine.lineage import SHOWN_CHARS
from snapshots.position import BEFORE_ALL

TROUBLES_SHOWN_MAX: Final = 10
"""Most lines on faults of one worker beside Apache Pulsar. If a broker is away, every topic has such a line."""
COMPARED_SECONDS_MAX: Final = 60.0
"""Age of a topic's comparison with its brokers from which it is named."""
BUSY_SECONDS: Final = 0.6
"""Time of the event loop in a minute from which a client is named: a hundredth."""
_DATABASE_WELL: Final = frozenset({"up", "starting"})
GOING_WELL: Final = frozenset({"idle", "copying", "backfilling"})
"""States of a link in which it does its work."""


def troubles(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the faults of a worker that gave its status, and those of its links; warnings come last."""
    if failed := answer["store"]["failed"]:
        yield Text(failed, style="red")
    for twin in (answer.get("run") or {}).get("twins", ()):  # older workers do not report it
        which = "that one, and takes nothing from this" if twin["served"] else "this one alone"
        yield Text(
            f"two live copies of its store: run {twin['id']} on {twin['host']}; {twin['peer']} serves {which}",
            style="red",
        )
    if full := answer["store"].get("full") or (answer["store"].get("disk") or {}).get("full"):
        yield Text(f"takes no messages: {full}", style="red")
    if (failover := answer.get("failover")) is not None and failover["fenced"]:
        yield Text(f"fenced: {failover['served_by']} serves its clients", style="red")
    for trouble in _troubles_of_bridge(answer.get("apache")):
        yield Text(trouble, style="red")
    for link in answer.get("links", ()):
        yield from _troubles_of_link(link)
    if reason := answer.get("summary_error"):
        yield Text(f"gives no summary of its topics, so none are shown: {reason}", style="red")
    if answer["database"]["state"] not in _DATABASE_WELL:
        yield Text(f"database {answer['database']['state']}: {answer['database'].get('detail') or ''}", style="yellow")
    if refused_rows := answer["database"].get("rows_refused"):  # older workers do not report it
        yield Text(
            f"Postgres refused {refused_rows} rows since the worker's start, so the index lacks them: the worker's log "
            "names them (row refused by the database)",
            style="yellow",
        )
    if start := answer.get("start"):  # older workers do not report it
        yield from _troubles_of_start(start)
    if (back := (answer.get("settings") or {}).get("taken_back")) is not None:  # older workers do not report it
        yield from _troubles_of_settings(back, answer.get("cluster", ""))
    if failing := (answer.get("tasks") or {}).get("failing"):  # older workers do not report it
        named = ", ".join(f"{task['name']} ({task['cause']})" for task in failing)
        yield Text(f"ready; failing: {named}", style="yellow")
    if refused := (answer.get("topology") or {}).get("refused"):  # older workers do not report it
        more = f" (and {len(refused['problems']) - 1} more)" if len(refused["problems"]) > 1 else ""
        yield Text(
            f"the topology file was refused at {_moment(refused['at_ms'])}, and would keep the worker from its next "
            f"start: {refused['problems'][0]}{more}",
            style="yellow",
        )
    if exposed := answer.get("exposed"):
        yield Text(f"insecure: anybody can connect to {', '.join(exposed)}", style="yellow")
    for kept in answer.get("kept_lives", ()):  # older workers do not report it
        yield Text(
            f"{kept['topic']} keeps messages that other clusters can lack ({', '.join(kept['lives'])}): with "
            "`sync.mode: mark-delete`, what is consumed in a cluster that lacks them does not reach this one",
            style="yellow",
        )
    if (restored := answer.get("restored")) and (restored["backup"] or restored["lost"]):
        yield Text(_restored(restored), style="yellow")


def _troubles_of_link(link: Mapping[str, Any]) -> Iterator[Text]:
    name = f"link to {link['to']}" + (f" ({link['name']})" if link["name"] else "")
    if link["state"] not in GOING_WELL:
        yield Text(f"{name} is {link['state']}" + (f": {link['detail']}" if link["detail"] else ""), style="red")
    for topic, reason in link["halted"].items():
        yield Text(f"{name} halted {topic}: {reason}", style="red")
    if lost := link.get("lost_here"):  # older workers do not report it
        topic, reason = next(iter(lost.items()))
        yield Text(f"{name} leads to {len(lost)} topics that were lost here, such as {topic}: {reason}", style="red")
    for topic in link["hold_exceeded"]:
        yield Text(f"{name} holds back too much of {topic} ({link['on_hold_exceeded']})", style="red")


def _troubles_of_bridge(apache: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each fault of a worker beside Apache Pulsar, at most :data:`TROUBLES_SHOWN_MAX`."""
    if apache is None:
        return []
    found = [f"Apache Pulsar: {each}" for each in (apache["error"], apache.get("limited")) if each]
    found += [f"not bridged {topic}: {reason}" for topic, reason in apache["refused"].items()]
    found += [native_text(namespace, names) for namespace, names in (apache.get("native_replication") or {}).items()]
    for topic in apache["topics"]:
        word = "halted" if topic["halted"] else "failing"
        found += [f"{word} {topic['topic']}, {part}: {reason}" for part, reason in topic["errors"].items()]
        late = topic.get("out_of_order") or {"entries": 0}  # older workers do not report it
        if late["entries"]:
            found.append(
                f"{late['entries']} entries of {topic['topic']} stand at the brokers behind later ones: "
                f"{', '.join(late['first'])}"
            )
        compared = topic.get("comparison") or {}  # older workers do not report it
        found += [f"{topic['topic']} differs: {each}" for each in compared.get("differences", ())]
        if places := topic.get("may_be_missing"):
            found.append(
                f"messages of {topic['topic']} may be missing after {places[0]['after']} (`replicator bridge "
                "acknowledge-missing`)"
            )
        states = topic["state"]["errors"].items()
        found += [f"subscription {name} of {topic['topic']}: {reason}" for name, reason in states]
    longest = max(COMPARED_SECONDS_MAX, 2 * apache.get("quiet_seconds", 0.0))  # older workers do not report it
    if late := [topic for topic in apache["topics"] if _is_compared_late(topic, longest)]:
        found.append(
            f"{len(late)} topics were not compared with the brokers for {longest:.0f} s, such as {late[0]['topic']}"
        )
    more = len(found) - TROUBLES_SHOWN_MAX
    return found if more <= 0 else [*found[:TROUBLES_SHOWN_MAX], f"… and {more} more (--output json)"]


def _remarks_of_bridge(apache: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each topic whose brokers were put back or lack entries on purpose, at most
    :data:`TROUBLES_SHOWN_MAX`."""
    found: list[str] = []
    for topic in apache["topics"] if apache else ():
        lives = topic.get("lives")  # older workers do not report it
        if lives and (last := lives[-1])["lost"] != str(BEFORE_ALL):
            found.append(
                f"the brokers' data of {topic['topic']} began anew behind {last['after']}: what they had up to "
                f"{last['lost']} stays in this worker and in the other clusters"
            )
        if left_out := topic.get("left_out"):
            found.append(f"{len(left_out)} entries of {topic['topic']} are left out at the brokers")
    return [escape(each) for each in found[:TROUBLES_SHOWN_MAX]]


def native_text(namespace: str, clusters: Sequence[str]) -> str:
    """Return a sentence that says that brokers replicate a bridged namespace themselves, among ``clusters``."""
    return (
        f"the brokers replicate namespace {namespace} themselves, among {', '.join(clusters)}: where a link copies "
        "between the same clusters, each message stands twice at its destination"
    )


def _is_compared_late(topic: Mapping[str, Any], longest: float) -> bool:
    age = (topic.get("comparison") or {}).get("age_seconds")  # None before the first one
    return age is not None and age > longest


def remarks(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks about a worker that are no faults: messages that came back, new stores, clients that use much."""
    clients = answer.get("clients") or {}
    if busy := [each for each in clients.get("busiest", ()) if each["seconds"] >= BUSY_SECONDS]:  # not of older workers
        named = [f"{each['address']} ({each['role'] or 'no role'}) {each['seconds']:.1f} s" for each in busy]
        yield escape(f"clients that used most of the event loop's time in the last minute: {', '.join(named)}")
    yield from _remarks_of_bridge(answer.get("apache"))
    mark = answer.get("restored")
    if mark and not mark["backup"] and not mark["lost"] and mark["reclaimed_messages"]:
        yield _restored(mark)
    if topics := (answer.get("start") or {}).get("topics_taken_back"):
        yield (
            f"its disk was lost, and {topics} {'topic' if topics == 1 else 'topics'} came back: no cluster that was "
            "asked had what it confirmed after the position `taken_back` of each topic (`replicator status --output "
            "json`)"
        )
    for origin, seen in (answer.get("stores") or {}).items():  # older workers do not report it
        if seen["earlier"] and seen["since_ms"] is not None:
            yield (
                f"{origin}'s store is a new one since {_moment(seen['since_ms'])} "
                f"(id {seen['store'][:SHOWN_CHARS]}…, before that {seen['earlier'][0][:SHOWN_CHARS]}…)"
            )


def _troubles_of_start(start: Mapping[str, Any]) -> Iterator[Text]:
    """Yield lines about a worker's start on a new store: what was lost, and which clusters were not asked."""
    if start["state"] == "replaced":
        yield Text("another store took the place of its store: the worker ends", style="red")
    for each in start["lost"]:
        yield Text(f"its store is new; lost: {each}", style="yellow")
    if start["database"] == "away" and start["how"] != "usual":
        yield Text(
            "its store is new, and Postgres did not answer: nobody knows what an earlier store had", style="yellow"
        )
    unasked = "; ".join(f"{name} ({why})" for name, why in start["unasked"].items())
    if start["how"] == "usual" or not unasked:
        return
    if start["nobody_asked"]:
        yield Text(f"its store is new, and no other cluster was asked what it has: {unasked}", style="yellow")
    else:
        yield Text(f"its store is new, and some clusters were not asked what they have: {unasked}", style="yellow")


def _troubles_of_settings(back: Mapping[str, Any], cluster: str) -> Iterator[Text]:
    """Yield lines about policies and permissions that ``cluster`` took back, while somebody has to look at them."""
    if back["silent"] and back["version"]:
        places = ", ".join(back["permissions"][:TROUBLES_SHOWN_MAX]) or "none"
        yield Text(
            f"permissions were taken back from {back['peer']}, and {', '.join(back['silent'])} may know newer ones and "
            f"has not answered. There are permissions in: {places}",
            style="yellow",
        )
    for each in back.get("newer", ()):
        yield Text(f"{each['peer']} keeps newer policies and permissions than those here", style="yellow")
    for each in back.get("passed_over", ()):
        if each["peer"] == cluster:
            yield Text(
                f"policies and permissions that were set later replaced some that they never knew, such as permissions "
                f"that were revoked: compare them with what GET /replication/v1/settings?cluster={cluster} tells",
                style="yellow",
            )
            continue
        yield Text(
            f"{each['peer']} keeps policies and permissions that those here never knew, such as permissions that were "
            "revoked: compare them",
            style="yellow",
        )
    if missing := back["missing"]:
        more = len(missing) - TROUBLES_SHOWN_MAX
        names = ", ".join(missing[:TROUBLES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        yield Text(f"nobody kept policies and permissions of: {names}. Everything is refused there", style="yellow")


def _restored(mark: Mapping[str, Any]) -> str:
    """Return in words what a restore and a reclaim did to a store. Without a backup, there was only a reclaim."""
    lost = "".join(f"; lost: {each}" for each in mark["lost"])
    messages = f"{mark['reclaimed_messages']} messages"
    if not mark["backup"]:
        at = _moment(mark["restored_at_ms"] if mark["settled_at_ms"] is None else mark["settled_at_ms"])
        return f"{messages} were taken back from other clusters on {at}{lost}"
    return f"restored to {_moment(mark['made_at_ms'])} (backup {mark['backup']}); {messages} came back{lost}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
