"""Opening of channels, and their reopening after a loss: growing pauses, and limits of time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from replicator.client.errors import (
    ClusterFenced,
    ConnectError,
    ConsumerBusy,
    ProducerBlockedQuotaExceededError,
    ProducerBusy,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_FIRST_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 2.0
"""Longest pause. A worker that restarts is back within seconds; longer pauses would only add to the time without it."""
REOPEN_SECONDS_MAX: Final = 24 * 3600.0
"""Limit of reopening after a loss. A cluster may be away for hours, and clients continue when it is back, like
upstream.

Messages sent meanwhile end by the send timeout. ``Client(reconnect=False)`` reports a loss at once instead."""

_UNREACHABLE: Final = (ConnectError, Timeout, ServiceUnitNotReady)


async def open_first(
    attempt: Callable[[], Awaitable[T]], timeout_seconds: float, *, reconnect: bool, what: str = "connection"
) -> T:
    """Call ``attempt`` once; if the client reconnects, repeat it like :func:`open_with_retries`."""
    return await (open_with_retries(attempt, timeout_seconds, what=what) if reconnect else attempt())


async def open_with_retries(
    attempt: Callable[[], Awaitable[T]], timeout_seconds: float, *, again: bool = False, what: str = "connection"
) -> T:
    """Call ``attempt`` until it returns, up to ``timeout_seconds``; then raise its last error.

    Only errors that time can heal are retried. After a loss (``again``) the limit is :data:`REOPEN_SECONDS_MAX`, and
    more errors count. :class:`ConsumerBusy` and :class:`ProducerBusy`: the cluster may not have noticed yet that the
    former connection is gone. :class:`ProducerBlockedQuotaExceededError`: the backlog may be consumed.
    :class:`ClusterFenced`: the switch may be given up. The first failure is logged as a warning that names ``what`` is
    being opened.
    """

    def warn_once(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            _log.warning("%s: %s; trying again for %g s", what, state.outcome.exception(), seconds_max)

    seconds_max = REOPEN_SECONDS_MAX if again else timeout_seconds
    healed_by_time: tuple[type[PulsarException], ...] = _UNREACHABLE + (
        (ConsumerBusy, ProducerBusy, ProducerBlockedQuotaExceededError, ClusterFenced) if again else ()
    )
    retrying = AsyncRetrying(
        stop=stop_after_delay(seconds_max),
        wait=wait_exponential_jitter(multiplier=PAUSE_FIRST_SECONDS, max=PAUSE_MAX_SECONDS, jitter=PAUSE_FIRST_SECONDS),
        retry=retry_if_exception_type(healed_by_time),
        before_sleep=warn_once,
        reraise=True,
    )
    async for trial in retrying:
        with trial:
            return await attempt()
    raise AssertionError("tenacity (the library that tries again) ended without a result or an error; this is a bug")
