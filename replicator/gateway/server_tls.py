"""The TLS of a worker's ports, whose files may be replaced while it runs.

A handshake takes the context that counts when it begins; connections that are open keep theirs. Files are read first
and used then, so that those that cannot be read, or do not belong together, change nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable


class ServerTls:
    """TLS of ports. ``make`` reads the files, and raises an error if they cannot be used."""

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self._make = make
        self.context = make()
        """Context for new connections."""
        self._read: ssl.SSLContext | None = None

    def read_files(self) -> None:
        """Read the files as they are now; nothing uses them before :meth:`use_files`."""
        self._read = None
        self._read = self._make()

    def use_files(self) -> None:
        """Use the files that were read last for new connections."""
        if self._read is not None:
            self.context, self._read = self._read, None
