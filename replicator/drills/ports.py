"""Ports for workers that are about to be started on this machine.

The kernel gives a port of its own range to every connection that goes out. A port of that range that is free now may be
taken a moment later, and the worker that was to have it cannot start. So ports come from below that range.

Programs that ask at the same time do not get the same port: each locks a byte of a common file for each of its ports.
The kernel ends the locks of a process that ends. The file is ``/dev/null``, so nothing is left behind.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import struct
from typing import Final

PORTS: Final = range(12_000, 32_000)
"""Ports of drills. They lie below those of outgoing connections: 32768 and up on Linux, 49152 and up elsewhere."""
TRIES_MAX: Final = 1_000
GIVEN_MAX: Final = 1_000
"""Number of ports that a process keeps. It gives up the oldest beyond that, unless they are of its last request."""
_SET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
"""Lock of an open file, which closing another descriptor of the file does not end. Linux has it."""
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
def _locks(process: int) -> int | None:
    """Return a descriptor of the file whose bytes stand for ports, which ``process`` keeps; None if there are no locks.

    A forked process opens the file anew: it would share its parent's locks otherwise.
    """
    try:
        return os.open(os.devnull, os.O_RDWR) if _SET_LOCK is not None else None
    except OSError:
        return None


def _lock(port: int) -> bool:
    """Return whether no other process was given ``port``."""
    return _set_lock(fcntl.F_WRLCK, port)


def _unlock(port: int) -> None:
    _set_lock(fcntl.F_UNLCK, port)


def _set_lock(kind: int, port: int) -> bool:
    if (file := _locks(os.getpid())) is None or _SET_LOCK is None:
        return True
    try:
        fcntl.fcntl(file, _SET_LOCK, struct.pack("hhqqi", kind, os.SEEK_SET, port, 1, 0))
    except OSError:
        return False
    return True
