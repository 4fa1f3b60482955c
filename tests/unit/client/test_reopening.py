"""Opening again says once what it waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from replicator.client.errors import ConnectError, ConsumerBusy
from replicator.client.wire.reopening import open_with_retries


def test_the_first_failure_is_a_warning_that_names_what_is_opened_and_the_others_are_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = iter([ConnectError("refused"), ConnectError("refused"), None])

    async def attempt() -> str:
        error = next(failures)
        if error is not None:
            raise error
        return "open"

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(open_with_retries(attempt, 5, what="consumer of t")) == "open"
    assert [record.getMessage() for record in caplog.records] == ["consumer of t: refused; trying again for 5 s"]


def test_what_time_does_not_heal_is_raised_at_once_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def attempt() -> None:
        raise ConsumerBusy("taken")

    with caplog.at_level(logging.WARNING), pytest.raises(ConsumerBusy):
        asyncio.run(open_with_retries(attempt, 5))
    assert caplog.records == []
