"""Client of the Kubernetes API server for the tests' node: makes calls, and keeps copies of objects up to date."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import Any, Final

import aiohttp
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

Object = dict[str, Any]
KINDS: Final = {
    "pods": "/api/v1/pods",
    "services": "/api/v1/services",
    "slices": "/apis/discovery.k8s.io/v1/endpointslices",
    "configmaps": "/api/v1/configmaps",
    "secrets": "/api/v1/secrets",
}
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of a line with one object in JSON. Objects have 1.5 MiB at most, as JSON somewhat more."""
MERGE_LISTS: Final = "application/strategic-merge-patch+json"


def session(url: str, token: str, authority: str) -> aiohttp.ClientSession:
    """Return an HTTP session with the API server at ``url``; ``authority`` is the file of its certificate authority."""
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=authority), limit=0)
    shown = {"Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(url, connector=connector, headers=shown, read_bufsize=LINE_BYTES_MAX)


class Refused(Exception):
    """The API server refused a call; ``status`` is HTTP's. ``of_another``: another object has the name by now."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status, self.of_another = status, "metadata.uid" in text or "UID in precondition" in text


def _passes(error: BaseException) -> bool:
    """Return whether to repeat a call that failed with ``error``: the server was busy, or another change was sooner."""
    refused = isinstance(error, Refused) and error.status in (409, 429, 500, 503, 504) and not error.of_another
    return refused or isinstance(error, aiohttp.ClientError | TimeoutError)


class Api:
    """Client of the API server that keeps ``objects`` up to date, by kind, and by namespace and name.

    ``changed`` is set when one of them changes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.objects: dict[str, dict[tuple[str, str], Object]] = {kind: {} for kind in KINDS}
        self.changed = asyncio.Event()
        self._watching = [asyncio.create_task(self._watch(kind)) for kind in KINDS]

    @retry(retry=retry_if_exception(_passes), stop=stop_after_delay(60), wait=wait_fixed(0.1), reraise=True)
    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Call the API server, again for up to 60 s if it is busy; return its JSON answer. Raise :class:`Refused`.

        ``kind`` is the content type of ``body``.
        """
        payload: Object = {"data": json.dumps(body), "headers": {"Content-Type": kind}} if body is not None else {}
        async with self._session.request(method, path, **payload) as response:
            if response.status >= 400:
                raise Refused(response.status, await response.text())
            return await response.json()

    async def _watch(self, kind: str) -> None:
        while True:
            with contextlib.suppress(Refused, aiohttp.ClientError, TimeoutError, ValueError):  # a line that was cut
                listed = await self.call("GET", KINDS[kind])
                self.objects[kind] = {_key(each): each for each in listed["items"]}
                self.changed.set()
                await self._follow(kind, listed["metadata"]["resourceVersion"])
            await asyncio.sleep(0.5)  # the server is starting or ending; the list says what was missed

    async def _follow(self, kind: str, version: str) -> None:
        asked = {"watch": "1", "resourceVersion": version}
        async with self._session.get(KINDS[kind], params=asked, timeout=aiohttp.ClientTimeout(total=None)) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    self.objects[kind].pop(_key(event["object"]), None)
                else:
                    self.objects[kind][_key(event["object"])] = event["object"]
                self.changed.set()


def _key(thing: Object) -> tuple[str, str]:
    return thing["metadata"]["namespace"], thing["metadata"]["name"]
