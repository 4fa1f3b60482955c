"""Steps of producers and consumers, over sockets."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from histories.clients import CHUNK_BYTES, FIRST_SECONDS, SURE_SECONDS
from histories.judging import Violation
from histories.operating import Operating
from histories.records import Subscription
from histories.steps import NAMED, PARTED, is_replicated
from histories.watch import REQUEST_SECONDS, Late, patient
from replicator.client import Client, Consumer, Message, MessageId, PulsarException, Reader, Timeout
from replicator.client.errors import InvalidAck


def uid_of(message: Message) -> str:
    """Return the unique id that the driver gave to a message; "" if it has none."""
    return message.properties().get("uid", "")


ALL: Final = 10_000
QUIET_SECONDS: Final = 0.4
AGAIN_SECONDS: Final = 1.0
"""Time for which a consumer waits for messages that it acknowledged negatively."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _raised(error: BaseException) -> None:
    """Raise ``error``, as the request did that ended with it."""
    raise error


class Traffic(Operating):
    """Steps of producers and consumers. Each tells the model what was confirmed, and asks it to judge what came."""

    # Publishing.

    def _sending(self, topic: str, at: str, uid: str, key: str | None = None, **more: bool) -> None:
        """Tell the model of a message that is about to be sent, and note the time."""
        self._sent_ms[uid] = _now_ms()
        self.model.sending(topic, at, uid, key, **more)

    async def publish(self, *, at: str, topic: str, how: str, count: int) -> None:
        """Send messages in one of several ways, and wait until they are confirmed."""
        by_key = topic == "keyed" or how in ("keyed", "mixed")
        keys = [f"k{1 + number % 3}" if by_key else None for number in range(count)]
        uids = [self._uid(at) for _ in range(count)]
        for uid, key in zip(uids, keys, strict=True):
            self._sending(topic, at, uid, key, delayed=how == "delayed", chunked=how == "chunks")
        producer = await self._producer(at, topic, how)
        content = {"chunks": b"x" * (3 * CHUNK_BYTES), "compressed": b"y" * 500}.get(how, b"z")
        sends = []
        for uid, key in zip(uids, keys, strict=True):
            is_null = key is None if how == "null" else how == "mixed" and uid == uids[-1]
            value = None if is_null else content
            more: dict[str, Any] = {"deliver_after": timedelta(seconds=0.2)} if how == "delayed" else {}
            sends.append(producer.send(value, properties={"uid": uid}, partition_key=key, **more))
        ids = await self._in_time(asyncio.gather(*sends), f"publishing to {topic} at {at}")
        for uid, stored in zip(uids, ids, strict=True):
            self.model.topic(topic).sent[uid].lane = stored.partition()
        self.model.confirmed(topic, uids)

    async def publish_named(self, *, at: str, producer: str, first: int, count: int, content: str) -> None:
        """Send messages with a given producer name and given sequence ids, as a producer does that changed clusters."""
        made = await self._in_time(
            self._client(at).create_producer(self._full(NAMED), producer_name=producer, batching_enabled=False),
            f"a producer {producer} at {at}",
        )
        try:
            for number in range(first, first + count):
                uid = f"{producer}-{number}" if content == "same" else f"{producer}-{number}-{self._uid(at)}"
                if uid not in self.model.topic(NAMED).sent:
                    self._sending(NAMED, at, uid, delayed=True)
                sent = made.send(b"n", properties={"uid": uid}, sequence_id=number, partition_key=producer)
                stored = await self._in_time(sent, f"publishing {uid} at {at}")
                if not stored.is_duplicate():
                    self.model.confirmed(NAMED, [uid], at)
                    self.model.stored(at, producer, number)
                else:
                    self.model.judge_duplicate(NAMED, at, producer, number, uid)
        finally:
            await made.close()

    async def publish_and_kill(self, *, at: str, topic: str, count: int, after: int) -> None:
        """Kill the worker while messages are on their way to it."""
        uids = [self._uid(at) for _ in range(count)]
        for uid in uids:
            self._sending(topic, at, uid)
        client = Client(self.regions.client_url(at), reconnect=False)
        confirmed: list[str] = []
        enough = asyncio.Event()

        async def send(producer: Any, uid: str) -> None:
            with suppress(PulsarException):
                await producer.send(b"k", properties={"uid": uid})
                confirmed.append(uid)
                if len(confirmed) > after:
                    enough.set()

        producer = await client.create_producer(
            self._full(topic), batching_max_messages=3, batching_max_publish_delay_ms=1
        )
        sends = [asyncio.create_task(send(producer, uid)) for uid in uids]
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 0.5)
        await self.kill(at=at)
        await asyncio.gather(*sends)
        self.model.confirmed(topic, confirmed)
        with suppress(PulsarException):
            await client.close()

    # Consuming.

    async def subscribe_apart(self, *, at: str, other: str, topic: str, name: str, count: int) -> None:
        """Pause all links, make the same subscription at two clusters, and resume the links.

        The subscription starts at the earliest message at one cluster, and at the latest at the other one.
        """
        parted = [link for link in self.shape.links if link not in self.model.paused]
        for source, to in parted:
            await self.pause(source=source, to=to)
        await self.subscribe(at=at, topic=topic, name=name, earliest=True)
        await self.consume(at=at, topic=topic, name=name, count=count, how="each", seed=0)
        await self.subscribe(at=other, topic=topic, name=name, earliest=False)
        for source, to in parted:
            await self.resume(source=source, to=to)

    async def unsubscribe_in_use(self, *, at: str, other: str, topic: str, name: str) -> None:
        """Try to delete a subscription at ``at`` while a consumer uses it at cluster ``other``.

        Raise :class:`Violation` unless the deletion is refused, or nothing is found to delete.
        """
        consumer = await self._consumer(other, topic, name, earliest=True)
        try:
            status = await self._status(at, "DELETE", f"/admin/v2/persistent/{self._path(topic)}/subscription/{name}")
        finally:
            await consumer.close()
        known = self._known(topic, name, at)
        is_moved = known.untold is not None or known.unsettled_seek is not None
        if self._official and is_moved and status in (200, 204):
            self.model.unsubscribed(known)  # the move disconnected the official consumer, which connects again
        elif status not in (404, 412):
            raise Violation(f"{at} deleted {topic} {name}, which has a consumer at {other}: it answered {status}")

    async def rest(self, *, at: str, topic: str, name: str) -> None:
        """Do nothing for a moment, and then consume one message. Nothing else wakes a task that sleeps too long."""
        await asyncio.sleep(QUIET_SECONDS)
        await self.consume(at=at, topic=topic, name=name, count=1, how="each", seed=0)

    async def subscribe(self, *, at: str, topic: str, name: str, earliest: bool) -> None:
        """Connect a consumer to a subscription, and disconnect it. This creates the subscription if there is none."""
        known = self.model.find(topic, name, at, replicated=is_replicated(name))
        if known is not None and known.deleted:
            return
        consumer = await self._consumer(at, topic, name, earliest=earliest)
        self.model.subscribed(topic, name, at, replicated=is_replicated(name), earliest=earliest)
        await consumer.close()

    async def subscribe_at(self, *, at: str, topic: str, name: str, place: int, excluded: bool) -> None:
        """Create a subscription by an operator's request. It begins at message number ``place`` of those
        that a reader gets, or behind that message if ``excluded`` is set."""
        read = await self._read(at, topic, compacted=False)
        self.model.judge_read(topic, at, {uid_of(message) for message in read})
        ids = [(message.message_id().ledger_id(), message.message_id().entry_id()) for message in read]
        chosen = ids[place % len(ids)] if ids else (-1, -1)
        replicated = is_replicated(name)
        path = f"/admin/v2/persistent/{self._path(topic)}/subscription/{name}?replicated={str(replicated).lower()}"
        body = {"ledgerId": chosen[0], "entryId": chosen[1], "excluded": excluded and bool(ids)}
        await self._ask(at, "PUT", path, body)
        uids = [uid_of(message) for message in read]
        behind = {
            uid for uid, each in zip(uids, ids, strict=True) if each > chosen or (each == chosen and not excluded)
        }
        before = set(uids) - behind
        self.model.subscribed_at(topic, name, at, replicated=replicated, before=before, behind=behind)

    async def consume(self, *, at: str, topic: str, name: str, count: int, how: str, seed: int) -> None:
        """Receive some messages, and acknowledge them in one of several ways."""
        subscription = self._known(topic, name, at)
        # Partitions that were added have the subscription from their first message on, whatever a consumer asks for.
        earliest = topic != PARTED or at in self.model.behind
        consumer = await self._consumer(at, topic, name, earliest=earliest)
        try:
            waiting = self.model.is_waiting(subscription, at)
            got = await self._receive(consumer, count, first_seconds=SURE_SECONDS if waiting else FIRST_SECONDS)
            self._judge(subscription, at, got)
            again = consumer in self._asked_again
            self.model.judge_session(subscription, at, [uid_of(message) for message in got], redelivered=again)
            await self._acknowledge(subscription, consumer, at, got, how, random.Random(seed))
        finally:
            await consumer.close()

    async def consume_all(self, *, at: str, topic: str) -> None:
        """Consume all messages of all subscriptions of a topic at one cluster, let retention pass, and read the
        topic."""
        for each in list(self.model.of_topic(topic)):
            if not each.deleted and each.is_at(at) and at in each.clusters - each.excluded:
                await self.consume(at=at, topic=topic, name=each.name, count=ALL, how="each", seed=0)
        await self.trim(at=at, topic=topic)
        await self.last_message(at=at, topic=topic)

    async def compact_and_read(self, *, at: str, topic: str) -> None:
        """Compact a topic, and read it at once. So its last message may be one that compaction removed."""
        await self.compact(at=at, topic=topic)
        await self.last_message(at=at, topic=topic)

    async def _acknowledge(
        self,
        subscription: Subscription,
        consumer: Consumer,
        at: str,
        got: list[Message],
        how: str,
        drawn: random.Random,
    ) -> None:
        if how == "nothing" or not got:
            return
        if how == "negative":
            for message in got:
                await consumer.negative_acknowledge(message)
            got = await self._receive(consumer, len(got), first_seconds=AGAIN_SECONDS)
            self._judge(subscription, at, got)
            how = "each"
        if how == "cumulative" and subscription.name.endswith(("exclusive", "failover")):
            last = drawn.randrange(len(got))
            partition = got[last].message_id().partition()  # it counts in its own partition alone
            chosen = [message for message in got[: last + 1] if message.message_id().partition() == partition]
            acks = [consumer.acknowledge_cumulative(got[last])]
        else:
            share = {"some": 0.5, "half batches": 0.5}.get(how, 1.0)
            chosen = [message for message in got if drawn.random() < share]
            acks = [consumer.acknowledge(message) for message in chosen]
        answers = await self._in_time(asyncio.gather(*acks, return_exceptions=True), f"acknowledging at {at}")
        refused = [isinstance(answer, InvalidAck) for answer in answers]
        if any(refused) and subscription.unsettled_seek is not None:  # perhaps there were several, the last one here
            # A seek at another cluster arrived meanwhile. An acknowledgement on its way then counts, or does not.
            each = refused if len(refused) == len(chosen) else refused * len(chosen)
            subscription.forget(uid_of(message) for message, is_refused in zip(chosen, each, strict=True) if is_refused)
            chosen = [message for message, is_refused in zip(chosen, each, strict=True) if not is_refused]
            answers = [answer for answer in answers if not isinstance(answer, InvalidAck)]
        for answer in answers:
            if isinstance(answer, BaseException):
                await self._in_time(_raised(answer), f"acknowledging at {at}")
        chosen_uids = {uid_of(message) for message in chosen}
        self.model.acknowledged(subscription, at, chosen_uids, confirmed=not self._official)

    def _judge(self, subscription: Subscription, at: str, got: list[Message]) -> None:
        for message in got:
            self.model.judge_delivery(subscription, at, uid_of(message))

    async def seek(self, *, at: str, topic: str, name: str, earliest: bool) -> None:
        """Put a subscription back to the first message, or forward behind the last."""
        subscription = self._known(topic, name, at)
        consumer = await self._consumer(at, topic, name, earliest=True)
        try:
            to = MessageId.earliest if earliest else MessageId.latest
            await self._in_time(consumer.seek(to), f"seeking {name} at {at}")
            self.model.sought(subscription, at, after=0 if earliest else None)
        finally:
            await consumer.close()

    async def reset_by_time(self, *, at: str, topic: str, name: str, after: int) -> None:
        """Put a subscription to the time at which the topic had ``after`` messages, by an operator's request. Each
        message that was sent later must come."""
        later = list(self.model.topic(topic).sent)[after:]
        ms = self._sent_ms[later[0]] if later else _now_ms()
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/resetcursor/{ms}")
        self.model.sought(self._known(topic, name, at), at, after=after)

    async def make_anew(self, *, at: str, topic: str) -> None:
        """Delete a topic at one cluster and make it anew there. Read it after all clusters have come to rest."""
        await self.delete_topic(at=at, topic=topic)
        await self.subscribe(at=at, topic=topic, name="l-shared", earliest=True)
        await self.settle()
        await self.last_message(at=at, topic=topic)

    def _absent(self, at: str) -> tuple[int, ...]:
        """Return the HTTP errors that are right because ``at`` may lack subscriptions after it lost its disk."""
        return (404,) if at in self.model.behind else ()

    async def skip(self, *, at: str, topic: str, name: str, count: int) -> None:
        """Skip the next ``count`` messages of a subscription, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/skip/{count}", allow=self._absent(at))
        self.model.passed_over(self._known(topic, name, at))

    async def clear(self, *, at: str, topic: str, name: str) -> None:
        """Skip all messages of a subscription, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/skip_all", allow=self._absent(at))
        self.model.passed_over(self._known(topic, name, at))

    async def expire(self, *, at: str, topic: str, name: str) -> None:
        """Skip the messages of a subscription that are older than a second, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/expireMessages/1", allow=(409, 404))
        self.model.passed_over(self._known(topic, name, at))

    async def unsubscribe(self, *, at: str, topic: str, name: str) -> None:
        """Delete a subscription."""
        await self._admin(at, "DELETE", f"{self._path(topic)}/subscription/{name}", allow=(404, 412))
        self.model.unsubscribed(self._known(topic, name, at))

    async def last_message(self, *, at: str, topic: str) -> None:
        """Read a topic to its end, as it is and compacted. Each message that is said to be available must come."""
        whole = await self._read(at, topic, compacted=False)
        self.model.judge_read(topic, at, {uid_of(message) for message in whole})
        compacted = await self._read(at, topic, compacted=True)
        newest = {message.partition_key(): message for message in whole if message.partition_key()}
        kept = {uid_of(message) for message in newest.values() if message.data()}
        self.model.judge_compacted(topic, at, kept, {uid_of(message) for message in compacted})

    async def _read(self, at: str, topic: str, *, compacted: bool) -> list[Message]:
        """Return all messages of a topic, or those that are left of them after compaction."""
        where = f"{topic} at {at}{' compacted' if compacted else ''}"
        reader: Reader = await self._in_time(
            self._client(at).create_reader(self._full(topic), MessageId.earliest, is_read_compacted=compacted),
            f"a reader of {where}",
        )
        got: list[Message] = []
        try:
            while await self._in_time(reader.has_message_available(), f"asking for the end of {where}"):
                got.append(await self._read_surely(reader, where))
        finally:
            await reader.close()
        return got

    async def _read_surely(self, reader: Reader, where: str) -> Message:
        """Return the next message, which must come. Wait for it until no worker works any more."""
        deadline = time.monotonic() + patient(REQUEST_SECONDS)
        while True:
            with suppress(Timeout):
                return await reader.read_next(timeout_millis=int(SURE_SECONDS * 1000))
            what = f"{where} says that a message is available, and none comes"
            if not await self._watch.is_busy():
                raise Violation(what)
            if time.monotonic() > deadline:
                raise Late(what)
