"""Ports for workers that are about to be started on this machine.

The kernel gives a port of its own range to every connection that goes out. A port of that range that is free now may be
taken a moment later, and the worker that was to have it cannot start. So ports come from below that range.

Programs that ask at the same time do not get the same port: each locks a byte of a common file for each of its ports.
The kernel ends the locks of a process that ends.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

PORTS: Final = range(12_000, 32_000)
"""Ports of drills. They lie below those of outgoing connections: 32768 and up on Linux, 49152 and up elsewhere."""
TRIES_MAX: Final = 1_000
GIVEN_MAX: Final = 1_000
"""Number of ports that a process keeps. It gives up the oldest beyond that, unless they are of its last request."""
_given: Final[dict[int, None]] = {}
"""Ports that this process was given and may not have bound yet, the oldest first."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free ports of 127.0.0.1, chosen at random.

    Neither this process nor another one that asks here gets any of them again, until it has ended or was given
    :data:`GIVEN_MAX` more.
    """
    found: list[int] = []
    for _ in range(TRIES_MAX):
        port = random.choice(PORTS)
        if port in _given or not _lock(port):
            continue
        if not _is_free(port):
            _unlock(port)
            continue
        found.append(port)
        _given[port] = None
        if len(found) == count:
            while len(_given) > max(count, GIVEN_MAX):
                oldest = next(iter(_given))
                del _given[oldest]
                _unlock(oldest)
            return found
    raise OSError(f"no {count} free ports among {PORTS.start} to {PORTS.stop - 1} of 127.0.0.1: stop what uses them")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the worker itself binds it
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@functools.cache
def _locks() -> int | None:
    """Return the file whose bytes stand for ports, open as long as this process runs; None if it cannot be opened.

    Closing it would end all locks of this process.
    """
    try:
        return os.open(Path(tempfile.gettempdir()) / f"replicator-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None


def _lock(port: int) -> bool:
    """Return whether no other process was given ``port``."""
    if (file := _locks()) is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _unlock(port: int) -> None:
    if (file := _locks()) is not None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, port)
