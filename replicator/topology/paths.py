"""Origins that each link carries, and clusters that each origin reaches: pure functions over the directed links of a
topology.

Invariant (DESIGN §3): 4, no loops: nothing travels to where it came from, nor twice through one cluster.

A link carries what its source originated. A link that forwards also carries what reached its source from elsewhere:

1. Going back from the link's source, a link into it brings the messages of the cluster at its other end.
2. If that link forwards, it also brings what reaches that cluster; so the search goes on from there.
3. The link's destination is left out of the search: what only reaches the source through the destination is there
   already, and what the destination originated does not go back to it.

A path found this way visits no cluster twice, because taking out a detour leaves a path. The destination of each link
on it lies nearer to the end than its source, so each of these links passes its own check too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar


class Edge(Protocol):
    """A link, as far as paths go."""

    @property
    def source(self) -> str: ...
    @property
    def destination(self) -> str: ...
    @property
    def forward(self) -> bool: ...


E = TypeVar("E", bound=Edge)


def origins_over(link: Edge, links: Sequence[Edge]) -> frozenset[str]:
    """Return the clusters whose messages ``link`` carries, if ``links`` are all links."""
    if not link.forward:
        return frozenset((link.source,))
    passable = [each for each in links if link.destination not in (each.source, each.destination)]
    return _reaching(link.source, passable) | {link.source}


def reaching(cluster: str, links: Sequence[Edge]) -> frozenset[str]:
    """Return the other clusters whose messages reach ``cluster``, directly or forwarded."""
    return _reaching(cluster, links) - {cluster}


def reached_from(origin: str, links: Sequence[Edge]) -> frozenset[str]:
    """Return the other clusters that get messages of ``origin``, directly or forwarded."""
    found: set[str] = set()
    ahead = [each.destination for each in links if each.source == origin]
    while ahead:
        cluster = ahead.pop()
        if cluster not in found:
            found.add(cluster)
            ahead += [each.destination for each in links if each.source == cluster and each.forward]
    return frozenset(found - {origin})


def held_up_at(origin: str, target: str, links: Sequence[E], stopped: Collection[E]) -> list[E]:
    """Return the links in ``stopped`` that keep messages of ``origin`` from ``target``.

    The list is empty if another way is open. It names the first stopped link of each way.
    """
    reached = reached_from(origin, [each for each in links if each not in stopped]) | {origin}
    if target in reached:
        return []
    leading = {target}
    while further := {each.source for each in links if each.forward and each.destination in leading} - leading:
        leading |= further
    return [
        each
        for each in links
        if each in stopped
        and each.source in reached
        and (each.source == origin or each.forward)
        and each.destination in leading
    ]


def passed_on_by(origin: str, links: Sequence[Edge]) -> frozenset[str]:
    """Return the other clusters from which a link passes on messages of ``origin``."""
    return frozenset(
        each.source for each in links if each.forward and each.source != origin and origin in origins_over(each, links)
    )


def _reaching(cluster: str, links: Iterable[Edge]) -> frozenset[str]:
    into: dict[str, list[Edge]] = {}
    for each in links:
        into.setdefault(each.destination, []).append(each)
    found: set[str] = set()
    searched = {cluster}
    ahead = [cluster]
    while ahead:
        for each in into.get(ahead.pop(), ()):
            found.add(each.source)
            if each.forward and each.source not in searched:
                searched.add(each.source)
                ahead.append(each.source)
    return frozenset(found)
