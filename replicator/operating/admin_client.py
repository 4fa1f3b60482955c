"""A client of a worker's admin paths, for the command line: one request, one answer or one error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import aiohttp

from replicator.engine.topic_name import check_subscription_name, check_tenant, parse_namespace, parse_topic
from replicator.operating.errors import AdminError, InvalidAddress, RequestRefused, WorkerUnavailable
from replicator.running.connecting import why_no_answer
from replicator.security.asking import worker_session

if TYPE_CHECKING:
    from replicator.topology import Topology

ANSWER_SECONDS_MAX: Final = 60.0
"""Time limit of an answer. Deleting a large topic, or making thousands of partitions, takes seconds."""
ERROR_CHARS_MAX: Final = 8_000
"""Characters of a reason that are shown. The text of a gap has whole commands, and names the topic in each."""
UNAVAILABLE_STATUS_MIN: Final = 500
NOT_IMPLEMENTED: Final = 501


def worker_url(
    url: str | None, topology_file: Path | None, cluster: str | None, load: Callable[[Path], Topology]
) -> str:
    """Return the address of the worker to ask: ``--url``, or from the topology that of ``--cluster`` or of its only
    cluster; ``load`` reads the file. Raise :class:`InvalidAddress` or :class:`TopologyError`.
    """
    if url is not None:
        if topology_file is not None or cluster is not None:
            raise InvalidAddress("give --url, or -f FILE with --cluster NAME, not both")
        try:
            parts = urlsplit(url)
            valid = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            valid = False
        if not valid:
            raise InvalidAddress(f"--url: {url[:80]!r} is not http://HOST:PORT")
        return url.rstrip("/")
    if topology_file is None:
        raise InvalidAddress("which worker? give --url http://HOST:PORT, or -f FILE with --cluster NAME")
    topology = load(topology_file)
    if cluster is None and len(topology.clusters) > 1:
        raise InvalidAddress(f"which cluster? give --cluster NAME; {topology_file} has {', '.join(topology.names)}")
    return topology.cluster(cluster or topology.names[0]).url


def topic_path(topic: str, *parts: str) -> str:
    """Return the path of a topic, from any form of its name; raise :class:`InvalidTopicName`."""
    name = parse_topic(topic)
    return _path("persistent", name.tenant, name.namespace, name.local, *parts)


def subscription_path(topic: str, subscription: str, *parts: str) -> str:
    """Return the path of a subscription. Raise :class:`InvalidTopicName` or :class:`InvalidSubscriptionName`."""
    return topic_path(topic, "subscription", check_subscription_name(subscription), *parts)


def namespace_path(namespace: str, *parts: str) -> str:
    """Return the path of a namespace. Raise :class:`InvalidTopicName`."""
    return _path("namespaces", *parse_namespace(namespace).split("/"), *parts)


def topics_path(namespace: str, *parts: str) -> str:
    """Return the path that lists the topics of a namespace; raise :class:`InvalidTopicName`."""
    return _path("persistent", *parse_namespace(namespace).split("/"), *parts)


def tenant_path(tenant: str) -> str:
    """Return the path of a tenant. Raise :class:`InvalidTopicName`."""
    return _path("tenants", check_tenant(tenant))


def namespaces_path(tenant: str) -> str:
    """Return the path that lists the namespaces of a tenant; raise :class:`InvalidTopicName`."""
    return _path("namespaces", check_tenant(tenant))


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


class AdminClient:
    """Asks one worker. Use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AdminClient:
        self._session = worker_session(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Send a request; return the JSON of the answer, or None if it is empty. Raise :class:`RequestRefused` or
        :class:`WorkerUnavailable`.
        """
        _, content = await self._answer(method, path, body, parameters)
        return self._decoded(content) if content else None

    async def call_replication(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Send a request to a path under ``/replication/v1``, and return the JSON of the answer. Raise as :meth:`call`
        does.
        """
        _, content = await self._answer(method, path, body, parameters, root="replication/v1")
        return self._decoded(content)

    def _decoded(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise WorkerUnavailable(
                f"the answer from {self._url} is not JSON, so it is not a worker's: correct the address"
            ) from None

    async def linked(self) -> tuple[str, frozenset[str]] | None:
        """Return the worker's cluster, and those that its links lead to; None if it does not say."""
        assert self._session is not None
        try:
            async with self._session.get(f"{self._url}/replication/v1/status") as response:
                status = json.loads(await response.read())
            return str(status["cluster"]), frozenset(str(link["to"]) for link in status["links"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return None

    async def message(self, path: str) -> tuple[Mapping[str, str], bytes]:
        """Return a single message: its headers and payload. Raise as :meth:`call` does."""
        return await self._answer("GET", path, None, {})

    async def _answer(
        self, method: str, path: str, body: Any, parameters: Mapping[str, str], *, root: str = "admin/v2"
    ) -> tuple[Mapping[str, str], bytes]:
        assert self._session is not None
        url = f"{self._url}/{root}/{path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, url, data=data, params=parameters, headers=headers) as response:
                content = await response.read()
                if response.status >= 400:
                    raise _error(response.status, content, self._url)
                return response.headers, content
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise WorkerUnavailable(f"{self._url}: the worker does not answer: {why_no_answer(error)}") from None


def _error(status: int, content: bytes, url: str) -> AdminError:
    try:
        answer = json.loads(content)
        code, reason = str(answer["error"]), str(answer["reason"] if "reason" in answer else answer["message"])
    except (ValueError, KeyError, TypeError):
        return WorkerUnavailable(f"{url}: HTTP status {status} without a reason: is this a worker?")
    if code == "NotFound":  # the path; what is not there has a code of its own
        return InvalidAddress(f"{url} has no such path; give the worker's http://HOST:PORT alone")
    reason = " ".join(reason.split())[:ERROR_CHARS_MAX]
    if status >= UNAVAILABLE_STATUS_MIN and status != NOT_IMPLEMENTED:
        return WorkerUnavailable(f"{url}: {reason}")
    return RequestRefused(status, code, reason)
