"""One measurement with the official Python client, against any broker: ``python -m bench.client_program --url …``.

It prints one line of JSON: what was done, in how many seconds, and how much CPU time this process used meanwhile, which
tells whether the client was the limit. ``bench/go/main.go`` takes the same arguments and prints the same line.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psutil
import pulsar

BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 128 * 1024
PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
PENDING_MESSAGES_MAX: Final = 20_000
PENDING_MESSAGES_MIN: Final = 16
NUMBER_BYTES: Final = 8
TICK_SECONDS: Final = 0.002
"""Pause between the groups of messages that a lag measurement sends."""
SILENCE_MS: Final = 60_000
"""Longest time without a message; after it the measurement has failed."""


class Program:
    """Measurements with one client, after the command line's arguments. Each method returns figures by name."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._client = pulsar.Client(given.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._failed: list[Any] = []

    def close(self) -> None:
        self._client.close()
        if self._failed:
            raise SystemExit(f"a send failed: {self._failed[0]}")

    def publish(self) -> dict[str, float]:
        producer, payload = self._produce(), bytes(self._given.size)

        def work() -> None:
            for _ in range(self._given.count):
                producer.send_async(payload, self._confirmed)
            producer.flush()

        return self._timed(work)

    def consume(self) -> dict[str, float]:
        def work() -> None:
            consumer = self._subscribe()
            for _ in range(self._given.count):
                consumer.acknowledge(consumer.receive(SILENCE_MS))

        return self._timed(work)

    def one_by_one(self) -> dict[str, float]:
        producer, payload = self._produce(), bytes(self._given.size)
        took: list[float] = []

        def work() -> None:
            for _ in range(self._given.count):
                began = time.perf_counter()
                producer.send(payload)
                took.append(time.perf_counter() - began)

        return {**self._timed(work), **_percentiles(took)}

    def sustained(self) -> dict[str, float]:
        """Publish and consume at the same time, as fast as possible; return counts and times by name."""
        producer, consumer, payload = self._produce(), self._subscribe(), bytes(self._given.size)

        def arrive() -> None:
            for _ in range(self._given.count):
                consumer.acknowledge(consumer.receive(SILENCE_MS))

        def work() -> None:
            arriving = threading.Thread(target=arrive)
            arriving.start()
            for _ in range(self._given.count):
                producer.send_async(payload, self._confirmed)
            producer.flush()
            arriving.join()

        return self._timed(work)

    def lag(self) -> dict[str, float]:
        """Send messages at an even rate; return p50 and p99 from the send call to the arrival, count and times."""
        producer, consumer, count = self._produce(), self._subscribe(), self._given.count
        sent, took = [0.0] * count, [0.0] * count
        filling = bytes(self._given.size - NUMBER_BYTES)

        def arrive() -> None:
            for _ in range(count):
                message = consumer.receive(SILENCE_MS)
                number = int.from_bytes(message.data()[:NUMBER_BYTES], "big")
                took[number] = time.perf_counter() - sent[number]
                consumer.acknowledge(message)

        def work() -> None:
            arriving = threading.Thread(target=arrive)
            arriving.start()
            began, number = time.perf_counter(), 0
            while number < count:
                due = min(count, int((time.perf_counter() - began) * self._given.rate))
                for each in range(number, due):
                    sent[each] = time.perf_counter()
                    producer.send_async(each.to_bytes(NUMBER_BYTES, "big") + filling, self._confirmed)
                number = due
                time.sleep(TICK_SECONDS)
            arriving.join()

        return {**self._timed(work), **_percentiles(took)}

    def many(self) -> dict[str, float]:
        """Run rounds on many topics at once, a thread for each; return the count, times, p50 and p99 of a round.

        In a round a topic sends a message, receives it and acknowledges it.
        """
        payload, took = bytes(self._given.size), list[float]()
        each_topic = max(1, self._given.count // self._given.topics)
        ends = []
        for number in range(self._given.topics):
            name = f"{self._given.topic}-{number}"
            consumer = self._client.subscribe(name, "many", consumer_type=pulsar.ConsumerType.Shared)
            ends.append((self._client.create_producer(name, batching_enabled=False), consumer))

        def take(producer: Any, consumer: Any) -> None:
            for _ in range(each_topic):
                began = time.perf_counter()
                producer.send(payload)
                consumer.acknowledge(consumer.receive(SILENCE_MS))
                took.append(time.perf_counter() - began)

        def work() -> None:
            threads = [threading.Thread(target=take, args=each) for each in ends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        measured = self._timed(work)
        if len(took) < each_topic * len(ends):
            raise SystemExit(f"only {len(took)} rounds of {each_topic * len(ends)} were done")
        return {**measured, **_percentiles(took), "count": len(took)}

    def _produce(self) -> Any:
        return self._client.create_producer(
            self._given.topic,
            batching_enabled=self._given.batched,
            batching_max_messages=BATCH_MESSAGES_MAX,
            batching_max_allowed_size_in_bytes=BATCH_BYTES_MAX,
            batching_max_publish_delay_ms=self._given.batch_delay_ms,
            max_pending_messages=self._queue,
            block_if_queue_full=True,
        )

    def _subscribe(self) -> Any:
        return self._client.subscribe(
            self._given.topic,
            f"run-{time.time_ns()}",
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=self._queue,
        )

    @property
    def _queue(self) -> int:
        """Return how many messages may be unconfirmed, or be received ahead, at this message size."""
        return max(PENDING_MESSAGES_MIN, min(PENDING_MESSAGES_MAX, PENDING_BYTES_MAX // self._given.size))

    def _confirmed(self, result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            self._failed.append(result)

    def _timed(self, work: Callable[[], None]) -> dict[str, float]:
        broker, cpu, began = self._broker_seconds(), _cpu_seconds(), time.perf_counter()
        work()
        return {
            "count": self._given.count,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": _cpu_seconds() - cpu,
            "broker_cpu_seconds": self._broker_seconds() - broker,
        }

    def _broker_seconds(self) -> float:
        """Return the CPU seconds that the broker's process has used; 0 if its process is not known."""
        if not self._given.pid:
            return 0.0
        times = psutil.Process(self._given.pid).cpu_times()
        return float(times.user + times.system)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _percentiles(took: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 of ``took`` (seconds) by nearest rank, in milliseconds, as ``p50_ms`` and ``p99_ms``."""
    ordered = sorted(took)
    return {f"p{percent}_ms": ordered[math.ceil(len(ordered) * percent / 100) - 1] * 1000 for percent in (50, 99)}


def main() -> None:
    works = {
        "publish": Program.publish,
        "consume": Program.consume,
        "one-by-one": Program.one_by_one,
        "sustained": Program.sustained,
        "lag": Program.lag,
        "many": Program.many,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, default=0)
    parser.add_argument("--work", required=True, choices=works)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--batch-delay-ms", type=int, default=10)
    given = parser.parse_args()
    program = Program(given)
    try:
        print(json.dumps(works[given.work](program)), flush=True)
    finally:
        program.close()


if __name__ == "__main__":
    main()
