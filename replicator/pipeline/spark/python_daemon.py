"""Starts Python processes for the tasks of a local master, as ``pyspark.daemon`` does, whose work it leaves as it is.

One thing differs: where Spark needs no more rows, as for ``limit`` and ``show``, it closes the connection, and the
process of PySpark ends with a traceback on the user's terminal. Here it ends without.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As :func:`pyspark.daemon.worker`; a connection that Spark closed is an end like others, of status 1."""
    try:
        return int(_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


def main() -> None:
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
