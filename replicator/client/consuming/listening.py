"""Message listener: a task that hands messages to an application's function, one after the other."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from replicator.client.errors import AlreadyClosed, InvalidMessage, PulsarException
from replicator.client.message import Message
from replicator.client.tasks import client_supervisor
from replicator.running.short_tasks import in_background
from replicator.running.supervisor import SupervisedTask

_log = logging.getLogger(__name__)

MessageListener = Callable[[Any, Message], object]
"""Function or coroutine function of the consumer and a message. If it raises, the message is rejected."""


class Listening:
    """Task that runs a listener for as long as its consumer receives.

    ``receive`` waits for a message, and takes none with it when it is cancelled; ``reject`` asks for one again.
    """

    def __init__(
        self,
        listener: MessageListener,
        consumer: object,
        receive: Callable[[], Awaitable[Message]],
        reject: Callable[[Message], Coroutine[Any, Any, None]],
    ) -> None:
        self._listener = listener
        self._consumer = consumer
        self._receive = receive
        self._reject = reject
        self._paused = False
        self._waiting = False
        self._task: SupervisedTask | None = None

    def resume(self) -> None:
        """Start the listener, or continue after a pause."""
        self._paused = False
        if self._task is None or not self._task.running:
            self._task = client_supervisor().task("listener", "listener", self._run, until_done=True)
            self._task.start()

    def pause(self) -> None:
        """Hand over no more messages. The listener may finish the one that it has."""
        self._paused = True
        if self._waiting:
            self._cancel()

    def stop(self) -> None:
        """Hand over no more messages for good, and cancel a running coroutine unless it is the caller."""
        self._paused = True
        if self._task is not None and not self._task.is_current:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while not self._paused:
                self._waiting = True
                try:
                    message = await self._receive()
                except InvalidMessage as error:
                    _log.warning("not given to the listener: %s", error)
                    continue
                finally:
                    self._waiting = False
                await self._hand_over(message)
        except AlreadyClosed:
            pass  # that is how it ends
        except PulsarException as error:
            _log.warning("the listener gets nothing more: %s", error)

    async def _hand_over(self, message: Message) -> None:
        try:
            result = self._listener(self._consumer, message)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001 - whatever the application raises; it must not end the consumer
            _log.exception("the listener failed at %r, which is asked for again", message)
            await self._reject(message)
        except BaseException:
            if self._task is not None:  # nobody asked for this end: the listener goes on, and the message comes again
                in_background(self._reject(message), "rejecting of a message")
            raise
