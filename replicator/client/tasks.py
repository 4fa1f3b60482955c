"""The supervisor of what clients keep running: connections that are opened again, listeners, watchers, polls.

Clients of one event loop share it. It has no task of its own, and what a client started ends with that client.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

from replicator.running.supervisor import StandardLog, Supervisor

_supervisors: WeakKeyDictionary[asyncio.AbstractEventLoop, Supervisor] = WeakKeyDictionary()


def client_supervisor() -> Supervisor:
    """Of the clients that run on this event loop. It logs by the standard library: the program is somebody else's."""
    loop = asyncio.get_running_loop()
    supervisor = _supervisors.get(loop)
    if supervisor is None:
        supervisor = _supervisors[loop] = Supervisor(log=StandardLog(logging.getLogger("replicator.client")))
    return supervisor
