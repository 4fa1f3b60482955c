"""Why a worker could not be connected to, in words for people, and whether an address is one of this machine."""

from __future__ import annotations

import os
import socket
import ssl

import aiohttp


def why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """The reason alone, of the system or of TLS: the error's own text repeats the address, and not what is wrong."""
    reason = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):  # its number is none of the system's
        return f"TLS: {(reason.reason or 'failed').replace('_', ' ').lower()}"
    number = getattr(reason, "errno", None)
    return os.strerror(number).lower() if number and number > 0 else "cannot connect"


def is_of_this_machine(host: str) -> bool:
    """Return whether ``host`` is an address of this machine: one to which a socket can be bound here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True
