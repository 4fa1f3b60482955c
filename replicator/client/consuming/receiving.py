"""Receiving, for consumers of one topic and of many.

:class:`Arrivals` is the line of waiting callers, and :class:`Receiver` has the calls that take messages. No call that
is cancelled takes a message with it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from replicator.client.argument_checks import check_range
from replicator.client.closing import ClosedAtExit
from replicator.client.consuming.batch_receive import BatchCollector
from replicator.client.consuming.listening import Listening
from replicator.client.errors import AlreadyClosed, InvalidConfiguration, NotAllowedError, Timeout
from replicator.client.message import Message
from replicator.client.settings import ConsumerBatchReceivePolicy
from replicator.running.timeouts import timeout

_log = logging.getLogger(__name__)


class Arrivals:
    """Line of callers that wait for a message, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, begun: Callable[[], None]) -> None:
        """Wait until woken. ``begun`` is called once the caller stands in the line."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            begun()
            await waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled():
                self.wake(1)  # woken and cancelled at once: the message is for the next in the line
            raise

    def wake(self, count: int) -> None:
        """Wake the first ``count`` callers, so that they look for a message."""
        while self._waiting and count > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wake all callers, because no message comes any more."""
        self.wake(len(self._waiting))


class Receiver(ClosedAtExit):
    """Calls with which an application receives messages."""

    def __init__(self, name: str, policy: ConsumerBatchReceivePolicy, arrivals: Arrivals, *, prefetches: bool) -> None:
        self._name = name
        self._batch_receive_policy = policy
        self._arrivals = arrivals
        self._prefetches = prefetches
        self._listening: Listening | None = None

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; wait for it at most ``timeout_millis``.

        Raises :class:`Timeout`, :class:`AlreadyClosed`, :class:`ConnectError`, :class:`SubscriptionNotFound` once the
        subscription is deleted, :class:`InvalidConfiguration` for a consumer with a listener, and
        :class:`InvalidMessage` (once) for an entry that cannot be read, which stays unacknowledged.
        """
        self._check_no_listener()
        return await self._receive(timeout_millis)

    async def receive_many(self, max_messages: int = 1000, timeout_millis: int | None = None) -> list[Message]:
        """Return all messages that are here, up to ``max_messages``; wait for the first at most ``timeout_millis``.

        Returns [] when the time is over. Raises the errors of :meth:`receive`.
        """
        self._check_no_listener()
        check_range("max_messages", max_messages, 1, 2**31)
        messages = self._pop_many(max_messages)
        if messages:
            self._show(messages)
            return messages
        try:
            messages = [await self._receive(timeout_millis)]
        except Timeout:
            return []
        more = self._pop_many(max_messages - 1)
        self._show(more)
        return messages + more

    async def batch_receive(self) -> list[Message]:
        """Return a batch of messages by ``batch_receive_policy``; [] if none came in its time.

        Raises :class:`NotAllowedError` with ``receiver_queue_size=0``, and the errors of :meth:`receive`.
        """
        self._check_no_listener()
        if not self._prefetches:
            raise NotAllowedError(f"{self._name}: a batch receive needs a receiver_queue_size over 0")
        policy = self._batch_receive_policy
        batch: BatchCollector[Message] = BatchCollector(policy)
        rounds: dict[str, int] = {}
        """Count from :meth:`_round` for each topic with messages in the batch."""
        try:
            async with timeout(policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None):
                while not batch.full:
                    message = self._pop()
                    if message is None:
                        await self._arrivals.wait(self._grant)
                        self._drop_invalidated(batch, rounds)
                    elif batch.add(message, len(message.data())):
                        rounds.setdefault(message.topic_name(), self._round(message.topic_name()))
                    else:
                        self._put_back([message])
                        break
        except TimeoutError:
            self._drop_invalidated(batch, rounds)
        except BaseException:
            self._drop_invalidated(batch, rounds)
            self._put_back(batch.messages)
            raise
        self._show(batch.messages)
        return batch.messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    def pause_message_listener(self) -> None:
        """Hand the listener nothing more, until :meth:`resume_message_listener`."""
        self._own_listening().pause()

    def resume_message_listener(self) -> None:
        """Resume handing messages to the listener."""
        self._check_open()
        self._own_listening().resume()

    def _own_listening(self) -> Listening:
        if self._listening is None:
            raise InvalidConfiguration(
                f"{self._name}: the consumer has no message_listener: only a consumer with one can be paused and "
                "resumed"
            )
        return self._listening

    # Methods that a consumer implements for these calls.

    @abstractmethod
    def _check_open(self) -> None:
        """Raise the error that ended the consumer, if it ended."""

    @abstractmethod
    def _pop(self) -> Message | None:
        """Return the next message, or None if none is here. Raises if none can come any more."""

    @abstractmethod
    def _pop_many(self, count_max: int) -> list[Message]:
        """Return up to ``count_max`` messages, like repeated :meth:`_pop`."""

    @abstractmethod
    def _put_back(self, messages: Sequence[Message]) -> None:
        """Take back messages that were popped and not shown; they come next again."""

    @abstractmethod
    def _show(self, messages: Sequence[Message]) -> None:
        """Take note that popped messages go to the application now. From here on it may acknowledge them."""

    @abstractmethod
    def _round(self, topic: str) -> int:
        """Return how often the popped, unshown messages of a topic became void: they come again, or are not wanted."""

    @abstractmethod
    def _grant(self) -> None:
        """Ask the cluster for as many messages as there is room for."""

    def _drop_invalidated(self, batch: BatchCollector[Message], rounds: dict[str, int]) -> None:
        """Drop messages that a seek, a redelivery or a lost connection made void during a wait."""
        over = [topic for topic, begun in rounds.items() if self._round(topic) != begun]
        if over:
            batch.drop(lambda message: message.topic_name() in over)
            for topic in over:
                del rounds[topic]

    async def _receive(self, timeout_millis: int | None = None) -> Message:
        message = self._next()
        if message is not None:
            return message
        if timeout_millis is None:
            return await self._wait_for_message()
        if not isinstance(timeout_millis, int | float):
            raise InvalidConfiguration(f"timeout_millis is {timeout_millis!r:.80}; it must be a number")
        try:
            async with timeout(timeout_millis / 1000):
                return await self._wait_for_message()
        except TimeoutError:
            raise Timeout(f"{self._name}: no message within {timeout_millis} ms") from None

    def _next(self) -> Message | None:
        message = self._pop()
        if message is not None:
            self._show((message,))
        return message

    async def _wait_for_message(self) -> Message:
        while True:
            await self._arrivals.wait(self._grant)
            message = self._next()
            if message is not None:
                return message

    def _check_no_listener(self) -> None:
        if self._listening is not None:
            raise InvalidConfiguration(
                f"{self._name}: the messages of this consumer go to its message_listener; to receive them, subscribe "
                "without one"
            )


class ConsumerEventListener(Protocol):
    """Interface of a listener that learns when its consumer of a Failover subscription becomes active or inactive."""

    def became_active(self, consumer: Receiver, partition: int) -> None: ...

    def became_inactive(self, consumer: Receiver, partition: int) -> None: ...


class ActiveChanges:
    """Calls a listener each time its consumer of a Failover subscription becomes active or inactive."""

    def __init__(self, listener: ConsumerEventListener, consumer: Receiver, topic: str, partition: int) -> None:
        """Keep the arguments. ``consumer`` is the object that the application uses; ``topic`` is for the log."""
        self._listener = listener
        self._topic = topic
        self._consumer = consumer
        self._partition = partition
        self._active: bool | None = None

    def tell(self, active: bool) -> None:
        """Call the listener if ``active`` differs from the last state."""
        if active is self._active:
            return
        self._active = active
        try:
            if active:
                self._listener.became_active(self._consumer, self._partition)
            else:
                self._listener.became_inactive(self._consumer, self._partition)
        except Exception:  # noqa: BLE001 - whatever error the application raises, the connection must go on
            _log.exception("%s: the consumer event listener failed", self._topic)
