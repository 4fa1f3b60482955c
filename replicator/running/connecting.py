"""Why a worker could not be connected to, in words for people."""

from __future__ import annotations

import os

import aiohttp


def why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """The system's reason alone: the error's own text repeats the address, and not what is wrong."""
    number = error.os_error.errno
    return os.strerror(number).lower() if number and number > 0 else "cannot connect"
