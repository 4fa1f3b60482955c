"""Ports for workers that are about to be started on this machine.

The kernel gives a port of its own range to every connection that goes out. A port of that range that is free now may be
taken a moment later, and the worker that was to have it cannot start. So ports come from below that range.
"""

from __future__ import annotations

import random
import socket
from typing import Final

PORTS: Final = range(12_000, 32_000)
"""Ports of drills. They lie below those of outgoing connections: 32768 and up on Linux, 49152 and up elsewhere."""
TRIES_MAX: Final = 1_000
_given: Final[set[int]] = set()
"""Ports that this process was given and may not have bound yet."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free ports of 127.0.0.1. They are chosen at random: two programs that ask at the same
    time hardly get the same port. No port is given to one process twice, until it was given half of them.
    """
    found: set[int] = set()
    if len(_given) + count > len(PORTS) // 2:
        _given.clear()
    for _ in range(TRIES_MAX):
        port = random.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the worker itself binds it
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
        if len(found) == count:
            _given.update(found)
            return list(found)
    raise OSError(f"no {count} free ports among {PORTS.start} to {PORTS.stop - 1} of 127.0.0.1: stop what uses them")
