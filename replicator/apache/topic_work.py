"""Long-lived work of one topic's bridge that is tried again for ever, and what is wrong with it.

Pauses between attempts grow. What only an operator can judge halts the topic: it is looked at again at the same pace,
so that it goes on when the cause is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from replicator.apache.errors import BridgeError, BridgeHalted
from replicator.client.errors import PulsarException
from replicator.engine.errors import EngineError
from replicator.running.lasting_failure import LastingFailure
from replicator.running.timeouts import timeout

PAUSE_FIRST_SECONDS: Final = 0.1
PAUSE_MAX_SECONDS: Final = 30.0
"""Longest pause between two attempts of work that keeps failing.

It ends early when the brokers answer again, and for a failover.
"""
PAUSE_FENCED_SECONDS: Final = 0.5
"""Pause between two attempts of work that keeps others out."""

log = structlog.get_logger(__name__)


class TopicWork:
    """Parts of the bridge of ``topic``, by name. ``fences`` returns whether a part must keep others out now."""

    def __init__(self, topic: str, fences: Callable[[str], bool]) -> None:
        self._topic = topic
        self._fences = fences
        self._failures: defaultdict[str, LastingFailure] = defaultdict(LastingFailure)
        self._hurry = asyncio.Event()
        """Set, and cleared at once, to end all pauses."""
        self.errors: dict[str, str] = {}
        """For each failing part, the reason."""
        self.halted: set[str] = set()
        """Parts that an operator has to look at."""
        self.remedies: dict[str, str] = {}
        """For each part that halted, the command that gets it going again."""

    def retry_now(self) -> None:
        """Try at once again what failed: the brokers answer again, or somebody waits.

        Pauses begin to grow anew, because brokers that have just started may refuse a topic for a moment.
        """
        for each in self._failures.values():
            each.attempts = 0
        self._wake()

    def _wake(self) -> None:
        self._hurry.set()
        self._hurry = asyncio.Event()

    def pause_seconds(self, part: str) -> float:
        """Return the pause before the next attempt of a part, by how often it failed since it was well last."""
        return min(
            PAUSE_FIRST_SECONDS * (2.0 ** min(self._failures[part].attempts, 20) + random.random()),
            PAUSE_FENCED_SECONDS if self._fences(part) else PAUSE_MAX_SECONDS,
        )

    async def keep(self, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` for ever."""

        def failed(state: RetryCallState) -> None:
            assert state.outcome is not None
            error = state.outcome.exception()
            assert error is not None
            self.fails(part, error)
            if isinstance(error, BridgeHalted):
                self.halted.add(part)
                self.remedies.pop(part, None)
                if error.remedy:
                    self.remedies[part] = error.remedy

        async def sleep(seconds: float) -> None:
            with suppress(TimeoutError):
                async with timeout(seconds):
                    await self._hurry.wait()

        retrying = AsyncRetrying(
            wait=lambda _: self.pause_seconds(part),
            sleep=sleep,
            retry=retry_if_exception_type((BridgeError, PulsarException, EngineError)),
            before_sleep=failed,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                await work()

    def fails(self, part: str, error: BaseException) -> None:
        """Note that a part fails with ``error``. Log it when it begins to fail, and once an hour."""
        text = f"{type(error).__name__}: {error}"
        if self._failures[part].failed():
            log.warning("bridge to Apache Pulsar fails", part=part, topic=self._topic, reason=text)
        self.errors[part] = text

    def succeeded(self, part: str) -> None:
        """Note that a part goes well. Parts that fail are tried at once: the topic is there again."""
        if part not in self.errors:
            return
        seconds = self._failures[part].ended()
        log.info("bridge to Apache Pulsar goes on", part=part, topic=self._topic, failed_seconds=seconds)
        del self.errors[part]
        self.halted.discard(part)
        self.remedies.pop(part, None)
        self._wake()
