"""Reasons for failed connections to workers, as text for people, and a test whether an address is this machine's."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

import aiohttp

START_IT: Final = "start the worker there, or correct its address in the topology"


def why_no_answer(error: Exception, remedy: str = START_IT) -> str:
    """Return the reason for a request without an answer, with ``remedy`` if nobody listens or no host has the name.

    ``error`` is from aiohttp or a socket. Its own text repeats the address, in a form that readers do not know.
    """
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason: Exception = error.os_error
        text = why_not_connected(error)
    elif isinstance(error, OSError) and error.errno is not None:
        reason, text = error, _of_system(error)
    else:
        return str(error) or type(error).__name__
    return f"{text}; {remedy}" if remedy and isinstance(reason, ConnectionRefusedError | socket.gaierror) else text


def why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Return the reason that the system or TLS gives, without the address that the text of ``error`` repeats."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _of_system(error.certificate_error)
    return _of_system(error.os_error)


def _of_system(reason: Exception) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):  # its number is none of the system's
        return f"TLS: {(reason.reason or 'failed').replace('_', ' ').lower()}"
    if isinstance(reason, socket.gaierror):  # nor is this one's
        return "no host of this name is known"
    number = getattr(reason, "errno", None)
    return os.strerror(number).lower() if number and number > 0 else "cannot connect"


def is_of_this_machine(host: str) -> bool:
    """Return whether ``host`` is an address of this machine, so that a socket can be bound to it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True
