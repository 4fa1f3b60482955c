"""``replicator translate`` and ``replicator mapping``: the exact mapping, looked up and rebuilt by the workers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from replicator.api.json_types import RebuildAnswer
from replicator.cli.admin import TopologyFile, opened_topology, rows_table
from replicator.cli.commands import Commands
from replicator.cli.json_types import TranslateAnswer
from replicator.cli.output import Shown, tell
from replicator.engine.topic_name import parse_topic
from replicator.operating.errors import NotThere, RequestRefused
from snapshots.errors import InvalidPosition
from snapshots.position import Position

app = Commands(help="The exact mapping between the positions of clusters.", no_args_is_help=True)

POLL_SECONDS: Final = 0.2
NOT_THERE: Final = frozenset({"NotCopied", "PositionTrimmed", "OtherIncarnation"})
"""Codes that mean "not in that cluster": exit status 1. Other refusals are mistakes in the request: 2."""


def translate(
    file: TopologyFile,
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Name of the topic: persistent://TENANT/NAMESPACE/NAME, TENANT/NAMESPACE/NAME or NAME.",
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="CLUSTER", help="Cluster in whose log the entry has the position of --position."
        ),
    ],
    destination: Annotated[
        str, typer.Option("--to", metavar="CLUSTER", help="Cluster in which the same entry is looked for.")
    ],
    position: Annotated[
        str,
        typer.Option(
            metavar="LEDGER:ENTRY", help="Position of the entry, LEDGER:ENTRY: a message id without the batch index."
        ),
    ],
) -> Shown[TranslateAnswer]:
    """Translate a position in one cluster to the position of the same entry in another one. Exit status 1 if the entry
    is not there: not copied yet, left out, or trimmed. It is looked up in Postgres, or in the workers' stores while
    Postgres is away; the answer says in which.
    """
    found = asyncio.run(_translate(file, str(parse_topic(topic)), source, destination, _position(position)))
    rows = [
        ("from", found["from"]["cluster"], found["from"]["position"], found["from"]["source"]),
        ("published", found["identity"]["origin"], found["identity"]["position"], ""),
        ("to", found["to"]["cluster"], found["to"]["position"], found["to"]["source"]),
    ]
    return Shown(found, rows_table(("", "cluster", "position", "looked up in"), rows))


@app.command()
def rebuild(
    file: TopologyFile,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Rebuild only this cluster's index.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Rebuild only the rows of this topic in the index.")
    ] = None,
) -> Shown[dict[str, RebuildAnswer]]:
    """Make the rows of extents, snapshot mappings and subscription states again from the logs.

    The workers do it beside their traffic, and check the extents in their stores by the way. Doing it again changes
    nothing.
    """
    name = None if topic is None else str(parse_topic(topic))
    progress = asyncio.run(_rebuild(file, cluster, name))
    columns = ("cluster", "state", "topics", "blocks", "segments", "mappings", "states", "repaired")
    rows = [
        (
            of,
            done["state"] + (f": {done['detail']}" if done["detail"] else ""),
            done["topics_done"],
            done["blocks"],
            done["segments"],
            done["mappings"],
            done["states"],
            done["store_rows_repaired"],
        )
        for of, done in progress.items()
    ]
    whole = all(done["state"] == "done" for done in progress.values())
    return Shown(progress, rows_table(columns, rows), status=0 if whole else 1)


async def _translate(file: Path, topic: str, source: str, destination: str, position: Position) -> TranslateAnswer:

    topology = opened_topology(file)
    at, to = topology.cluster(source), topology.cluster(destination)
    identity = await _ask("GET", at.url, "identity", topic=topic, position=str(position))
    wanted = {"origin": identity["origin"], "incarnation": identity["incarnation"]}
    place = await _ask("GET", to.url, "place", topic=topic, origin_position=identity["origin_position"], **wanted)
    sources = {identity["source"], place["source"]}
    return {
        "topic": topic,
        "from": {"cluster": at.name, "position": str(position), "source": identity["source"]},
        "identity": {
            "origin": identity["origin"],
            "incarnation": identity["incarnation"],
            "position": identity["origin_position"],
        },
        "to": {"cluster": to.name, "position": place["position"], "source": place["source"]},
        "source": next((each for each in ("store", "postgres") if each in sources), "log"),
    }


async def _rebuild(file: Path, cluster: str | None, topic: str | None) -> dict[str, RebuildAnswer]:

    topology = opened_topology(file)
    chosen = topology.clusters if cluster is None else (topology.cluster(cluster),)
    parameters = {} if topic is None else {"topic": topic}
    progress: dict[str, RebuildAnswer] = {}
    for each in chosen:
        try:
            progress[each.name] = await _ask("POST", each.url, "mapping/rebuild", **parameters)
        except RequestRefused as error:
            if error.code != "TopicNotFound" or cluster is not None:
                raise
            tell(f"{each.name}: {error}")  # a topic need not be in every cluster
    if not progress and topic is not None:
        raise RequestRefused(404, "TopicNotFound", f"no cluster has {topic}")
    while running := [name for name, done in progress.items() if done["state"] == "running"]:
        await asyncio.sleep(POLL_SECONDS)
        for name in running:
            progress[name] = await _ask("GET", topology.cluster(name).url, "mapping/rebuild")
            if sys.stderr.isatty():
                done = progress[name]
                tell(f"{name}: {done['topics_done']} of {done['topics']} topics, {done['blocks']} blocks")
    return progress


async def _ask(method: str, url: str, path: str, **parameters: str) -> Any:
    """Ask a worker, and return its answer; raise :class:`NotThere`, :class:`RequestRefused` or
    :class:`WorkerUnavailable`.
    """
    from replicator.operating.admin_client import AdminClient

    async with AdminClient(url) as client:
        try:
            return await client.call_replication(method, path, **parameters)
        except RequestRefused as error:
            if error.code in NOT_THERE:
                raise NotThere(str(error)) from None
            raise


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except InvalidPosition as error:
        raise typer.BadParameter(f"--position: {error}") from None
