"""Impossible settings are refused by name, before anything is connected."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from replicator.client import (
    Client,
    ConsumerType,
    InvalidConfiguration,
    InvalidTopicName,
    InvalidUrl,
    OperationNotSupported,
    PulsarException,
    RegexSubscriptionMode,
)
from replicator.client.errors import CryptoError, from_code
from replicator.client.producing.encryption import CryptoKeyReader
from replicator.client.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    HashingScheme,
    KeySharedMode,
    PartitionsRoutingMode,
)

UNREACHABLE = "pulsar://127.0.0.1:9"


def _refusal(call: Any) -> PulsarException:
    with pytest.raises(PulsarException) as caught:
        asyncio.run(call())
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"compression_type": "ZSTD"}, InvalidConfiguration, "compression_type"),
        ({"batching_type": 1}, InvalidConfiguration, "batching_type"),
        ({"access_mode": "Exclusive"}, InvalidConfiguration, "access_mode"),
        ({"chunking_enabled": True}, InvalidConfiguration, "batching_enabled=False"),
        ({"schema": object()}, InvalidConfiguration, "schema"),
        ({"encryption_key": "k"}, InvalidConfiguration, "crypto_key_reader"),
        ({"encryption_key": "k", "crypto_key_reader": CryptoKeyReader()}, CryptoError, "'k'"),
        ({"message_routing_mode": "x"}, InvalidConfiguration, "message_routing_mode"),
        ({"message_routing_mode": PartitionsRoutingMode.CustomPartition}, InvalidConfiguration, "message_router"),
        ({"message_router": 3}, InvalidConfiguration, "message_router"),
        ({"hashing_scheme": HashingScheme.BoostHash}, OperationNotSupported, "BoostHash"),
        ({"max_pending_messages_across_partitions": 0}, InvalidConfiguration, "across_partitions"),
        ({"stats_interval_in_seconds": -1}, InvalidConfiguration, "stats_interval_in_seconds"),
        ({"max_pending_messages": 0}, InvalidConfiguration, "max_pending_messages"),
        ({"batching_max_messages": True}, InvalidConfiguration, "batching_max_messages"),
        ({"producer_name": ""}, InvalidConfiguration, "producer_name"),
        ({"properties": {"a": 1}}, InvalidConfiguration, "property 'a'"),
        ({"topic": "persistent://a/../c"}, InvalidTopicName, "'..'"),
        ({"topic": "x" * 500}, InvalidTopicName, "longer than 400"),
    ],
)
def test_a_producer_that_cannot_be_made_says_which_argument(
    arguments: dict[str, Any], kind: type[PulsarException], named: str
) -> None:
    async def create() -> None:
        await Client(UNREACHABLE).create_producer(**{"topic": "t", **arguments})

    error = _refusal(create)
    assert type(error) is kind
    assert named in str(error)


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"consumer_type": "Shared"}, InvalidConfiguration, "consumer_type"),
        ({"initial_position": "Earliest"}, InvalidConfiguration, "initial_position"),
        ({"topic": []}, InvalidConfiguration, "list of topics is empty"),
        ({"topic": ["a", "b"], "receiver_queue_size": 0}, InvalidConfiguration, "receiver_queue_size=0"),
        ({"topic": ["a", "b"], "is_pattern_topic": True}, InvalidConfiguration, "is_pattern_topic"),
        ({"topic": "a(b", "is_pattern_topic": True}, InvalidConfiguration, "at character 1: missing )"),
        ({"topic": re.compile("persistent://t/n/a(?=b)")}, InvalidConfiguration, "at character 18: look-around"),
        ({"topic": re.compile("public/.*/a")}, InvalidConfiguration, "at character 7: the namespace"),
        ({"topic": re.compile("t/n/a|t/m/b")}, InvalidConfiguration, "at character 7: expected"),
        ({"topic": re.compile("a b", re.VERBOSE)}, InvalidConfiguration, "VERBOSE"),
        ({"topic": re.compile(b"a")}, InvalidConfiguration, "a compiled pattern must be of text"),
        ({"topic": "x" * 1001, "is_pattern_topic": True}, InvalidConfiguration, "1001 characters"),
        ({"topic": re.compile("a"), "pattern_auto_discovery_period": 0}, InvalidConfiguration, "discovery_period"),
        ({"topic": re.compile("a"), "receiver_queue_size": 0}, InvalidConfiguration, "receiver_queue_size=0"),
        (
            {"topic": re.compile("a"), "enable_retry": True, "consumer_type": ConsumerType.Shared},
            OperationNotSupported,
            "enable_retry",
        ),
        ({"regex_subscription_mode": "AllTopics"}, InvalidConfiguration, "regex_subscription_mode"),
        (
            {"topic": re.compile("a"), "regex_subscription_mode": RegexSubscriptionMode.NonPersistentOnly},
            OperationNotSupported,
            "regex_subscription_mode",
        ),
        ({"dead_letter_policy": object()}, InvalidConfiguration, "dead_letter_policy"),
        ({"dead_letter_policy": ConsumerDeadLetterPolicy(3)}, InvalidConfiguration, "dead letters"),
        ({"enable_retry": True}, InvalidConfiguration, "retries"),
        ({"key_shared_policy": ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)}, InvalidConfiguration, "Key"),
        (
            {"is_read_compacted": True, "consumer_type": ConsumerType.Shared},
            InvalidConfiguration,
            "is_read_compacted",
        ),
        ({"receiver_queue_size": -1}, InvalidConfiguration, "receiver_queue_size"),
        ({"priority_level": -1}, InvalidConfiguration, "priority_level"),
        ({"unacked_messages_timeout_ms": -1}, InvalidConfiguration, "unacked_messages_timeout_ms"),
        (
            {"unacked_messages_timeout_ms": 100, "tick_duration_in_ms": 101},
            InvalidConfiguration,
            "tick_duration_in_ms",
        ),
        ({"schema": 7}, InvalidConfiguration, "schema"),
        ({"crypto_failure_action": "FAIL"}, InvalidConfiguration, "crypto_failure_action"),
        ({"subscription_properties": {"a": 1}}, InvalidConfiguration, "property 'a'"),
        ({"subscription_name": "a\nb"}, InvalidConfiguration, "subscription name"),
    ],
)
def test_a_consumer_that_cannot_be_made_says_which_argument(
    arguments: dict[str, Any], kind: type[PulsarException], named: str
) -> None:
    async def subscribe() -> None:
        await Client(UNREACHABLE, reconnect=False).subscribe(**{"topic": "t", "subscription_name": "s", **arguments})

    error = _refusal(subscribe)
    assert type(error) is kind
    assert named in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscription_name": 5},
        {"message_listener": 5},
        {"consumer_event_listener": 3},
        {"stats_interval_in_seconds": "x"},
        {"stats_interval_in_seconds": -1},
        {"negative_ack_redelivery_backoff": 3},
        {"properties": [1]},
        {"replicate_subscription_state_enabled": "yes"},
        {"enable_retry": "yes"},
    ],
    ids=str,
)
def test_a_consumers_argument_of_a_wrong_type_is_refused_before_anything_is_connected(wrong: dict[str, Any]) -> None:
    async def subscribe() -> None:
        await Client(UNREACHABLE, reconnect=False).subscribe(**{"topic": "t", "subscription_name": "s", **wrong})

    assert _refusal(subscribe).error() == "InvalidConfiguration"


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": [1]},
        {"batching_enabled": 1},
        {"block_if_queue_full": "yes"},
        {"crypto_key_reader": "key.pem"},
        {"lazy_start_partitioned_producers": 1},
    ],
    ids=str,
)
def test_a_producers_argument_of_a_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    async def create() -> None:
        await Client(UNREACHABLE, reconnect=False).create_producer("t", **wrong)

    assert _refusal(create).error() == "InvalidConfiguration"


def test_what_the_official_client_takes_and_this_one_does_not_is_refused_by_name() -> None:
    Client(UNREACHABLE, io_threads=1, logger=None, use_tls=False)
    with pytest.raises(OperationNotSupported, match="io_threads=4"):
        Client(UNREACHABLE, io_threads=4)
    with pytest.raises(InvalidUrl):
        Client(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="operation_timeout_seconds"):
        Client(UNREACHABLE, operation_timeout_seconds="30")  # type: ignore[arg-type]


def test_an_argument_that_nobody_knows_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        asyncio.run(Client(UNREACHABLE).create_producer("t", colour="red"))


def test_upstream_arguments_with_the_value_that_means_off_are_accepted() -> None:
    async def create() -> None:
        client = Client(UNREACHABLE, reconnect=False)
        try:
            await client.create_producer("t", schema=None, chunking_enabled=False)
        finally:
            await client.close()

    assert _refusal(create).error() == "ConnectError"


def test_a_code_that_the_client_does_not_know_is_reported_with_its_name() -> None:
    error = from_code("QuantumFlux", "why")
    assert (error.error(), str(error)) == ("UnknownError", "QuantumFlux: why")
    assert from_code("MessageTooLarge", "why").error() == "MessageTooBig"
    assert from_code("EntryCorrupt", "why").error() == "InvalidMessage"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ConsumerDeadLetterPolicy(0), "max_redeliver_count"),
        (lambda: ConsumerDeadLetterPolicy(1, initial_subscription_name="a\nb"), "subscription name"),
        (lambda: ConsumerBatchReceivePolicy(0, 0, 0), "at least one"),
        (lambda: ConsumerKeySharedPolicy(KeySharedMode.Sticky), "at least one"),
        (lambda: ConsumerKeySharedPolicy(sticky_ranges=[(0, 1)]), "Sticky"),
        (lambda: ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 65_536)]), "sticky range"),
        (lambda: ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(9, 3)]), "sticky range"),
        (lambda: ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(5, 9), (0, 5)]), "overlaps"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(make: Any, named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named):
        make()
