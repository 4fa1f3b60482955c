"""Why a worker could not be connected to, in words for people."""

from __future__ import annotations

import os
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
