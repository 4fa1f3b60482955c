"""Supervisor of the client's background tasks: reconnections, listeners, watchers, polls.

Clients of one event loop share it. It has no task of its own, and tasks that a client started end with that client.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from replicator.running.supervisor import StandardLog, Supervisor

_supervisors: WeakKeyDictionary[asyncio.AbstractEventLoop, Supervisor] = WeakKeyDictionary()


def client_supervisor() -> Supervisor:
    """Return the supervisor for all clients on this event loop.

    It logs through the standard library, because the program belongs to somebody else."""
    loop = asyncio.get_running_loop()
    supervisor = _supervisors.get(loop)
    if supervisor is None:
        supervisor = _supervisors[loop] = Supervisor(log=StandardLog(logging.getLogger("replicator.client")))
    return supervisor
