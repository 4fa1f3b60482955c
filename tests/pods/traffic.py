"""Messages that go from one cluster to another all the time, and what becomes of each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from replicator.client import Client, ConsumerType, InitialPosition, Timeout

PAUSE_SECONDS: Final = 0.01
BURST: Final = 10
"""Messages between two pauses: at most 1,000 a second, all the time, beside consumers of both clusters."""
SETTLE_SECONDS_MAX: Final = 120.0


class Traffic:
    """Publishes numbers at the first URL and consumes them at all, in a thread.

    ``confirmed`` has the numbers that the first confirmed; ``received`` those that came, by URL.
    """

    def __init__(self, topic: str, urls: list[str], settings: Mapping[str, Any]) -> None:
        self.topic, self.urls, self._settings = topic, urls, settings
        self.confirmed: set[int] = set()
        self.received: dict[str, set[int]] = {url: set() for url in urls}
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="traffic")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Publish no more, and wait until every confirmed message has come everywhere."""
        self._over.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def lost(self) -> dict[str, list[int]]:
        """Return the confirmed messages that did not come, by the URL of the cluster."""
        return {url: sorted(self.confirmed - received) for url, received in self.received.items()}

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                consuming = [group.create_task(self._consume(url)) for url in self.urls]
                await self._publish()
                deadline = time.monotonic() + SETTLE_SECONDS_MAX
                while any(self.lost().values()) and time.monotonic() < deadline:  # noqa: ASYNC110 - sets, filled by tasks
                    await asyncio.sleep(0.1)
                for task in consuming:
                    task.cancel()
        except BaseException as error:  # noqa: BLE001 - it is raised where the traffic is finished
            self._failed.append(error)

    async def _publish(self) -> None:
        async with Client(self.urls[0], **self._settings) as client:
            producer = await client.create_producer(self.topic, send_timeout_millis=0, max_pending_messages=100_000)
            number = 0
            while not self._over.is_set():
                for each in range(number, number + BURST):
                    producer.enqueue(b"%d" % each).add_done_callback(lambda done, each=each: self._note(done, each))
                number += BURST
                await asyncio.sleep(PAUSE_SECONDS)
            await producer.flush()

    def _note(self, done: asyncio.Future[object], number: int) -> None:
        if not done.cancelled() and done.exception() is None:
            self.confirmed.add(number)

    async def _consume(self, url: str) -> None:
        async with Client(url, **self._settings) as client:
            consumer = await client.subscribe(
                self.topic, "reads", ConsumerType.Shared, initial_position=InitialPosition.Earliest
            )
            while True:
                try:
                    message = await consumer.receive(timeout_millis=1_000)
                except Timeout:  # nothing came
                    continue
                self.received[url].add(int(message.data()))
                await consumer.acknowledge(message)


@contextmanager
def traffic(topic: str, urls: list[str], **settings: Any) -> Iterator[Traffic]:
    """Publish at the first of ``urls`` and consume at all, by clients with ``settings``. At the end all has settled, or
    time is over."""
    running = Traffic(topic, urls, settings)
    running.start()
    try:
        yield running
    finally:
        running.finish()
