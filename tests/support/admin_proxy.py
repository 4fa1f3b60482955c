"""A proxy before a broker's admin API that refuses requests as a rate limit does."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

HOP_BY_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length", "host", "date", "server"})


@dataclass
class AdminProxy:
    """Proxy that passes requests on to ``port``, except those that it refuses."""

    port: int
    refuses: Mapping[str, str] | None = None
    """Headers of its refusals; None while it passes every request on."""
    status: int = http.client.TOO_MANY_REQUESTS
    refused_at: list[float] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def refusing(self, status: int, **headers: str) -> Iterator[None]:
        """Refuse every request until the end of the block."""
        self.status, self.refused_at = status, []
        self.refuses = headers
        try:
            yield
        finally:
            self.refuses = None


@contextmanager
def admin_proxy(port: int) -> Iterator[AdminProxy]:
    """Yield a proxy on a port of its own."""
    proxy = AdminProxy(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            refuses = proxy.refuses
            if refuses is not None:
                proxy.refused_at.append(time.monotonic())
                self.answer(proxy.status, refuses, b"")
                return
            behind = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
            try:
                kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                behind.request(self.command, self.path, body or None, kept)
                answer = behind.getresponse()
                said = answer.read()
                self.answer(answer.status, dict(answer.getheaders()), said)
            except OSError:
                self.answer(http.client.BAD_GATEWAY, {}, b"")
            finally:
                behind.close()

        def answer(self, status: int, headers: Mapping[str, str], said: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            if status != http.client.NO_CONTENT:
                self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = do_POST = do_DELETE = do  # noqa: N815 - as the library calls them

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Keep the log out of the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
