"""World of a history: carries out its steps on real worker processes, with clients over sockets.

:class:`World` has a method for each step. It tells the model what was confirmed, and asks it to judge what came.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import forked_commands
from postgres_support import databases_of, served_postgres, traversable_directory

from histories.clients import (
    CHUNK_BYTES,
    FIRST_SECONDS,
    NAMESPACE,
    POLL_SECONDS,
    ClusterClients,
    Deduplicating,
    Regions,
)
from histories.model import Shape, Subscription, Violation
from histories.steps import NAMED, is_replicated
from replicator.client import (
    Client,
    Consumer,
    Message,
    MessageId,
    PulsarException,
    Reader,
    Timeout,
)
from replicator.pipeline.errors import BadOption
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import load_topology

REST_SECONDS: Final = 25.0
STILL_SECONDS: Final = 0.3
"""Time without movement after which clusters count as being at rest."""


class World(ClusterClients):
    """The clusters of one history, their clients, and the model."""

    # Publishing.

    async def publish(self, *, at: str, topic: str, how: str, count: int) -> None:
        """Send messages in one of several ways, and wait until they are confirmed."""
        keys = [f"k{1 + number % 3}" if topic == "keyed" or how == "keyed" else None for number in range(count)]
        uids = [self._uid(at) for _ in range(count)]
        for uid, key in zip(uids, keys, strict=True):
            self.model.sending(topic, at, uid, key, delayed=how == "delayed")
        producer = await self._producer(at, topic, how)
        content = {"chunks": b"x" * (3 * CHUNK_BYTES), "compressed": b"y" * 500}.get(how, b"z")
        sends = []
        for uid, key in zip(uids, keys, strict=True):
            value = None if how == "null" and key is None else content
            more: dict[str, Any] = {"deliver_after": timedelta(seconds=0.2)} if how == "delayed" else {}
            sends.append(producer.send(value, properties={"uid": uid}, partition_key=key, **more))
        await self._in_time(asyncio.gather(*sends), f"publishing to {topic} at {at}")
        self.model.confirmed(topic, uids)

    async def publish_named(self, *, at: str, producer: str, first: int, count: int, content: str) -> None:
        """Send messages with a producer's name and sequence ids of their own, as a producer that moved does."""
        made = await self._in_time(
            self._client(at).create_producer(self._full(NAMED), producer_name=producer, batching_enabled=False),
            f"a producer {producer} at {at}",
        )
        try:
            for number in range(first, first + count):
                uid = f"{producer}-{number}" if content == "same" else f"{producer}-{number}-{self._uid(at)}"
                if uid not in self.model.topic(NAMED).sent:
                    self.model.sending(NAMED, at, uid, delayed=True)
                sent = made.send(b"n", properties={"uid": uid}, sequence_id=number)
                stored = await self._in_time(sent, f"publishing {uid} at {at}")
                if not stored.is_duplicate():
                    self.model.confirmed(NAMED, [uid])
                    self.model.stored(at, producer, number)
                else:
                    self.model.judge_duplicate(NAMED, at, producer, number, uid)
        finally:
            await made.close()

    async def publish_and_kill(self, *, at: str, topic: str, count: int, after: int) -> None:
        """Kill the worker while messages are on their way to it."""
        uids = [self._uid(at) for _ in range(count)]
        for uid in uids:
            self.model.sending(topic, at, uid)
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

    async def subscribe(self, *, at: str, topic: str, name: str, earliest: bool) -> None:
        """Connect a consumer to a subscription, which creates it if there is none, and disconnect."""
        known = self.model.find(topic, name, at, replicated=is_replicated(name))
        if known is not None and known.deleted:
            return
        consumer = await self._consumer(at, topic, name, earliest=earliest)
        self.model.subscribed(topic, name, at, replicated=is_replicated(name), earliest=earliest)
        await consumer.close()

    async def consume(self, *, at: str, topic: str, name: str, count: int, how: str, seed: int) -> None:
        """Receive some messages, and acknowledge them in one of several ways."""
        subscription = self._known(topic, name, at)
        consumer = await self._consumer(at, topic, name, earliest=True)
        try:
            got = await self._receive(consumer, count)
            self._judge(subscription, at, got)
            again = consumer in self._asked_again
            self.model.judge_session(subscription, at, [_uid(message) for message in got], redelivered=again)
            await self._acknowledge(subscription, consumer, at, got, how, random.Random(seed))
        finally:
            await consumer.close()

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
            got = await self._receive(consumer, len(got), first_seconds=1.0)
            self._judge(subscription, at, got)
            how = "each"
        if how == "cumulative" and subscription.name.endswith(("exclusive", "failover")):
            last = drawn.randrange(len(got))
            chosen = got[: last + 1]
            await self._in_time(consumer.acknowledge_cumulative(got[last]), f"acknowledging at {at}")
        else:
            share = {"some": 0.5, "half batches": 0.5}.get(how, 1.0)
            chosen = [message for message in got if drawn.random() < share]
            acks = [consumer.acknowledge(message) for message in chosen]
            await self._in_time(asyncio.gather(*acks), f"acknowledging at {at}")
        self.model.acknowledged(subscription, at, {_uid(message) for message in chosen})

    def _judge(self, subscription: Subscription, at: str, got: list[Message]) -> None:
        for message in got:
            self.model.judge_delivery(subscription, at, _uid(message))

    async def seek(self, *, at: str, topic: str, name: str, earliest: bool) -> None:
        """Put a subscription back to the first message, or forward behind the last."""
        subscription = self._known(topic, name, at)
        consumer = await self._consumer(at, topic, name, earliest=True)
        try:
            to = MessageId.earliest if earliest else MessageId.latest
            await self._in_time(consumer.seek(to), f"seeking {name} at {at}")
            self.model.sought(subscription, at, earliest=earliest)
        finally:
            await consumer.close()

    async def skip(self, *, at: str, topic: str, name: str, count: int) -> None:
        """Skip the next ``count`` messages of a subscription, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/skip/{count}")
        self.model.passed_over(self._known(topic, name, at))

    async def clear(self, *, at: str, topic: str, name: str) -> None:
        """Skip all messages of a subscription, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/skip_all")
        self.model.passed_over(self._known(topic, name, at))

    async def expire(self, *, at: str, topic: str, name: str) -> None:
        """Expire messages of a subscription that are older than a second, by an operator's request."""
        await self._admin(at, "POST", f"{self._path(topic)}/subscription/{name}/expireMessages/1", allow=(409, 404))
        self.model.passed_over(self._known(topic, name, at))

    async def unsubscribe(self, *, at: str, topic: str, name: str) -> None:
        """Delete a subscription."""
        await self._admin(at, "DELETE", f"{self._path(topic)}/subscription/{name}", allow=(404, 412))
        self.model.unsubscribed(self._known(topic, name, at))

    async def last_message(self, *, at: str, topic: str) -> None:
        """Read a topic to its end. While a message is said to be available, one must come."""
        for compacted in (False, True):
            reader: Reader = await self._in_time(
                self._client(at).create_reader(self._full(topic), MessageId.earliest, is_read_compacted=compacted),
                f"a reader of {topic} at {at}",
            )
            try:
                while await self._in_time(reader.has_message_available(), f"asking for the end of {topic} at {at}"):
                    try:
                        await reader.read_next(timeout_millis=3_000)
                    except Timeout:
                        raise Violation(f"{topic} at {at} says that a message is available, and none comes") from None
            finally:
                await reader.close()

    # Topics and links.

    async def compact(self, *, at: str, topic: str) -> None:
        """Compact a topic, and wait for the end of it."""
        await self._admin(at, "PUT", f"{self._path(topic)}/compaction", allow=(404, 409))

        async def done() -> bool:
            found = await self._admin(at, "GET", f"{self._path(topic)}/compaction", allow=(404,))
            return found is None or found.get("status") != "RUNNING"

        await self._until(done, f"compaction of {topic} at {at}")

    async def retain_nothing(self, *, topic: str) -> None:
        """Set the retention of a topic to nothing, at every cluster that has the topic."""
        body = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        for name in self.shape.clusters:
            path = f"/admin/v2/persistent/{self._path(topic)}/retention"
            await self._ask(name, "POST", path, body, allow=(404,))
        self.model.trims(topic)

    async def trim(self, *, at: str, topic: str) -> None:
        """Delete messages of a topic that the retention policy does not keep."""
        await self._admin(at, "POST", f"{self._path(topic)}/trim", allow=(404,))

    async def delete_topic(self, *, at: str, topic: str) -> None:
        """Delete a topic at one cluster, with its subscriptions there."""
        await self._forget_producers(at)
        await self._admin(at, "DELETE", f"{self._path(topic)}?force=true", allow=(404,))
        self.model.topic_deleted(topic, at)

    async def pause(self, *, source: str, to: str) -> None:
        """Pause a link."""
        await self._link(source, to, "pause")
        self.model.paused.add((source, to))

    async def resume(self, *, source: str, to: str) -> None:
        """Let a paused link go on."""
        await self._link(source, to, "resume")
        self.model.paused.discard((source, to))

    async def _link(self, source: str, to: str, verb: str) -> None:
        key = quote(f"{source}>{to}", safe="")
        await self._ask(source, "POST", f"/replication/v1/links/{key}/{verb}")

    # Workers.

    async def stop(self, *, at: str) -> None:
        """Stop a worker in good order."""
        await self._leave(at)
        await asyncio.to_thread(self.regions.stop_one, at)
        self.model.down.add(at)

    async def kill(self, *, at: str) -> None:
        """Kill a worker by SIGKILL."""
        self.regions.kill(at)
        self.model.down.add(at)
        await self._leave(at)

    async def start(self, *, at: str) -> None:
        """Start a worker that was stopped or killed."""
        await asyncio.to_thread(self.regions.start, at)
        self.model.down.discard(at)

    async def fail_over(self, *, source: str, to: str) -> None:
        """Move the clients of a cluster by a planned failover, which leaves nothing behind."""
        await self._leave(source)
        await self._command("failover", "--from", source, "--to", to, "--planned")
        self.model.failed_over(source, to, planned=True)

    async def fail_over_dead(self, *, source: str, to: str) -> None:
        """Kill a cluster, and move its clients by an unplanned failover."""
        await self.kill(at=source)
        await self._command("failover", "--from", source, "--to", to, "--unplanned")
        self.model.failed_over(source, to, planned=False)

    async def fail_back(self, *, to: str) -> None:
        """Let a cluster serve its own clients again."""
        for name in self.shape.clusters:
            await self._leave(name)
        await self._command("failback", "--to", to)
        self.model.failed_back(to)

    async def lose_disk(self, *, at: str) -> None:
        """Kill a worker, delete its directory, and start it. It takes back its messages from other clusters."""
        await self.kill(at=at)
        shutil.rmtree(self.regions.path / f"data-{at}")
        self.model.disk_lost(at)
        await self.start(at=at)

    async def _command(self, command: str, *rest: str) -> Any:
        """Run a command as an operator does. It must succeed."""
        words = (command, *rest, "-f", str(self.regions.file), "--output", "json")
        done = await asyncio.to_thread(partial(forked_commands.run, *words, cwd=self.regions.path, timeout=90))
        if done.returncode:
            raise Violation(
                f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-1500:]} {done.stderr[-1500:]}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else None

    # At rest.

    async def settle(self) -> None:
        """Wait until all clusters are at rest. End each gap of a link by its first policy, which loses nothing."""
        if self.model.down or self.model.paused:
            return
        deadline = time.monotonic() + REST_SECONDS
        seen: Any = None
        since = time.monotonic()
        while True:
            busy, state = await self._look()
            if busy or state != seen:
                seen, since = state, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS:
                break
            if time.monotonic() > deadline:
                raise Violation(f"the clusters do not come to rest: {busy or state}")
            await asyncio.sleep(POLL_SECONDS)
        await self._agree(deadline)
        self.model.settled()
        for each in self.model.subscriptions.values():
            if each.home is None and not each.deleted:
                for cluster in self.shape.clusters:
                    if cluster not in each.excluded and any(self.shape.tells(known, cluster) for known in each.made):
                        each.clusters.add(cluster)

    async def _look(self) -> tuple[str, Any]:
        """Return a text that names what still moves, and the state of all clusters. End the gaps of links.

        The text is empty if nothing moves. The state changes while messages are copied.
        """
        state = []
        for name in self.shape.clusters:
            links = (await self._ask(name, "GET", "/replication/v1/links"))["links"]
            topics = (await self._ask(name, "GET", "/replication/v1/topics"))["topics"]
            own = f"{NAMESPACE}/{self._name}-"
            state.append([(topic["name"], topic["entries"], topic["lac"]) for topic in topics if own in topic["name"]])
            for link in links:
                for gap in link["gaps"]:
                    await self._resolve(name, link, gap)
                if link["state"] not in ("idle", "copying"):
                    return f"{link['key']} is {link['state']}: {link['detail']}", None
                if link["gaps"] or link["halted"] or link["backlog_entries"]:
                    return f"{link['key']}: {link['gaps']}, {link['halted']}, {link['backlog_entries']} entries", None
        return "", state

    async def _resolve(self, name: str, link: Mapping[str, Any], gap: Mapping[str, Any]) -> None:
        policies = gap.get("policies", [])
        if not policies:
            raise Violation(f"{link['key']} has a gap that no policy ends: {gap}")
        key = quote(link["key"], safe="")
        body = {"topic": gap["topic"], "policy": policies[0]}
        await self._ask(name, "POST", f"/replication/v1/links/{key}/resolve", body, allow=(404, 409))

    async def _agree(self, deadline: float) -> None:
        """Wait until clusters that tell each other acknowledgements agree on every replicated subscription.

        They must agree on each origin of which they have the same messages.
        """
        for topic in sorted(self.model.topics):
            if self.model.topic(topic).void or self.model.topic(topic).trims:
                continue  # clusters have different messages, for good
            while (different := await self._different(topic)) is not None:
                if time.monotonic() > deadline:
                    raise Violation(f"{topic}: {different}")
                await asyncio.sleep(POLL_SECONDS)

    async def _different(self, topic: str) -> str | None:
        answers: dict[str, Any] = {}
        for name in self.shape.clusters:
            path = f"/replication/v1/ack-vectors?topic={quote(self._full(topic), safe='')}"
            found = await self._ask(name, "GET", path, allow=(404,))
            if found is not None:
                answers[name] = found
        for one, its in answers.items():
            for other, theirs in answers.items():
                if one == other or not (self.shape.tells(one, other) and self.shape.tells(other, one)):
                    continue
                for name, state in its["subscriptions"].items():
                    if name not in theirs["subscriptions"]:
                        return f"{other} lacks the replicated subscription {name} of {one}"
                    same = {
                        origin for origin, mark in its["high_water"].items() if theirs["high_water"].get(origin) == mark
                    }
                    there = theirs["subscriptions"][name]["digest"]
                    for origin in same:
                        if state["digest"].get(origin) != there.get(origin):
                            return f"{name} of origin {origin} differs between {one} and {other}: {state} {there}"
        return None

    async def finish(self) -> None:
        """Heal everything, come to rest, and judge what every subscription gets."""
        for source, to in sorted(self.model.paused):
            if source in self.model.down:
                await self.start(at=source)
            await self.resume(source=source, to=to)
        for name in sorted(self.model.down):
            await self.start(at=name)
        await self.settle()
        for name in sorted(self.model.moved):
            await self.fail_back(to=name)
        await self.settle()
        for cluster in self.shape.clusters:
            left = [
                each
                for each in self.model.subscriptions.values()
                if not each.deleted and cluster in each.clusters and cluster not in each.excluded
            ]
            if left:
                await asyncio.gather(*(self._drain(each, cluster) for each in left))
                await self.settle()
        await self._verify()

    async def _drain(self, subscription: Subscription, at: str) -> None:
        """Receive and acknowledge all messages that a subscription has left, and judge them."""
        consumer = await self._consumer(at, subscription.topic, subscription.name, earliest=True)
        got: list[str] = []
        try:
            while True:
                missing = self.model.missing(subscription, at, got)
                messages = await self._receive(consumer, 1_000, first_seconds=3.0 if missing else FIRST_SECONDS)
                if not messages:
                    break
                self._judge(subscription, at, messages)
                got += [_uid(message) for message in messages]
                await self._in_time(
                    asyncio.gather(*(consumer.acknowledge(message) for message in messages)), f"acknowledging at {at}"
                )
            self.model.judge_session(subscription, at, got, redelivered=consumer in self._asked_again)
            if missing := self.model.missing(subscription, at, got):
                where = f"{subscription.topic} {subscription.name} at {at}"
                raise Violation(f"{where} never got {', '.join(missing[:10])} ({len(missing)}); it got {got}")
            self.model.acknowledged(subscription, at, set(got))
        finally:
            await consumer.close()

    async def _verify(self) -> None:
        """Run ``verify`` on all clusters. Raise :class:`Violation` if it finds a fault."""
        topology = load_topology(self.regions.file)
        urls = {name: self.regions.url(name) for name in self.shape.clusters}
        settings = VerifySettings(settle_seconds=3.0)
        topics = [self._full(topic) for topic in self.model.topics]
        if not topics:
            return
        try:
            report = await asyncio.to_thread(partial(verify, None, urls, topology.links, topics, settings=settings))
        except BadOption:
            return  # no cluster has any of these topics
        if report.findings:
            raise Violation(f"verify finds {report.findings[:5]}")


def _uid(message: Message) -> str:
    return message.properties().get("uid", "")


@asynccontextmanager
async def regions_of(
    shape: Shape, path: Path, databases: Mapping[str, str], *, deduplication: bool
) -> AsyncIterator[Regions]:
    """Start the clusters of a shape in ``path``."""
    links = ", ".join(
        f"{{from: {source}, to: {to}{', forward: true' if shape.forwards else ''}}}" for source, to in shape.links
    )
    kind = Deduplicating if deduplication else Regions
    regions = kind(path, shape.clusters, f"[{links}]", databases)
    try:
        await asyncio.to_thread(regions.start, *shape.clusters)
        yield regions
    finally:
        regions.stop()


@asynccontextmanager
async def world(regions: Regions, shape: Shape, *, name: str = "h") -> AsyncIterator[World]:
    """Begin a history on clusters that run."""
    made = World(shape, regions, deduplication=regions.deduplication, name=name)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def history(shape: Shape, *, deduplication: bool = False) -> AsyncIterator[World]:
    """Start clusters of its own for one history, as programs of shrunk histories do."""
    with served_postgres() as server, traversable_directory() as path:
        path.chmod(0o755)  # as root, the server of the database runs as another user
        with databases_of("".join(shape.clusters), server, "history") as databases:
            made = regions_of(shape, path, databases, deduplication=deduplication)
            async with made as regions, world(regions, shape) as begun:
                yield begun
