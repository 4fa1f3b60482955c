"""Network of the tests' node: each pod has a network namespace with an address, on one bridge with the node's."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import dataclass
from typing import Final

BALANCERS: Final = "198.51.100.0/24"
"""Range of the addresses of load balancers, which the pods of all clusters reach."""
NAMES: Final = {"us-east.replicator.example": "198.51.100.1", "eu-west.replicator.example": "198.51.100.2"}
"""Names of load balancers, which the pods of all clusters know."""
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of one of several Kubernetes clusters that run side by side."""

    number: int = 0

    @property
    def bridge(self) -> str:
        return f"pods{self.number}"

    @property
    def node(self) -> str:
        return f"10.{244 + self.number}.0.1"

    @property
    def pods(self) -> str:
        return f"10.{244 + self.number}.0.0/16"

    @property
    def services(self) -> str:
        return f"10.{96 + self.number}.0.0/16"


def ip(*lines: str, within: str = "") -> None:
    """Run ``lines`` as commands of the program ``ip``, in the namespace named ``within``, or in the node's."""
    arguments = ["ip", *(["-n", within] if within else []), "-batch", "-"]
    subprocess.run(arguments, input="\n".join(lines), text=True, check=True, timeout=60)


def prepare_network() -> None:
    """Prepare what all clusters share: names of network namespaces, and load balancers."""
    subprocess.run(["mkdir", "-p", "/run/netns"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)  # where names of namespaces are
    ip("link set lo up", f"route add local {BALANCERS} dev lo")


def add_bridge(place: Place) -> None:
    """Make the bridge of a cluster's pods. The node gets all addresses of Services, where its forwarders listen."""
    bridge = place.bridge
    ip(
        f"link add {bridge} type bridge",
        f"address add {place.node}/16 dev {bridge}",
        f"link set {bridge} up",
        f"route add local {place.services} dev lo",
    )


class Network:
    """Network namespace and address of one pod."""

    def __init__(self, place: Place) -> None:
        number = next(_NUMBERS)
        self._place = place
        self.name = f"pod{place.number}-{number}"
        self.address = f"10.{244 + place.number}.{1 + number // 250}.{1 + number % 250}"

    def add(self) -> None:
        """Make the namespace and connect it to the bridge of pods. This takes a while."""
        pair = f"link add v{self.name} type veth peer name eth0 netns {self.name}"
        ip(f"netns add {self.name}", pair, f"link set v{self.name} master {self._place.bridge} up")
        own = ("link set lo up", f"address add {self.address}/16 dev eth0", "link set eth0 up")
        ip(*own, f"route add default via {self._place.node}", within=self.name)

    def remove(self) -> None:
        """Remove the namespace; connections through it break off."""
        ip(f"netns delete {self.name}")
