"""Turns of the requests to the admin API, at the pace of :mod:`replicator.apache.request_pace`.

A request waits for its turn, and is sent again if the answer says to wait, for :data:`TURN_SECONDS_MAX` in all. Then it
fails, and its caller asks again later, as after any failure.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type

from replicator.apache.errors import AdminFailed, AdminLimited
from replicator.apache.request_pace import RequestPace
from replicator.running.timeouts import timeout

REQUESTS_AT_ONCE_MAX: Final = 8
TURN_SECONDS_MAX: Final = 20.0
"""Longest time for one request with its repetitions. A planned switch has less, and is refused; others ask again."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class RateLimiter:
    """Turns of the requests to one admin API."""

    def __init__(self) -> None:
        self._pace = RequestPace()
        self._room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
        self._alone = asyncio.Lock()
        self._refusal = ""

    @property
    def refusals(self) -> int:
        """Return how many answers told the worker to wait."""
        return self._pace.refusals

    def status(self) -> str:
        """Return a sentence that requests are limited, and for how long still; empty if they are not."""
        if not self._pace.limited:
            return ""
        wait = self._pace.wait_seconds(time.monotonic())
        what = f"nothing is asked for {math.ceil(wait)} s" if wait else "one request is made at a time"
        return f"the admin API limits requests, so {what}. The last refusal: {self._refusal}"

    async def take(self, send: Callable[[], Awaitable[T]]) -> T:
        """Call ``send`` in turn, and return its result. Call it again whenever it raises :class:`AdminLimited`.

        Raises :class:`AdminLimited` if that takes too long, and all other errors of ``send``.
        """
        deadline = time.monotonic() + TURN_SECONDS_MAX
        try:
            return await self._sent_in_turn(send, deadline)
        except AdminLimited:
            if self._too_late(deadline):
                raise
        # Few requests get here: the retrying costs much compared with a request.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(AdminLimited), stop=lambda _: self._too_late(deadline), reraise=True
        )
        async for attempt in retrying:
            with attempt:
                return await self._sent_in_turn(send, deadline)
        raise AssertionError(
            "tenacity (the library that tries again) ended without a result or an error; this is a bug"
        )

    def _too_late(self, deadline: float) -> bool:
        """Return whether no request can go out before ``deadline``."""
        now = time.monotonic()
        return now + self._pace.wait_seconds(now) >= deadline

    async def _sent_in_turn(self, send: Callable[[], Awaitable[T]], deadline: float) -> T:
        await self._entered(self._room, deadline)
        try:
            if not self._pace.limited:
                return await self._sent(send)
            await self._entered(self._alone, deadline)
            try:
                while wait := self._pace.wait_seconds(time.monotonic()):
                    if self._too_late(deadline):
                        raise AdminLimited(self.status())
                    await asyncio.sleep(wait)
                return await self._sent(send)
            finally:
                self._alone.release()
        finally:
            self._room.release()

    async def _entered(self, room: asyncio.Semaphore | asyncio.Lock, deadline: float) -> None:
        """Acquire ``room``. Raises :class:`AdminFailed` if that takes until ``deadline``."""
        try:
            async with timeout(deadline - time.monotonic()):
                await room.acquire()
        except TimeoutError:
            raise self._too_long() from None

    def _too_long(self) -> AdminFailed:
        if limited := self.status():
            return AdminLimited(limited)
        return AdminFailed(f"{REQUESTS_AT_ONCE_MAX} requests before it were not answered within {TURN_SECONDS_MAX:g} s")

    async def _sent(self, send: Callable[[], Awaitable[T]]) -> T:
        sent = time.monotonic()
        try:
            answer = await send()
        except AdminLimited as error:
            self._refusal = str(error)
            if self._pace.refused(sent, time.monotonic(), error.said_seconds, random.random()):
                log.warning("the brokers' admin API limits requests", answer=self._refusal)
            raise
        except AdminFailed as error:
            if error.status:
                self._answered(sent)
            raise
        self._answered(sent)
        return answer

    def _answered(self, sent: float) -> None:
        if self._pace.answered(sent):
            log.info("the brokers' admin API limits requests no more")


def is_rate_limited(status: int, said_seconds: float | None) -> bool:
    """Return whether an answer limits all requests, and not only this one."""
    unavailable = status == HTTPStatus.SERVICE_UNAVAILABLE and said_seconds is not None
    return status == HTTPStatus.TOO_MANY_REQUESTS or unavailable


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``Retry-After`` says, as a number or a date; None if it is missing or malformed."""
    said = headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError, OSError):
        return None
