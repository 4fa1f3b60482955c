"""A worker as the command line runs it, whose event loop a signal stops.

SIGUSR1 stops it in Python code, as a loop without an end does. SIGUSR2 stops it for ``HELD_SECONDS`` in C code that
holds the GIL. The arguments are those of ``replicator``.
"""

from __future__ import annotations

import ctypes
import os
import signal

from replicator.cli.main import app


def stand_still(*_: object) -> None:
    while True:
        pass


def hold_the_gil(*_: object) -> None:
    ctypes.PyDLL(None).sleep(int(os.environ["HELD_SECONDS"]))


signal.signal(signal.SIGUSR1, stand_still)
signal.signal(signal.SIGUSR2, hold_the_gil)
app()
