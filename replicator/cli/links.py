"""``replicator links``: the links between clusters, over the worker at their source."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, cast
from urllib.parse import quote

import typer
from rich.console import Group
from rich.text import Text

from replicator.cli.admin import (
    ClusterName,
    TopologyFile,
    opened_topology,
    rows_table,
)
from replicator.cli.commands import Commands
from replicator.cli.json_types import LeftOutAnswer, RunsOfSource, StaysAnswer
from replicator.cli.output import Shown
from replicator.links.json_types import LinkStatus

LOST_SHOWN_MAX: Final = 10
"""Most lost topics of a link that are listed one by one; a cluster with an empty store may have lost thousands."""

app = Commands(help="Links: list them, pause and resume them, end gaps and twins.", no_args_is_help=True)

Source = Annotated[str, typer.Option("--from", metavar="CLUSTER", help="Cluster that the link copies from.")]
Destination = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Cluster that the link copies to.")]
Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the link, if several links connect the two clusters.")
]
TopicOption = Annotated[
    str,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Name of the topic: NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME.",
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="keep-both|skip-and-record|copy-anew",
        help="How the link goes on with the topic at which it stopped; `links list` shows why, and which policies "
        "help.",
    ),
]


@app.command("list", watched=True)
def list_links(
    file: TopologyFile,
    cluster: ClusterName = None,
    topics: Annotated[bool, typer.Option("--topics", help="Also show the backlog of each topic that has one.")] = False,
) -> Shown[list[LinkStatus]]:
    """List all links, or those that leave one cluster, with state, backlog, lag, and what has stopped."""
    from replicator.operating.errors import WorkerUnavailable

    topology = opened_topology(file)
    asked = [topology.cluster(cluster)] if cluster else list(topology.clusters)

    links: list[LinkStatus] = []
    problems: list[str] = []

    async def ask() -> None:
        for each in asked:
            try:
                for link in (await _call(each.url, "GET", "links"))["links"]:
                    path = f"links/{quote(link['key'], safe='')}"
                    links.append(await _call(each.url, "GET", path) if topics else link)
            except WorkerUnavailable as error:
                problems.append(str(error))

    asyncio.run(ask())
    if not links and problems:
        raise WorkerUnavailable("; ".join(problems))
    columns = ("link", "engine", "state", "backlog", "lag", "messages", "disconnects", "gaps")
    table = rows_table(columns, [_row(link) for link in links])
    remarks = [Text(f"\n{link['key']}: {remark}", overflow="fold") for link in links for remark in _remarks(link)]
    warnings = [f"warning: {problem}" for problem in problems]
    return Shown(
        links, Group(table, *remarks), status=3 if warnings else 0, notes=warnings
    )  # as `status`: what is shown is not all


@app.command("pause")
def pause(file: TopologyFile, source: Source, to: Destination, name: Name = "") -> Shown[LinkStatus]:
    """Copy nothing over a link until it is resumed, also after a restart; what is not copied is kept."""
    link = _post(file, source, to, name, "pause")
    return Shown(link, f"{link['key']} is paused; {link['backlog_entries']} entries wait")


@app.command("resume")
def resume(file: TopologyFile, source: Source, to: Destination, name: Name = "") -> Shown[LinkStatus]:
    """Let a link that was paused go on."""
    link = _post(file, source, to, name, "resume")
    return Shown(link, f"{link['key']} goes on; {link['backlog_entries']} entries wait")


@app.command("resolve")
def resolve(
    file: TopologyFile,
    source: Source,
    to: Destination,
    topic: TopicOption,
    policy: Policy,
    name: Name = "",
    entry: Annotated[
        str,
        typer.Option(
            "--entry",
            metavar="LEDGER:ENTRY",
            help="Leave out only this entry of --from, which the brokers beside the worker of --to refuse.",
        ),
    ] = "",
) -> Shown[LinkStatus] | Shown[LeftOutAnswer]:
    """Go on with a topic that has a gap, as the policy says.

    `keep-both` keeps the copy as closed history and loses nothing. `skip-and-record` goes on without what is missing,
    and records that. `copy-anew` deletes the destination's copy first, if nothing is lost by it.
    `replicator links list` says which of them end the gap.

    With `--entry` and `skip-and-record` the worker of `--to` passes over one entry that the brokers beside it refuse,
    and records it as left out. The topic's status names that entry.
    """
    if entry:
        return _leave_out(file, source, to, topic, policy, entry)
    link = _post(file, source, to, name, "resolve", {"topic": topic, "policy": policy})
    return Shown(link, f"{link['key']} goes on with {topic} ({policy})")


def _leave_out(file: Path, source: str, to: str, topic: str, policy: str, entry: str) -> Shown[LeftOutAnswer]:
    if policy != "skip-and-record":
        raise typer.BadParameter("the policy must be skip-and-record if --entry is given", param_hint="--policy")
    topology = opened_topology(file)
    body = {"topic": topic, "cluster": topology.cluster(source).name, "entry": entry}
    left_out: LeftOutAnswer = asyncio.run(_call(topology.cluster(to).url, "POST", "left-out", body))
    text = f"{to} goes on with {topic}; entry {entry} of {left_out['origin']} is left out at its brokers"
    return Shown(left_out, text)


@app.command("twins")
def list_twins(file: TopologyFile) -> Shown[list[RunsOfSource]]:
    """List the runs of each worker that the other clusters know, and live copies of one store.

    A run is one start of a worker on its store. Two live runs of one store are twins: somebody copied the directory.
    Exit status 1 if there are twins, 3 if a worker does not answer.
    """
    from replicator.operating.errors import WorkerUnavailable

    topology = opened_topology(file)
    found: list[RunsOfSource] = []
    problems: list[str] = []

    async def ask() -> None:
        for each in topology.clusters:
            try:
                rows: list[Any] = (await _call(each.url, "GET", "runs"))["runs"]
                found.extend(cast("RunsOfSource", {"peer": each.name, **row}) for row in rows)
            except WorkerUnavailable as error:
                problems.append(str(error))

    asyncio.run(ask())
    if not found and problems:
        raise WorkerUnavailable("; ".join(problems))
    columns = ("cluster", "named by", "run", "host", "started at", "standing")
    table = rows_table(columns, [row for each in found for row in _run_rows(each)])
    warnings = [f"warning: {problem}" for problem in problems]
    twins = any(each["twins"] for each in found)
    return Shown(found, table, status=3 if warnings else 1 if twins else 0, notes=warnings)


@app.command("stays")
def stays(
    file: TopologyFile,
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", metavar="NAME", help="The cluster whose store was copied.")
    ],
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Id of the worker's run whose copy of the store stays, as `links twins` shows it.",
        ),
    ],
) -> Shown[StaysAnswer]:
    """Decide which of two live copies of a cluster's store stays. It may be either copy.

    The clusters to which its links lead then accept data from that run only, and refuse the other run. Run the command
    again if a worker did not answer. To change the decision, run the command with the id of the other run.
    """
    from replicator.operating.errors import RequestRefused, WorkerUnavailable

    topology = opened_topology(file)
    topology.cluster(cluster)
    told: list[str] = []
    unknown: list[str] = []
    problems: list[str] = []

    async def tell() -> None:
        for name in dict.fromkeys(link.destination for link in topology.links_from(cluster)):
            try:
                path = f"runs/{quote(cluster, safe='')}/stays"
                await _call(topology.cluster(name).url, "POST", path, {"run": run})
                told.append(name)
            except RequestRefused as error:
                if error.code != "NoSuchRun":
                    raise
                unknown.append(str(error))
            except WorkerUnavailable as error:
                problems.append(str(error))

    asyncio.run(tell())
    if not told:
        if problems or not unknown:
            raise WorkerUnavailable("; ".join(problems) or f"{file}: no link leaves {cluster}")
        raise RequestRefused(404, "NoSuchRun", unknown[0])
    notes = [*(f"note: {each}" for each in unknown), *(f"warning: {each}; run this again" for each in problems)]
    text = f"run {run} of {cluster} stays; told: {', '.join(told)}"
    return Shown({"cluster": cluster, "run": run, "told": told}, text, status=3 if problems else 0, notes=notes)


def _run_rows(source: RunsOfSource) -> list[Sequence[object]]:
    runs = [(source["served"], "served" if source["connected"] else "was served last")]
    runs += [(each, "twin") for each in source["twins"]]
    runs += [(each, "dismissed") for each in source["dismissed"]]
    return [
        (source["cluster"], source["peer"], run["id"], run["host"], _started(run["started_at_ms"]), standing)
        for run, standing in runs
    ]


def _started(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def _post(file: Path, source: str, to: str, name: str, action: str, body: Mapping[str, str] | None = None) -> Any:
    from replicator.operating.errors import InvalidAddress

    topology = opened_topology(file)
    link = next((link for link in topology.links_between(source, to) if link.name == name), None)
    if link is None:
        known = ", ".join(each.key for each in topology.links) or "none"
        wanted = f"{source}>{to}" + (f"#{name}" if name else "")
        raise InvalidAddress(f"{file}: there is no link {wanted!r}; there are: {known}")
    path = f"links/{quote(link.key, safe='')}/{action}"
    return asyncio.run(_call(topology.cluster(source).url, "POST", path, body))


async def _call(url: str, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
    from replicator.operating.admin_client import AdminClient

    async with AdminClient(url) as client:
        return await client.call_replication(method, path, body)


def _row(link: Mapping[str, Any]) -> Sequence[object]:
    return (
        link["key"],
        link["engine"],
        _state(link),
        link["backlog_entries"],
        f"{link['lag_ms'] / 1000:.1f} s",
        link["messages"],
        link["reconnects"],
        link["gap_count"],
    )


def _state(link: Mapping[str, Any]) -> str:
    progress = link.get("backfill")
    state = link["state"] if progress is None else f"{link['state']} {progress['percent']} %"
    return f"{state}: {link['detail']}" if link["detail"] else str(state)


def _remarks(link: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs below the table, in full: a cell of the table would cut names and commands."""
    gaps = {gap["topic"]: gap["kind"] for gap in link["gaps"]}
    remarks = [
        f"{'gap ' + gaps[topic] if topic in gaps else 'halted'}: {topic}: {reason}"
        for topic, reason in link["halted"].items()
    ]
    lost = link.get("lost_here", {})
    remarks += [f"lost here: {topic}: {reason}" for topic, reason in islice(lost.items(), LOST_SHOWN_MAX)]
    remarks += [f"lost here: {len(lost) - LOST_SHOWN_MAX} more topics"] if len(lost) > LOST_SHOWN_MAX else []
    remarks += [f"holds back too much ({link['on_hold_exceeded']}): {topic}" for topic in link["hold_exceeded"]]
    remarks += [f"{backlog} entries: {topic}" for topic, backlog in link.get("backlog_by_topic", {}).items()]
    return remarks
