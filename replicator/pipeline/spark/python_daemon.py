"""Starter of Python processes for the tasks of a local master. It is ``pyspark.daemon`` with one difference.

If Spark needs no more rows, as for ``limit`` and ``show``, it closes the connection, and the process of PySpark ends
with a traceback on the user's terminal. This one ends without.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run :func:`pyspark.daemon.worker`. A connection that Spark closed ends it with status 1."""
    try:
        return int(_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


def main() -> None:
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
