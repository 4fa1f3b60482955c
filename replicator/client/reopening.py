"""Opening a channel again after its loss, with growing pauses, for as long as the operation timeout allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from replicator.client.errors import (
    ConnectError,
    ConsumerBusy,
    ProducerBusy,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
)

T = TypeVar("T")

PAUSE_FIRST_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 2.0
"""A worker that restarts is back within seconds; longer pauses would only add to the time without it."""

_UNREACHABLE: Final = (ConnectError, Timeout, ServiceUnitNotReady)


async def open_with_retries(attempt: Callable[[], Awaitable[T]], timeout_seconds: float, *, again: bool = False) -> T:
    """Call ``attempt`` until it returns, up to ``timeout_seconds``; then raise its last error.

    Only errors that time can heal are retried. After a loss (``again``) that includes :class:`ConsumerBusy` and
    :class:`ProducerBusy`: the cluster may not have noticed yet that the former connection is gone.
    """
    healed_by_time: tuple[type[PulsarException], ...] = _UNREACHABLE + ((ConsumerBusy, ProducerBusy) if again else ())
    retrying = AsyncRetrying(
        stop=stop_after_delay(timeout_seconds),
        wait=wait_exponential_jitter(multiplier=PAUSE_FIRST_SECONDS, max=PAUSE_MAX_SECONDS, jitter=PAUSE_FIRST_SECONDS),
        retry=retry_if_exception_type(healed_by_time),
        reraise=True,
    )
    async for trial in retrying:
        with trial:
            return await attempt()
    raise AssertionError("tenacity ended without a result or an error")
