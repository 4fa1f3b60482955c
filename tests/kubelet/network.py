"""Addresses: each pod has a network namespace with one of its own, beside the node's on a bridge."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from kubelet.services import BALANCERS

BRIDGE: Final = "pods"
NODE_ADDRESS: Final = "10.244.0.1"
_NUMBERS: Final = itertools.count(1)


async def run(line: str) -> None:
    """Run a program."""
    process = await asyncio.create_subprocess_exec(*line.split(), stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode:
        raise OSError(f"{line}: {said.decode()}")


async def ip(line: str) -> None:
    """Run the program ``ip``."""
    await run(f"ip {line}")


async def prepare_network() -> None:
    """The bridge. Addresses of Services are the node's, where its forwarders listen. Names of namespaces are files."""
    for line in ("mkdir -p /run/netns", "mount -t tmpfs tmpfs /run/netns"):
        await run(line)
    for line in ("link set lo up", f"link add {BRIDGE} type bridge", f"address add {NODE_ADDRESS}/16 dev {BRIDGE}"):
        await ip(line)
    for line in (f"link set {BRIDGE} up", *(f"route add local {net}.0.0/16 dev lo" for net in ("10.96", BALANCERS))):
        await ip(line)


class Network:
    """Of one pod."""

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self.name = f"pod{number}"
        self.address = f"10.244.{1 + number // 250}.{1 + number % 250}"

    async def add(self) -> None:
        await ip(f"netns add {self.name}")
        await ip(f"link add v{self.name} type veth peer name eth0 netns {self.name}")
        await ip(f"link set v{self.name} master {BRIDGE} up")
        inside = ("link set lo up", f"address add {self.address}/16 dev eth0", "link set eth0 up")
        for line in (*inside, f"route add default via {NODE_ADDRESS}"):
            await ip(f"-n {self.name} {line}")

    async def remove(self) -> None:
        """Connections through it break off."""
        await ip(f"netns delete {self.name}")
