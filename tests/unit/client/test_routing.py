"""A key always finds its partition, the same one as in other languages' clients; the rest is spread by batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.errors import InvalidConfiguration, OperationNotSupported
from replicator.client.message import OutgoingMessage
from replicator.client.producing.routing import (
    RoundRobinRouter,
    RoutableMessage,
    Router,
    RoutingSettings,
    make_router,
)
from replicator.client.settings import BatchLimits, HashingScheme, PartitionsRoutingMode
from replicator.protocol.key_hashes import java_string_hash, murmur3_32_hash


def _route(router: Router, count: int, *, partitions: int = 3, seconds: float = 0.0, size: int = 1) -> list[int]:
    return [router.partition_of(OutgoingMessage(b"x" * size), partitions, seconds) for _ in range(count)]


@pytest.mark.parametrize(
    ("key", "value"),
    # "hello".hashCode() and the like by the rule of java.lang.String; a sign bit is dropped ("polygenelubricants" is
    # the well-known text whose hash is the lowest int).
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("😀", 55357 * 31 + 56832)],
)
def test_the_java_hash_is_that_of_java(key: str, value: int) -> None:
    assert java_string_hash(key) == value


def test_the_murmur_hash_has_the_seeds_value_without_its_sign_bit() -> None:
    assert murmur3_32_hash("Order-3459134") == 3112179635 & 0x7FFFFFFF


@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
)
@pytest.mark.parametrize(
    ("scheme", "partition"),
    [(HashingScheme.JavaStringHash, 99162322 % 7), (HashingScheme.Murmur3_32Hash, murmur3_32_hash("hello") % 7)],
)
def test_a_key_goes_where_its_hash_says_in_every_mode(
    mode: PartitionsRoutingMode, scheme: HashingScheme, partition: int
) -> None:
    for first in range(3):
        router = make_router(RoutingSettings(mode, scheme), BatchLimits(), first)
        for _ in range(3):
            assert router.partition_of(OutgoingMessage(b"", partition_key="hello"), 7, 0.0) == partition


def test_a_single_partition_gets_everything_without_a_key() -> None:
    router = make_router(RoutingSettings(PartitionsRoutingMode.UseSinglePartition), None, 5)
    assert _route(router, 4) == [2, 2, 2, 2]


def test_round_robin_takes_turns_by_messages_without_batching() -> None:
    assert _route(make_router(RoutingSettings(), None, 1), 7) == [1, 2, 0, 1, 2, 0, 1]


def test_round_robin_stays_for_the_count_of_a_batch() -> None:
    assert _route(make_router(RoutingSettings(), BatchLimits(messages_max=3), 0), 7) == [0, 0, 0, 1, 1, 1, 2]


def test_round_robin_stays_for_the_size_of_a_batch() -> None:
    router = make_router(RoutingSettings(), BatchLimits(payload_bytes_max=300), 0)
    assert _route(router, 5, size=100) == [0, 0, 1, 1, 2]


def test_round_robin_stays_for_the_delay_of_a_batch() -> None:
    router = make_router(RoutingSettings(), BatchLimits(publish_delay_ms=10), 0)
    routed = [router.partition_of(OutgoingMessage(b""), 3, seconds) for seconds in (5.0, 5.009, 5.011, 5.02, 5.0211)]
    assert routed == [0, 0, 1, 1, 2]


def test_keys_do_not_take_turns() -> None:
    router = RoundRobinRouter(java_string_hash, 0, BatchLimits(messages_max=2))
    for _ in range(9):
        router.partition_of(OutgoingMessage(b"", partition_key="k"), 3, 0.0)
    assert _route(router, 3) == [0, 0, 1]


def test_a_message_router_sees_the_message_and_decides_also_for_keys() -> None:
    seen: list[tuple[bytes, str, str, dict[str, str], int]] = []

    def route(message: RoutableMessage, partitions: int) -> int:
        seen.append(
            (
                message.data(),
                message.partition_key(),
                message.ordering_key(),
                message.properties(),
                message.event_timestamp(),
            )
        )
        return partitions - 1

    router = make_router(RoutingSettings(message_router=route), None, 0)
    assert router.partition_of(OutgoingMessage(b"a", {"p": "1"}, "k", "o", None, 5), 4, 0.0) == 3
    assert router.partition_of(OutgoingMessage(b"b"), 4, 0.0) == 3
    assert seen == [(b"a", "k", "o", {"p": "1"}, 5), (b"b", "", "", {}, 0)]


@pytest.mark.parametrize("returned", [-1, 4, None, "1", True])
def test_a_message_router_that_returns_no_partition_is_named(returned: object) -> None:
    router = make_router(RoutingSettings(message_router=lambda _m, _n: returned), None, 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidConfiguration, match="message_router returned"):
        router.partition_of(OutgoingMessage(b""), 4, 0.0)


def test_a_hash_that_differs_between_builds_is_refused_unless_a_router_makes_it_pointless() -> None:
    with pytest.raises(OperationNotSupported, match="BoostHash"):
        RoutingSettings(hashing_scheme=HashingScheme.BoostHash)
    RoutingSettings(hashing_scheme=HashingScheme.BoostHash, message_router=lambda _m, _n: 0)


@given(key=st.text(st.characters(exclude_categories=["Cs"])), partitions=st.integers(1, 1_000))
def test_every_hash_gives_a_partition(key: str, partitions: int) -> None:
    for scheme in (HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash):
        router = make_router(RoutingSettings(hashing_scheme=scheme), None, 0)
        assert 0 <= router.partition_of(OutgoingMessage(b"", partition_key=key), partitions, 0.0) < partitions
