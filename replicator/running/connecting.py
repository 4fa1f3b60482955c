"""Reasons for failed connections to workers, as text for people, and a test whether an address is this machine's."""

from __future__ import annotations

import os
import socket
import ssl

import aiohttp


def why_not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Return the reason that the system or TLS gives, without the address that the text of ``error`` repeats."""
    reason = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):  # its number is none of the system's
        return f"TLS: {(reason.reason or 'failed').replace('_', ' ').lower()}"
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
