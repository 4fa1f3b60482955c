"""The parts that the clusters of a topology have in a drill."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.drills.errors import NoPair
from replicator.drills.scenarios.catalog import Requirement, Scenario
from replicator.drills.scenarios.steps import Role
from replicator.topology import Topology


@dataclass(frozen=True, slots=True)
class Cast:
    """Clusters of a drill, by their roles."""

    primary: str
    secondary: str
    bystander: str | None
    both_ways: bool
    """Whether links also lead from the secondary to the primary."""

    @property
    def pair(self) -> tuple[str, str]:
        return self.primary, self.secondary

    def name(self, role: Role) -> str:
        match role:
            case Role.PRIMARY:
                return self.primary
            case Role.SECONDARY:
                return self.secondary
            case Role.BYSTANDER:
                assert self.bystander is not None
                return self.bystander


def choose_cast(topology: Topology, scenario: Scenario, topic: str | None = None) -> Cast:
    """Choose the first two clusters that are linked both ways, or else one way; raise :class:`NoPair`. With ``topic``,
    only links that carry it count. If a scenario needs links both ways or a third cluster, only clusters that have
    them count.
    """
    for both_ways in (True, False):
        if not both_ways and Requirement.LINK_BACK in scenario.needs:
            break
        for primary in topology.names:
            for secondary in topology.names:
                if not _linked(topology, primary, secondary, topic):
                    continue
                if both_ways != _linked(topology, secondary, primary, topic):
                    continue
                bystander = _bystander(topology, primary, secondary, topic)
                if bystander is not None or Requirement.THREE_CLUSTERS not in scenario.needs:
                    return Cast(primary, secondary, bystander, both_ways)
    where = f"{topology.path}: links: " if topology.path else ""
    missing_links = _missing(scenario)
    raise NoPair(f"{where}the drill cannot use these links: {missing_links}")


def _linked(topology: Topology, source: str, destination: str, topic: str | None) -> bool:
    if topic is not None:
        return topology.link_carrying(source, destination, topic) is not None
    return bool(topology.links_between(source, destination))


def _bystander(topology: Topology, primary: str, secondary: str, topic: str | None) -> str | None:
    for name in topology.names:
        if name not in (primary, secondary) and all(
            _linked(topology, name, other, topic) and _linked(topology, other, name, topic)
            for other in (primary, secondary)
        ):
            return name
    return None


def _missing(scenario: Scenario) -> str:
    if Requirement.THREE_CLUSTERS in scenario.needs:
        return (
            f"no three clusters are all linked with each other, which --scenario {scenario.name} needs; "
            "add a cluster and {between: [A, B]} for each pair"
        )
    if Requirement.LINK_BACK in scenario.needs:
        return (
            f"no two clusters are linked both ways, so no client could move and come back, which "
            f"--scenario {scenario.name} needs; add {{between: [A, B]}}"
        )
    return "no two clusters are linked, so no client could move; add {between: [A, B]} or {from: A, to: B}"
