"""World of a history: the clusters that run, with a method for each step of :mod:`histories.steps`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from forked_commands import EDITED
from postgres_support import databases_of, served_postgres, traversable_directory

from histories.clients import Deduplicating, Regions
from histories.operating import links_of
from histories.pauses import PAUSES
from histories.rest import AtRest
from histories.shapes import Shape, largest


class World(AtRest):
    """The clusters of one history, their clients, and the model.

    Steps of clients are in :mod:`histories.traffic`, steps of operators in :mod:`histories.operating`, and the end of a
    history in :mod:`histories.rest`.
    """


@asynccontextmanager
async def regions_of(
    shape: Shape, path: Path, databases: Mapping[str, str], *, deduplication: bool
) -> AsyncIterator[Regions]:
    """Start the clusters of a shape in ``path``."""
    kind = Deduplicating if deduplication else Regions
    regions = kind(path, shape.clusters, links_of(shape), databases)
    try:
        await asyncio.to_thread(regions.start, *shape.clusters)
        yield regions
    finally:
        regions.stop()


@asynccontextmanager
async def world(
    regions: Regions, shape: Shape, *, name: str = "h", official: bool = False, joins: bool = False
) -> AsyncIterator[World]:
    """Yield the clusters, clients and model of a new test history. Close the clients at the end.

    The clusters run already.

    With ``official``, the official Python client takes part in the history, too. With ``joins``, another cluster can
    join.
    """
    made = World(shape, regions, deduplication=regions.deduplication, name=name, official=official, joins=joins)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def history(shape: Shape, *, deduplication: bool = False, official: bool = False) -> AsyncIterator[World]:
    """Start clusters of its own for one history, as programs of shrunk histories do."""
    with served_postgres() as server, traversable_directory() as path:
        path.chmod(0o755)  # as root, the server of the database runs as another user
        os.environ.update({EDITED: os.environ.get(EDITED, ""), PAUSES: str(path)})
        with databases_of("".join(largest(shape).clusters), server, "history") as databases:
            made = regions_of(shape, path, databases, deduplication=deduplication)
            async with made as regions, world(regions, shape, official=official, joins=True) as begun:
                yield begun
