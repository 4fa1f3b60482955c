"""Layout of clusters and links on the map: an even ring, and an arrow for each pair with a link. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from replicator.dashboard.overview import BAD, GOOD, UNKNOWN, WARN, ClusterRow, LinkRow, Overview

WIDTH: Final = 360
HEIGHT: Final = 240
HEIGHT_OF_PAIR: Final = 100
"""Height of a map of one or two clusters, which stand beside each other."""
NODE_WIDTH: Final = 86
NODE_HEIGHT: Final = 34
SPREAD: Final = 7.0
"""Distance between the arrows of a pair's two directions."""
LABELLED_MAX: Final = 6
"""Limit of links with figures on the map: more figures would cover each other, so they stand in the table only."""
NAME_CHARS_MAX: Final = 11
_WORST_FIRST: Final = (BAD, UNKNOWN, WARN, GOOD)


@dataclass(frozen=True, slots=True)
class Node:
    cluster: ClusterRow
    x: float
    y: float
    shown: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow for all links from one cluster to another; ``tone`` is that of the worst."""

    link: LinkRow
    tone: str
    labelled: bool
    x1: float
    y1: float
    x2: float
    y2: float
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Drawing:
    height: int
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]


def draw(overview: Overview) -> Drawing:
    height = HEIGHT if len(overview.clusters) > 2 else HEIGHT_OF_PAIR
    nodes = _ring(overview.clusters, height)
    pairs: dict[tuple[str, str], LinkRow] = {}
    for link in overview.links:
        pair = link.source, link.destination
        if pair not in pairs or _WORST_FIRST.index(link.tone) < _WORST_FIRST.index(pairs[pair].tone):
            pairs[pair] = link
    at = {node.cluster.name: node for node in nodes}
    labelled = len(pairs) <= LABELLED_MAX
    arrows = tuple(
        _arrow(link, at[source], at[destination], labelled=labelled)
        for (source, destination), link in pairs.items()
        if source in at and destination in at
    )
    return Drawing(height, nodes, arrows)


def _ring(clusters: tuple[ClusterRow, ...], height: int) -> tuple[Node, ...]:
    radius_x, radius_y = (WIDTH - NODE_WIDTH) / 2 - 4, (height - NODE_HEIGHT) / 2 - 12
    start = math.pi if len(clusters) <= 2 else -math.pi / 2
    found = []
    for number, cluster in enumerate(clusters):
        angle = start + 2 * math.pi * number / max(1, len(clusters))
        shown = cluster.name if len(cluster.name) <= NAME_CHARS_MAX else f"{cluster.name[: NAME_CHARS_MAX - 1]}…"
        x, y = WIDTH / 2 + radius_x * math.cos(angle), height / 2 + radius_y * math.sin(angle)
        found.append(Node(cluster, round(x, 1), round(y, 1), shown))
    return tuple(found)


def _arrow(link: LinkRow, source: Node, destination: Node, *, labelled: bool) -> Arrow:
    dx, dy = destination.x - source.x, destination.y - source.y
    length = math.hypot(dx, dy) or 1.0
    ux, uy = dx / length, dy / length
    px, py = -uy * SPREAD, ux * SPREAD
    start, end = _border(ux, uy), _border(ux, uy) + 6
    x1, y1 = source.x + ux * start + px, source.y + uy * start + py
    x2, y2 = destination.x - ux * end + px, destination.y - uy * end + py
    label_x, label_y = x1 + (x2 - x1) * 0.5 + px * 1.8, y1 + (y2 - y1) * 0.5 + py * 1.8 + 3
    places = [round(each, 1) for each in (x1, y1, x2, y2, label_x, label_y)]
    return Arrow(link, link.tone, labelled, *places)


def _border(ux: float, uy: float) -> float:
    """Return how far a node's border is from its middle in a direction."""
    across = NODE_WIDTH / 2 / abs(ux) if ux else math.inf
    up = NODE_HEIGHT / 2 / abs(uy) if uy else math.inf
    return min(across, up)
