"""HTTP requests that no worker can read, each with a secret in it."""

from __future__ import annotations

import contextlib
import socket

HEAD = b"GET /admin/v2/tenants HTTP/1.1\r\nHost: localhost\r\n"
PRODUCE = b"POST /topics/persistent/public/default/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %(good)s\r\n"
MALFORMED: dict[str, bytes] = {
    "a carriage return": HEAD + b"Authorization: Bearer %(token)s\r\r\n\r\n",
    "NUL": HEAD + b"Authorization: Bearer %(token)s\0\r\n\r\n",
    "a control character": HEAD + b"Authorization: Bearer %(token)s\x01\r\n\r\n",
    "a space before the colon": HEAD + b"Authorization : Bearer %(token)s\r\n\r\n",
    "a header that is too long": HEAD + b"Authorization: Bearer %(long)s\r\n\r\n",
    "a length that is no number": HEAD + b"Content-Length: %(token)s\r\n\r\n",
    "an expectation": HEAD + b"Expect: %(token)s\r\n\r\n",
    "two hosts": HEAD + b"Host: %(token)s\r\n\r\n",
    "a header without a name": HEAD + b": %(token)s\r\n\r\n",
    "a control character in the target": b"GET /?token=%(token)s\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes in the target": b"GET /ws/v2/x?token=%(token)s\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a wrong host in the target": b"GET http://[x/?token=%(token)s HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a wrong port in the target": b"GET http://a:b/?token=%(token)s HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a relative target": b"GET x?token=%(token)s HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target that is too long": b"GET /?token=%(long)s HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another method": b"%(token)s / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another version": b"GET /%(token)s HTTP/9.9%(token)s\r\nHost: localhost\r\n\r\n",
    "a body that is not in chunks": PRODUCE + b"Transfer-Encoding: chunked\r\n\r\n%(token)s\r\n\r\n",
    "a chunk that is too long": PRODUCE + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"%(token)s\r\n0\r\n\r\n",
    "garbage behind an upgrade": HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n%(token)s\0\r\n\r\n",
}  # fmt: skip


def answer_to(port: int, request: bytes) -> bytes:
    """Return all that a worker answers until it ends the connection, or says nothing more for a while."""
    answered = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while piece := connection.recv(65536):
                answered += piece
                connection.settimeout(0.5)
    return answered
