"""Addresses: each pod has a network namespace with one of its own, beside the node's on a bridge."""

from __future__ import annotations

import asyncio
from typing import Final

BRIDGE: Final = "pods"
NODE_ADDRESS: Final = "10.244.0.1"
PODS: Final = 250 * 250


class NetworkFailed(Exception):
    """What ``ip`` said."""


async def ip(*arguments: str) -> None:
    """Run the program ``ip``."""
    process = await asyncio.create_subprocess_exec("ip", *arguments, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode:
        raise NetworkFailed(f"ip {' '.join(arguments)}: {said.decode()}")


class Network:
    """Of one pod."""

    made = 0

    def __init__(self) -> None:
        Network.made = number = Network.made % PODS + 1
        self.name = f"pod{number}"
        self.host = NODE_ADDRESS
        self.address = f"10.244.{1 + number // 250}.{1 + number % 250}"

    async def add(self) -> None:
        await ip("netns", "add", self.name)
        await ip("link", "add", f"v{self.name}", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        await ip("link", "set", f"v{self.name}", "master", BRIDGE, "up")
        inside = ("-n", self.name)
        await ip(*inside, "link", "set", "lo", "up")
        await ip(*inside, "address", "add", f"{self.address}/16", "dev", "eth0")
        await ip(*inside, "link", "set", "eth0", "up")
        await ip(*inside, "route", "add", "default", "via", NODE_ADDRESS)

    async def remove(self) -> None:
        """What is connected through it finds that nobody is there."""
        await ip("netns", "delete", self.name)
