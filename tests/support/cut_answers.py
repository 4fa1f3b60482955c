"""A server whose answers end early, as those of a worker that is killed in the middle of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HEAD: Final = "HTTP/1.1 {status} Some reason\r\nContent-Type: application/json\r\n"
CUTS: Final = ("a length", "chunks", "a chunk")
"""How the end of a body is announced: by a length, by a last chunk that does not come, or by the length of a chunk."""


def cut(body: bytes, how: str, status: int = 200) -> bytes:
    """Return an HTTP answer that has the whole ``body`` but announces more, so only the announcement tells that it is
    cut."""
    head = HEAD.format(status=status).encode()
    if how == "a length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body) + 100, body)
    announced = len(body) + (100 if how == "a chunk" else 0)
    return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b" % (announced, body) + b"\r\n" * (how == "chunks")


def whole(body: bytes, status: int = 200) -> bytes:
    """Return an HTTP answer with ``body`` that is not cut."""
    return HEAD.format(status=status).encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server that sends ``answer`` to any request, and closes the connection; yield its URL."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                asked = b""
                while b"\r\n\r\n" not in asked and (piece := connection.recv(65_536)):
                    asked += piece
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
