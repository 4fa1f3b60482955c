"""Shapes of topologies: clusters and the links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Clusters and links of a topology. ``forwards`` says whether links also carry messages of other clusters."""

    name: str
    clusters: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    forwards: bool = False

    @property
    def is_mesh(self) -> bool:
        """Return whether a link leads from each cluster to each other one."""
        return len(self.links) == len(self.clusters) * (len(self.clusters) - 1)

    def reaches(self, origin: str, cluster: str) -> bool:
        """Return whether messages that ``origin`` publishes are copied to ``cluster``."""
        return origin == cluster or cluster in self._from(origin)

    def _from(self, origin: str) -> set[str]:
        found = {to for source, to in self.links if source == origin}
        while self.forwards:
            more = {to for source, to in self.links if source in found} | found
            if more == found:
                break
            found = more
        return found

    def tells(self, source: str, to: str) -> bool:
        """Return whether ``to`` learns of acknowledgements at ``source``."""
        return self.reaches(source, to)


def _mesh(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((source, to) for source in names for to in names if source != to)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("pair", ("a", "b"), _mesh("a", "b")),
        Shape("one-way", ("a", "b"), (("a", "b"),)),
        Shape("mesh", ("a", "b", "c"), _mesh("a", "b", "c")),
        Shape("chain", ("a", "b", "c"), (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")), forwards=True),
        Shape("ring", ("a", "b", "c"), (("a", "b"), ("b", "c"), ("c", "a")), forwards=True),
    )
}
JOINED = {"pair": "mesh"}
"""For a shape that another cluster can join, the shape that there is then. The cluster that joins is its last one."""


def largest(shape: Shape) -> Shape:
    """Return the shape after another cluster joined, or ``shape`` if none can join it."""
    return SHAPES[JOINED.get(shape.name, shape.name)]
