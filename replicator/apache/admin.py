"""The admin REST API of Apache Pulsar's brokers, as far as the bridge asks it.

``docs/pulsar-fidelity.md`` lists each request with what is relied on in its answer. Requests are bounded in number and
time. Where the brokers limit them they wait (:mod:`replicator.apache.rate_limiter`); else they are not tried again
here: whoever asks does so periodically.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import aiohttp

from replicator.apache.credentials import BASIC, TOKEN, TlsFiles, showing_of
from replicator.apache.entry_limits import EntryLimits
from replicator.apache.errors import AdminFailed, AdminLimited
from replicator.apache.names import RESERVED
from replicator.apache.rate_limiter import REQUESTS_AT_ONCE_MAX, RateLimiter, is_rate_limited, retry_after
from replicator.apache.shown import ConsumersShown, EntryProperties, SubscriptionShown, TopicInternals, internals_of
from replicator.client.authentication import AuthenticationTLS
from replicator.client.closing import ClosedAtExit
from replicator.client.errors import AuthenticationError
from replicator.engine.topic_name import parse_topic
from replicator.running.connecting import ENDED_EARLY, is_cut_off
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

REQUEST_SECONDS_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer that is read. The statistics of a topic with a thousand subscriptions have about 1 MB."""
REASON_CHARS_MAX: Final = 300
HIDDEN_AT_ONCE: Final = 4
"""Most entries of a topic that are looked at at the same time."""
REDIRECTS_MAX: Final = 5
"""Most redirects that are followed for one request. A broker redirects to the broker that has the topic."""
_REDIRECTS: Final = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_JSON: Final = {"Content-Type": "application/json", "Accept": "application/json"}


class _Unreachable(Exception):
    """Error before any request was sent: the host could not be reached."""


class _NoResponse(Exception):
    """Error after a host took a request: it did not answer."""


class _Answer(NamedTuple):
    headers: Mapping[str, str]
    said: bytes


class BrokerAdmin(ClosedAtExit):
    """Client of the admin API at ``settings.admin_url``. It asks whichever host answers.

    Use it on one event loop, and close it."""

    def __init__(self, settings: ApacheSettings) -> None:
        """Read the files that ``settings`` names. Raises :class:`AdminFailed` if one cannot be used."""
        self._urls = settings.admin_urls
        self._asked = 0
        """Number of the host that answered last."""
        showing = showing_of(settings)
        self._shown = showing.authentication
        self._tls = TlsFiles(showing) if settings.admin_url.startswith("https") else None
        self._turns = RateLimiter()
        try:
            self._headers()
            self._context()
        except AuthenticationError as error:
            raise AdminFailed(str(error)) from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=REQUESTS_AT_ONCE_MAX),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX),
        )

    async def close(self) -> None:
        await self._session.close()

    def limited(self) -> str:
        """Return for how long the brokers still limit the worker's requests, as a sentence; empty if they do not limit
        them."""
        return self._turns.status()

    @property
    def refusals(self) -> int:
        """Return how many answers told the worker to wait."""
        return self._turns.refusals

    # Namespaces and topics.

    async def tenants(self) -> list[str]:
        return [str(tenant) for tenant in await self._ask("GET", "tenants")]

    async def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, each as ``tenant/namespace``."""
        return [str(namespace) for namespace in await self._ask("GET", f"namespaces/{quote(tenant, safe='')}")]

    async def replication_clusters(self, namespace: str) -> list[str]:
        """Return the clusters among which the brokers replicate a namespace themselves, their own among them."""
        return [str(name) for name in await self._ask("GET", f"namespaces/{quote(namespace)}/replication") or ()]

    async def topics(self, namespace: str) -> list[str]:
        """Return the persistent topics with a log in a namespace: partitions, and topics that have none."""
        found = await self._ask("GET", f"persistent/{quote(namespace)}")
        return [str(name) for name in found if str(name).startswith("persistent://")]

    async def partitioned_topics(self, namespace: str) -> list[str]:
        return [str(name) for name in await self._ask("GET", f"persistent/{quote(namespace)}/partitioned")]

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of ``topic``; 0 if it is not partitioned, or does not exist."""
        try:
            answer = await self._ask("GET", f"{_path(topic)}/partitions")
        except AdminFailed as error:
            if error.status == 404:
                return 0
            raise
        return int(answer["partitions"])

    async def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, unless it exists."""
        await self._make(f"{_path(topic)}/partitions", partitions)

    async def grow_partitioned(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions. The new partitions get the topic's subscriptions.

        Brokers refuse this while somebody else does the same; ask :meth:`partitions` then."""
        await self._make(f"{_path(topic)}/partitions", partitions, method="POST")

    async def create_topic(self, topic: str) -> None:
        """Create a topic without partitions, unless it exists."""
        await self._make(_path(topic))

    async def delete_topic(self, topic: str) -> bool:
        """Delete a topic without partitions, even with clients connected. Return False if it does not exist."""
        try:
            await self._ask("DELETE", f"{_path(topic)}?force=true")
        except AdminFailed as error:
            if error.status == 404:
                return False
            raise
        return True

    # One topic.

    async def internals(self, topic: str) -> TopicInternals:
        answer = await self._ask("GET", f"{_path(topic)}/internalStats")
        return internals_of(topic, answer)

    async def limits(self, topic: str) -> EntryLimits:
        """Return the limits that policies set to one entry of ``topic``, as far as the brokers show them."""
        size, delayed = await asyncio.gather(
            self._policy(f"{_path(topic)}/maxMessageSize"), self._policy(f"{_path(topic)}/delayedDelivery?applied=true")
        )
        shown = delayed if isinstance(delayed, dict) and delayed.get("active") else {}
        delay_ms = shown.get("maxDeliveryDelayInMillis")
        return EntryLimits(size if isinstance(size, int) else 0, delay_ms if isinstance(delay_ms, int) else 0)

    async def _policy(self, path: str) -> Any:
        """Return a policy; None if it is not set, or the brokers do not know or show it."""
        try:
            return await self._ask("GET", path)
        except AdminFailed as error:
            if not (error.is_refusal and HTTPStatus.BAD_REQUEST <= error.status < HTTPStatus.INTERNAL_SERVER_ERROR):
                raise
            return None

    async def all_hidden(self, topic: str, after: Position, upto: Position) -> bool:
        """Return whether brokers hide from all consumers all entries in (``after``, ``upto``], which is in one ledger.

        The entries are looked at a few at a time, up to the first that is shown."""
        entries = range(after.entry + 1, upto.entry + 1)

        async def hidden(entry: int) -> bool:
            headers = await self._headers_of(f"{_path(topic)}/ledger/{upto.ledger}/entry/{entry}")
            return "X-Pulsar-marker-type" in headers or headers.get("X-Pulsar-txn-aborted") == "true"

        for at in range(0, len(entries), HIDDEN_AT_ONCE):
            if not all(await asyncio.gather(*map(hidden, entries[at : at + HIDDEN_AT_ONCE]))):
                return False
        return True

    async def seen_entry(self, topic: str, at: Position) -> EntryProperties | None:
        """Return what the brokers show of an entry; None if they show the worker no entries."""
        try:
            headers = await self._headers_of(f"{_path(topic)}/ledger/{at.ledger}/entry/{at.entry}")
        except AdminFailed as error:
            if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED):
                return None
            raise
        return EntryProperties(
            bool(headers), headers.get("X-Pulsar-publish-time", ""), headers.get("X-Pulsar-sequence-id", "")
        )

    async def subscription(self, topic: str, name: str) -> SubscriptionShown | None:
        """Return the type and properties of a subscription, as the brokers show them; None if there is no such
        subscription."""
        return (await self.subscriptions(topic)).get(name)

    async def subscriptions(self, topic: str) -> dict[str, SubscriptionShown]:
        """Return the type and properties of each subscription, as the brokers show them, by name."""
        answer = await self._ask("GET", f"{_path(topic)}/stats?subscriptionBacklogSize=false")
        return {
            name: SubscriptionShown(str(shown.get("type") or ""), dict(shown.get("subscriptionProperties") or {}))
            for name, shown in answer.get("subscriptions", {}).items()
        }

    async def producers(self, topic: str) -> list[str]:
        """Return the names of the connected producers."""
        answer = await self._ask("GET", f"{_path(topic)}/stats?subscriptionBacklogSize=false")
        return [str(each.get("producerName")) for each in answer.get("publishers", ())]

    async def consumers(self, topic: str) -> dict[str, int]:
        """Return, by subscription, how many consumers of applications are connected to ``topic``.

        The worker's own consumers do not count. Raises :class:`AdminFailed` if the brokers do not answer, or refuse.
        """
        answer = await self._ask("GET", f"{_path(topic)}/stats?subscriptionBacklogSize=false")
        return {
            name: sum(not str(each.get("consumerName")).startswith(RESERVED) for each in shown.get("consumers") or ())
            for name, shown in answer.get("subscriptions", {}).items()
        }

    async def unacknowledged(self, topic: str) -> dict[str, ConsumersShown]:
        """Return, by subscription, how many messages its consumers received and did not acknowledge.

        Subscriptions without consumers are left out.
        """
        answer = await self._ask("GET", f"{_path(topic)}/stats?subscriptionBacklogSize=false")
        return {
            name: ConsumersShown(int(shown.get("unackedMessages", 0)), int(shown.get("msgBacklog", 0)))
            for name, shown in answer.get("subscriptions", {}).items()
            if shown.get("consumers")
        }

    async def durable_subscriptions(self, topic: str) -> list[str]:
        """Return the names of the durable subscriptions. A reader's subscription is not durable."""
        answer = await self._ask("GET", f"{_path(topic)}/stats?subscriptionBacklogSize=false")
        return [name for name, shown in answer.get("subscriptions", {}).items() if shown.get("isDurable", True)]

    async def unload(self, topic: str) -> None:
        """Have its broker unload ``topic``, which disconnects all clients. Return when that is done.

        The next client that looks the topic up has it loaded again."""
        await self._ask("PUT", f"{_path(topic)}/unload")

    async def create_subscription(
        self, topic: str, subscription: str, first: Position | None, properties: Mapping[str, str] | None = None
    ) -> bool:
        """Create a subscription whose first message is the entry at ``first``; with None, the first entry of the topic.

        Return whether it was created. A subscription of that name that exists stays unchanged.
        """
        body = _place(Position(-1, -1) if first is None else first)
        if properties:
            body["properties"] = dict(properties)
        return await self._make(f"{_path(topic)}/subscription/{_subscription_in_path(subscription)}", body)

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> bool:
        """Replace the properties of a subscription, and return whether the brokers can do that."""
        path = f"{_path(topic)}/subscription/{_subscription_in_path(subscription)}/properties"
        try:
            await self._ask("PUT", path, dict(properties))
        except AdminFailed as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
                raise
            return False
        return True

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        try:
            await self._ask("DELETE", f"{_path(topic)}/subscription/{_subscription_in_path(subscription)}")
        except AdminFailed as error:
            if error.status != 404:
                raise

    async def reset_subscription(self, topic: str, subscription: str, first: Position) -> None:
        """Move the cursor of a subscription so that the entry at ``first`` comes next."""
        path = f"{_path(topic)}/subscription/{_subscription_in_path(subscription)}/resetcursor"
        await self._ask("POST", path, _place(first))

    async def expire_through(self, topic: str, subscription: str, last: Position) -> bool:
        """Ask the broker to count all entries up to ``last`` as acknowledged. Return whether it accepts that.

        It does so soon afterwards. It needs no consumer, and never moves the cursor back."""
        path = f"{_path(topic)}/subscription/{_subscription_in_path(subscription)}/expireMessages"
        try:
            await self._ask("POST", path, _place(last) | {"partitionIndex": _partition_index(topic)})
        except AdminFailed as error:
            if error.status != 409:  # another one is under way, or there is nothing up to there
                raise
            return False
        return True

    # Inside.

    async def _headers_of(self, path: str) -> Mapping[str, str]:
        """Return the headers of the brokers' answer; empty if nothing exists at ``path``."""
        try:
            return (await self._request("GET", path, None)).headers
        except AdminFailed as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return {}
            raise

    async def _make(self, path: str, body: Any = None, *, method: str = "PUT") -> bool:
        """Send a request that creates something. Return True if the brokers created it, False if it exists (status
        409).

        Raises :class:`AdminFailed` for every other failure.
        """
        try:
            await self._ask(method, path, body)
        except AdminFailed as error:
            if error.status != 409:
                raise
            return False
        return True

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        said = (await self._request(method, path, body)).said
        try:
            return json.loads(said) if said else None
        except ValueError:
            raise AdminFailed(
                f"{method} /admin/v2/{path}: the answer is no JSON; see that `admin_url` leads to a Pulsar broker, "
                "and not to a proxy that answers by itself"
            ) from None

    async def _request(self, method: str, path: str, body: Any) -> _Answer:
        return await self._turns.take(lambda: self._send(method, path, body))

    async def _send(self, method: str, path: str, body: Any) -> _Answer:
        """Send a request to the host that answered last. If it cannot be reached, try the others in turn.

        If a host took the request and fails, later requests go to the next host. Nobody knows what this request did,
        so the caller must repeat it."""
        errors: list[str] = []
        first, count = self._asked, len(self._urls)
        for number in range(first, first + count):
            try:
                answer = await self._send_to(self._urls[number % count], method, path, body)
            except _Unreachable as error:
                errors.append(str(error))
            except _NoResponse as error:
                self._asked = (number + 1) % count
                raise AdminFailed(str(error)) from None
            else:
                self._asked = number % count
                return answer
        raise AdminFailed("; ".join(errors))

    async def _send_to(self, base: str, method: str, path: str, body: Any) -> _Answer:
        """Send a request, and follow redirects with the same credentials, which an HTTP client would drop."""
        url = f"{base}/admin/v2/{path}"
        request = f"{method} {url}"
        for sent_on in range(REDIRECTS_MAX + 1):
            sent = f"{request} (sent on to {url})" if sent_on else request
            # Another host would send on to the same one.
            over: type[Exception] = AdminFailed if sent_on else _NoResponse
            try:
                async with self._session.request(
                    method,
                    url,
                    data=None if body is None else json.dumps(body),
                    headers={**_JSON, **self._headers()},
                    ssl=self._context(),
                    allow_redirects=False,
                ) as response:
                    if response.status not in _REDIRECTS:
                        return await self._answer(request, response)
                    sent_to = urljoin(url, response.headers.get("Location", ""))
            except AuthenticationError as error:
                raise AdminFailed(f"{request}: {error}") from None
            except TimeoutError:
                raise over(
                    f"{sent}: no answer within {REQUEST_SECONDS_MAX:g} s; see that this broker runs and is not "
                    "overloaded"
                ) from None
            except aiohttp.ClientError as error:
                reason = ENDED_EARLY if is_cut_off(error) else error or type(error).__name__
                text = f"{sent}: {reason}{self._refused_by_tls(error)}"
                if isinstance(error, aiohttp.ClientConnectorError) and not sent_on:
                    raise _Unreachable(text) from None
                raise over(text) from None
            if urlsplit(sent_to).scheme != urlsplit(url).scheme:
                raise AdminFailed(
                    f"{request}: the broker redirects it to {sent_to}, which is not asked, because it has another "
                    "scheme (http or https). Set `admin_url` to the address to which the brokers redirect"
                )
            url = sent_to
        raise AdminFailed(
            f"{request}: it was redirected {REDIRECTS_MAX} times, last to {url}; see that the brokers' own addresses "
            "(webServiceUrl) do not lead in a circle"
        )

    async def _answer(self, request: str, response: aiohttp.ClientResponse) -> _Answer:
        said = await response.content.read(ANSWER_BYTES_MAX + 1)
        while len(said) <= ANSWER_BYTES_MAX and (more := await response.content.read(ANSWER_BYTES_MAX)):
            said += more
        if len(said) > ANSWER_BYTES_MAX:
            raise AdminFailed(
                f"{request}: the answer has more than {ANSWER_BYTES_MAX} bytes, more than the bridge reads; see that "
                "`admin_url` leads to a Pulsar broker"
            )
        status = response.status
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return _Answer(dict(response.headers), said)
        text = f"{request}: {status} {_reason(said, response.reason)}"
        said_seconds = retry_after(response.headers)
        if is_rate_limited(status, said_seconds):
            raise AdminLimited(text, status, said_seconds)
        if status == HTTPStatus.UNAUTHORIZED:
            text += f" ({self._named('the brokers refuse what the worker shows')})"
        raise AdminFailed(text, status)

    def _headers(self) -> dict[str, str]:
        """Return the headers with the worker's credentials."""
        if self._shown.method == TOKEN:
            return {"Authorization": f"Bearer {self._shown.credentials().decode()}"}
        if self._shown.method == BASIC:
            return {"Authorization": f"Basic {base64.b64encode(self._shown.credentials()).decode()}"}
        return {}

    def _context(self) -> ssl.SSLContext | bool:
        return True if self._tls is None else self._tls.context()

    def _refused_by_tls(self, error: aiohttp.ClientError) -> str:
        """Return a hint if the broker may not trust the worker's certificate: then it just ends the connection."""
        there = isinstance(error, aiohttp.ClientSSLError) or not isinstance(error, aiohttp.ClientConnectorError)
        if there and isinstance(self._shown, AuthenticationTLS):
            return f" ({self._named('the brokers may refuse what the worker shows')})"
        return ""

    def _named(self, what: str) -> str:
        return f"{what}: {self._shown.source or 'nothing, as `apache.auth` is not set'}"


def _subscription_in_path(name: str) -> str:
    """Return the name of a subscription as brokers read it in a path: decoded as a path, and then as a form."""
    return quote(name.replace("%", "%25").replace("+", "%2B"), safe="")


def _place(first: Position) -> dict[str, Any]:
    return {"ledgerId": first.ledger, "entryId": first.entry, "partitionIndex": -1, "isExcluded": False}


def _partition_index(topic: str) -> int:
    """Return the index in a partition's name, as brokers read it; -1 for other topics, such as ``t-partition-01``."""
    name = parse_topic(topic)
    return name.partition if name.local.endswith(f"-{name.partition}") else -1


def _reason(said: bytes, status_text: str | None) -> str:
    """Return the reason that an answer gives. Brokers call it ``reason``, and proxies ``message``.

    For an HTML page, return the text of its status."""
    text = said[:REASON_CHARS_MAX].decode(errors="replace").strip()
    try:
        answer = json.loads(said)
        text = str(answer.get("reason") or answer.get("message") or "")[:REASON_CHARS_MAX]
    except (ValueError, AttributeError):
        pass
    return status_text or "" if not text or text.startswith("<") else text


@lru_cache(maxsize=4096)
def _path(topic: str) -> str:
    name = parse_topic(topic)
    return f"persistent/{quote(name.full_namespace)}/{quote(str(topic).rpartition('/')[2], safe='')}"
