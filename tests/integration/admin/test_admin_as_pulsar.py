"""The admin paths beside a real Pulsar 4.0.0 broker: the same requests, in the same order, and what that one answered.

``answers/admin_pulsar_4_0_0.json`` has the broker's answers: the status, and of a body the names of its fields and
their types. Ours have the same status and at least these fields. Where we answer otherwise on purpose, the request is
in :data:`DIFFERENCES` with the reason; docs/admin.md tells users. ``do`` is what a client does in between.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from served_worker import Answer, ServedWorker, served_worker

pulsar = pytest.importorskip("pulsar")

ANSWERS: Final = json.loads((Path(__file__).parent / "answers" / "admin_pulsar_4_0_0.json").read_text())
NAMESPACE: Final = "persistent://sales/eu/"

TOPOLOGY: Final = "clusters are those of the topology file"
BY_USE: Final = "namespaces and tenants are made by the first topic that names them"
NO_PROPERTIES: Final = "topics and namespaces have no properties"
NO_SUCH_POLICY: Final = "a policy that this version does not have is refused, never ignored"
VERSIONS: Final = "a schema's version follows from its content (ADR 40), and does not count from 0"
NOT_500: Final = "a mistake of the request, and none of the server"
ACME: Final = "namespaces/acme/orders"
EU: Final = "persistent/sales/eu"

DIFFERENCES: Final[dict[str, tuple[int, str]]] = {
    "PUT clusters/": (501, TOPOLOGY),
    "GET clusters/eu-west": (404, TOPOLOGY),
    "POST clusters/eu-west": (404, TOPOLOGY),
    "DELETE clusters/eu-west": (404, TOPOLOGY),
    'PUT tenants/acme3 {"adminRoles":[],"allowedClusters":[]}': (
        204,
        "the clusters of a tenant are those of the topology",
    ),
    "PUT namespaces/nix/orders": (204, BY_USE),
    f"PUT {ACME}/0x00000000_0xffffffff/unload": (204, "a namespace is one bundle"),
    f"PUT {ACME}/propert": (501, NO_PROPERTIES),
    f"GET {ACME}/property/": (501, NO_PROPERTIES),
    f"DELETE {ACME}/property/": (501, NO_PROPERTIES),
    f"GET {ACME}/persistence": (204, "one copy is what there is; nothing is kept of it"),
    f"GET {ACME}/publishRate": (204, NO_SUCH_POLICY),
    f"GET {ACME}/inactiveTopicPolicies": (204, NO_SUCH_POLICY),
    f"POST {ACME}/publishRate": (501, NO_SUCH_POLICY),
    f"POST {ACME}/inactiveTopicPolicies": (501, NO_SUCH_POLICY),
    f"GET {ACME}/nosuchpolicy": (404, "it is the path that there is not"),
    f"POST {ACME}/nosuchpolicy": (404, "it is the path that there is not"),
    f'POST {ACME}/retention {{"retentionTimeInMinutes":-5': (412, "as other numbers that are too small"),
    f'POST {ACME}/backlogQuota?backlogQuotaType=message_age {{"limit"': (400, "a policy that there is not is refused"),
    "PUT persistent/sales/nix/": (204, BY_USE),
    "PUT persistent/nix/nix/": (204, BY_USE),
    f"PUT {EU}/withprops": (501, NO_PROPERTIES),
    f"PUT {EU}/plain-partition-0": (204, "links bring such topics too; a partitioned topic adopts them"),
    f'PUT {EU}/parted2/partitions {{"partitions"': (501, NO_PROPERTIES),
    f"PUT {EU}/plain/properties": (501, NO_PROPERTIES),
    f"GET {EU}/plain/subscription/s2/position/0": (400, NOT_500),
    f"GET {EU}/plain/examinemessage?initialPosition=latest&messagePosition=999": (412, NOT_500),
    f"GET {EU}/plain/ledger/x": (400, "the number is refused, not the path"),
    f"POST {EU}/plain/subscription/s2/skip/x": (400, "the number is refused, not the path"),
    f"POST {EU}/parted/subscription/s1/resetcursor {{": (
        204,
        "the earliest and the latest mean the same in all partitions",
    ),
    f"PUT {EU}/plain/offload": (501, "there is no offloading"),
    "GET /lookup/v2/destination/": (200, "older clients ask so"),
    "GET /lookup/v2/topic/persistent/sales/nix/": (200, BY_USE),
    "GET /lookup/v2/topic/persistent/nix/nix/": (200, BY_USE),
    "GET /lookup/v2/topic/non-persistent/": (412, "topics are persistent"),
    "GET /lookup/v2/topic/nix/": (412, NOT_500),
    "GET /lookup/v2/topic/persistent/sales/eu/lk?listenerName": (501, NOT_500),
    f"GET {EU}/tp/replication?applied": (204, "which clusters get a topic says its namespace"),
    f"POST {EU}/tp/replication": (501, "which clusters get a topic says its namespace"),
    f"POST {EU}/tp/dispatchRate": (501, NO_SUCH_POLICY),
    f'PUT {ACME}/schemaCompatibilityStrategy "NIX"': (400, "a strategy that there is not is refused"),
    'POST schemas/sales/eu/sc/schema {"type":"NIX"': (400, NOT_500),
    "GET schemas/sales/eu/sc/schema/0": (404, VERSIONS),
    "GET schemas/sales/eu/sc/schema/1": (404, VERSIONS),
    'POST schemas/sales/eu/sc/compatibility {"type":"AVRO","schema":"{\\"type\\":\\"record\\",\\"name\\":\\"A\\",'
    '\\"fields\\":[{\\"name\\":\\"x\\",\\"type\\":\\"string\\"}]': (202, "the answer is no; it is no failure"),
    "POST schemas/sales/nix/": (200, BY_USE),
    "GET schemas/sales/nix/": (200, BY_USE),
    "GET non-persistent/sales/eu/x": (501, "topics are persistent"),
    "PUT non-persistent/sales/eu/x": (501, "topics are persistent"),
    f"GET {EU}/tp/stats/": (404, "a path has no slash at its end"),
}
"""Our status where it differs from the broker's, and the reason, by the beginning of a request."""
NOT_SET_HERE: Final = ("bob", "a", "c", "k", "subscription_expiration_time_minutes")
"""Names in grants and settings that the broker accepted and that we refuse."""
NOT_OURS: Final = {
    *NOT_SET_HERE,
    "__compaction",  # Pulsar's compaction is a subscription, which is shown
    *("brokerClientSslFactoryPlugin", "brokerClientTlsKeyStoreType", "brokerClientTlsTrustStoreType"),
    *("creationDate", "modificationDate", "timestamp", "pulsar.replicated.subscription"),  # of stored ledgers
    *("originalBatchSize", "outstandingAcksInSameBatch", "firstUnoffloadedMessage"),
}
"""Fields that Pulsar's answers have and ours do not."""


class Clients:
    """Clients' actions between the requests."""

    def __init__(self, worker: ServedWorker) -> None:
        self._client = pulsar.Client(worker.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._connected: list[Any] = []

    def do(self, what: str, *words: str) -> None:
        getattr(self, what)(*words)

    def publish(self, topic: str, messages: str) -> None:
        producer = self._client.create_producer(NAMESPACE + topic, batching_enabled=False)
        for number in range(int(messages)):
            producer.send(b"message-%d" % number, partition_key=f"k{number}", properties={"i": str(number)},
                          event_timestamp=1_700_000_000_000)  # fmt: skip
        producer.close()

    def batch(self, topic: str, messages: str) -> None:
        producer = self._client.create_producer(
            NAMESPACE + topic, batching_enabled=True, batching_max_publish_delay_ms=300
        )
        for number in range(int(messages)):
            producer.send_async(b"batched-%d" % number, None, partition_key=f"k{number}")
        producer.flush()
        producer.close()

    def ack(self, topic: str, subscription: str, numbers: str) -> None:
        consumer = self._client.subscribe(NAMESPACE + topic, subscription, consumer_type=pulsar.ConsumerType.Shared)
        messages = [consumer.receive(5_000) for _ in range(8)]
        for number in numbers.split(","):
            consumer.acknowledge(messages[int(number)])
        consumer.close()

    def connected(self, topic: str, subscription: str) -> None:
        shared = pulsar.ConsumerType.Shared
        consumer = self._client.subscribe(NAMESPACE + topic, subscription, consumer_type=shared, receiver_queue_size=2)
        self._connected += [consumer, self._client.create_producer(NAMESPACE + topic, properties={"pp": "qq"})]

    def disconnect(self) -> None:
        for each in self._connected:
            with suppress(pulsar.PulsarException):  # its subscription may be deleted
                each.close()
        self._connected.clear()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def asked() -> list[tuple[dict[str, Any], Answer]]:
    """Return each request with the broker's answer and ours."""
    found: list[tuple[dict[str, Any], Answer]] = []
    with served_worker() as worker:
        clients = Clients(worker)
        for step in ANSWERS:
            if "do" in step:
                clients.do(*step["do"].split())
                continue
            method, _, rest = step["ask"].partition(" ")
            path, _, body = rest.partition(" ")
            found.append((step, worker.ask(method, path, body or None)))
        clients.close()
    return found


def difference(ask: str) -> tuple[int, str] | None:
    return next((value for start, value in DIFFERENCES.items() if ask.startswith(start)), None)


def status_is_as(theirs: int, ours: Answer) -> bool:
    """Done without anything to say is 204 here, where Pulsar has 200 with an empty body in some places."""
    return ours.status == theirs or (theirs == 200 and ours.status == 204)


def test_statuses_are_those_of_the_broker(asked: list[tuple[dict[str, Any], Answer]]) -> None:
    wrong = []
    for step, ours in asked:
        known = difference(step["ask"])
        expected = step["status"] if known is None else known[0]
        if not status_is_as(expected, ours) or (ours.status == 204 and "body" in step and known is None):
            wrong.append(f"{step['ask']}: {expected}, not {ours.status} {ours.content[:200]!r}")
    assert not wrong, "\n".join(wrong)


def test_every_difference_that_is_named_is_one(asked: list[tuple[dict[str, Any], Answer]]) -> None:
    for start, (status, reason) in DIFFERENCES.items():
        steps = [(step, ours) for step, ours in asked if step["ask"].startswith(start)]
        assert steps, f"nothing is asked that begins with {start}"
        assert any(
            not status_is_as(step["status"], ours) or ("body" in step and ours.status == 204) for step, ours in steps
        ), f"{start}: no difference"
        assert reason
        assert status


def test_bodies_have_the_fields_and_types_of_the_broker(asked: list[tuple[dict[str, Any], Answer]]) -> None:
    wrong = []
    for step, ours in asked:
        if "body" not in step or step["body"] == "plain" or ours.status != 200 or difference(step["ask"]):
            continue
        wrong += [f"{step['ask']}: {problem}" for problem in lacks(ours.json, step["body"], "")]
    assert not wrong, "\n".join(wrong)


def test_messages_have_the_headers_of_the_broker(asked: list[tuple[dict[str, Any], Answer]]) -> None:
    looked_at = 0
    for step, ours in asked:
        if "headers" in step and not difference(step["ask"]):
            looked_at += 1
            assert set(step["headers"]) <= set(ours.headers), (step["ask"], ours)
    assert looked_at > 5


def test_errors_have_a_reason(asked: list[tuple[dict[str, Any], Answer]]) -> None:
    errors = [ours for _, ours in asked if ours.status >= 400]
    assert len(errors) > 80
    assert all(ours.json["reason"] for ours in errors)


def lacks(ours: Any, theirs: Any, at: str) -> list[str]:
    """Return the fields of the broker's answer that ours lacks or has with another type."""
    if isinstance(theirs, dict):
        if not isinstance(ours, dict):
            return [f"{at or 'the body'} is no object: {ours!r:.80}"]
        found = []
        for name, kind in theirs.items():
            if name in NOT_OURS:
                continue
            if name not in ours:
                found.append(f"{at}.{name} is not there")
            else:
                found += lacks(ours[name], kind, f"{at}.{name}")
        return found
    if isinstance(theirs, list):
        if not isinstance(ours, list):
            return [f"{at or 'the body'} is no list: {ours!r:.80}"]
        return lacks(ours[0], theirs[0], f"{at}[0]") if theirs and ours else []
    kinds = {"flag": bool, "number": int | float, "text": str, None: type(None)}
    right = isinstance(ours, kinds[theirs]) and (theirs == "flag" or not isinstance(ours, bool))
    return [] if right else [f"{at or 'the body'} is no {theirs}: {ours!r:.80}"]
