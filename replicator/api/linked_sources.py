"""Links that lead to this cluster, and the origins that each may bring. A reload of the topology replaces them at run
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LinkKey = tuple[str, str]
"""The source and the name of a link that leads here; links between two clusters are told apart by name."""


@dataclass(frozen=True, slots=True)
class IncomingLink:
    """A link that leads here. ``origins`` are the clusters whose messages it may bring: invariant 4."""

    source: str
    name: str = ""
    origins: frozenset[str] = frozenset()

    @property
    def key(self) -> LinkKey:
        return self.source, self.name


class LinkedSources:
    """The links that may append to this cluster's topics."""

    def __init__(self, links: Iterable[IncomingLink] = ()) -> None:
        self._links: dict[LinkKey, IncomingLink] = {}
        self.replace(links)

    @classmethod
    def of(cls, *sources: str) -> LinkedSources:
        """Return one link from each of these clusters, which brings the messages that the cluster published."""
        return cls(IncomingLink(source, origins=frozenset({source})) for source in sources)

    def find(self, source: str, name: str = "") -> IncomingLink | None:
        return self._links.get((source, name))

    def origins_from(self, source: str) -> frozenset[str]:
        """Return the clusters whose messages any link from ``source`` may bring."""
        origins = (link.origins for link in self._links.values() if link.source == source)
        return frozenset().union(*origins)

    def __contains__(self, source: object) -> bool:
        """Return whether any link comes from that cluster."""
        return any(known == source for known, _ in self._links)

    def replace(self, links: Iterable[IncomingLink]) -> set[LinkKey]:
        """Replace all links by ``links``. Return the former links that may not bring any more what they brought."""
        before, self._links = self._links, {link.key: link for link in links}
        return {
            key
            for key, link in before.items()
            if (now := self._links.get(key)) is None or not link.origins <= now.origins
        }
