"""Texts that tell people why a connection to a worker failed, a bounded read of a worker's answer, and helpers for
addresses of machines and connections."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    import aiohttp

START_IT: Final = "start the worker there, or correct its address in the topology"
ENDED_EARLY: Final = "its answer ended early, as when it is killed or the connection breaks"
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that reading a malformed message of another worker may raise, from the parsing of its JSON on."""


def why_no_answer(error: Exception, remedy: str = START_IT) -> str:
    """Return why a request to a worker got no answer, with ``remedy`` if nobody listens or no host has the name.

    ``error`` is from aiohttp or a socket. Its own text repeats the address, in a form that readers do not know.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if is_cut_off(error):
        return ENDED_EARLY
    reason = _inside(error)
    if not isinstance(reason, OSError) or (reason is error and error.errno is None):
        return str(error) or type(error).__name__
    text = _of_system(reason)
    return f"{text}; {remedy}" if remedy and isinstance(reason, ConnectionRefusedError | socket.gaierror) else text


def is_cut_off(error: Exception) -> bool:
    """Return whether ``error``, of aiohttp or of a stream, says that an answer ended before its announced end.

    Such an error has only a library's words.
    """
    aiohttp = sys.modules.get("aiohttp")  # not imported here, see _inside()
    return isinstance(error, EOFError) or (aiohttp is not None and isinstance(error, aiohttp.ClientPayloadError))


def why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Return why a connection failed, as the system or TLS says it, without the address that ``error`` repeats."""
    return _of_system(_inside(error))


def _inside(error: Exception) -> Exception:
    """Return the error of the system or of TLS inside an error of aiohttp, or ``error`` itself.

    aiohttp's types are not imported here, because readers of data in Spark's processes do without aiohttp.
    """
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    return found if isinstance(found, Exception) else error


def _of_system(reason: Exception) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):  # its number is none of the system's
        return f"TLS: {(reason.reason or 'failed').replace('_', ' ').lower()}"
    if isinstance(reason, socket.gaierror):  # nor is the number of this error
        return "no host of this name is known"
    number = getattr(reason, "errno", None)
    return os.strerror(number).lower() if number and number > 0 else "cannot connect"


async def read_at_most(response: aiohttp.ClientResponse, bytes_max: int) -> bytearray:
    """Return the body of a worker's answer. Raises ValueError as soon as it has more than ``bytes_max`` bytes."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > bytes_max:
            raise ValueError(f"the worker answers with more than {bytes_max} bytes: run the same version everywhere")
    return body


def is_of_this_machine(host: str) -> bool:
    """Return whether ``host`` is an address of this machine, so that a socket can be bound to it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True


def address_of(transport: asyncio.BaseTransport | None) -> tuple[str, str]:
    """Return the host from which a connection came, and ``host:port``; empty texts if the connection is gone."""
    peer = None if transport is None else transport.get_extra_info("peername")
    if not peer:
        return "", ""
    host = plain_host(str(peer[0]))
    return host, f"{host}:{peer[1]}"


def plain_host(host: str) -> str:
    """Return ``host`` without the prefix ``::ffff:``, which IPv4 addresses have at a socket of both families."""
    return host.removeprefix("::ffff:")
