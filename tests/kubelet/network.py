"""Network of the tests' node: each pod has a network namespace with an address, on one bridge with the node's."""

from __future__ import annotations

import itertools
import subprocess
from typing import Final

NODE_ADDRESS: Final = "10.244.0.1"
_NUMBERS: Final = itertools.count(1)


def ip(*lines: str, within: str = "") -> None:
    """Run ``lines`` as commands of the program ``ip``, in the namespace named ``within``, or in the node's."""
    arguments = ["ip", *(["-n", within] if within else []), "-batch", "-"]
    subprocess.run(arguments, input="\n".join(lines), text=True, check=True, timeout=60)


def prepare_network(services: str) -> None:
    """Make the bridge of pods. The node gets all addresses of the range ``services``, where its forwarders listen."""
    subprocess.run(["mkdir", "-p", "/run/netns"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)  # where names of namespaces are
    address = f"address add {NODE_ADDRESS}/16 dev pods"
    ip("link set lo up", "link add pods type bridge", address, "link set pods up", f"route add local {services} dev lo")


class Network:
    """Network namespace and address of one pod."""

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self.name = f"pod{number}"
        self.address = f"10.244.{1 + number // 250}.{1 + number % 250}"

    def add(self) -> None:
        """Make the namespace and connect it to the bridge ``pods``. It takes a while."""
        pair = f"link add v{self.name} type veth peer name eth0 netns {self.name}"
        ip(f"netns add {self.name}", pair, f"link set v{self.name} master pods up")
        own = ("link set lo up", f"address add {self.address}/16 dev eth0", "link set eth0 up")
        ip(*own, f"route add default via {NODE_ADDRESS}", within=self.name)

    def remove(self) -> None:
        """Remove the namespace; connections through it break off."""
        ip(f"netns delete {self.name}")
