"""Counting what each client has."""

from __future__ import annotations

import resource

from replicator.security import client_limits
from replicator.security.client_limits import ClientLimits, HolderCounts, Limits, limits_of_process


def test_a_holder_has_so_many_and_no_more_and_others_have_their_own() -> None:
    shares = HolderCounts("connections from", 2)
    assert [shares.take("a"), shares.take("a"), shares.take("b")] == [None, None, None]
    assert shares.take("a") == "2 connections from a are open, the limit"
    shares.give_back("a")
    assert shares.take("a") is not None, "what was refused counts until it is over"
    shares.give_back("a")
    shares.give_back("a")
    assert shares.take("a") is None


def test_what_was_given_back_takes_no_memory_and_nothing_is_given_back_twice() -> None:
    shares = HolderCounts("requests from", 1)
    for number in range(1_000):
        shares.take(str(number))
        shares.give_back(str(number))
        shares.give_back(str(number))
    assert not shares._held
    assert shares.take("0") is None
    assert shares.take("0") is not None


def test_where_nobody_is_told_apart_nobody_is_counted() -> None:
    role = ClientLimits(Limits(connections_of_role=1)).connections_of_role
    assert [role.take("") for _ in range(10)] == [None] * 10
    role.give_back("")


def test_one_address_leaves_files_for_others_however_few_there_are() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limits = limits_of_process()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == resource.RLIM_INFINITY or soft >= min(client_limits.FILES_WANTED, hard)
        if soft != resource.RLIM_INFINITY:
            assert limits.connections_of_address + limits.handshakes_of_address < soft
        assert limits.requests_of_address == Limits().requests_of_address
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
