"""Rest of a history: waiting until nothing moves, and judging what every subscription gets at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from histories.clients import FIRST_SECONDS, NAMESPACE, POLL_SECONDS, SURE_SECONDS
from histories.disks import Disks
from histories.model import Subscription, Violation
from histories.steps import PARTED
from histories.traffic import uid_of
from replicator.pipeline.errors import BadOption
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import load_topology

REST_SECONDS: Final = 25.0
STILL_SECONDS: Final = 0.1
"""Time without movement after which clusters count as being at rest."""
STILL_LOOKS: Final = 3
"""Looks without movement. A worker answers each one after everything that was due before, however busy the machine."""


class AtRest(Disks):
    """Comparison of clusters at rest, and the end of a history."""

    async def settle(self) -> None:
        """Wait until all clusters are at rest. End each gap of a link by its first policy, which loses nothing."""
        if self.model.down or self.model.paused:
            return
        deadline = time.monotonic() + REST_SECONDS
        seen: Any = None
        since, looks = time.monotonic(), 0
        while True:
            busy, state = await self._look()
            if busy or state != seen:
                seen, since, looks = state, time.monotonic(), 0
            looks += 1
            if not busy and looks >= STILL_LOOKS and time.monotonic() - since > STILL_SECONDS:
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
        clusters = self.shape.clusters
        answers = await asyncio.gather(
            *(self._ask(name, "GET", f"/replication/v1/{what}") for name in clusters for what in ("links", "topics"))
        )
        for name, links, topics in zip(clusters, answers[::2], answers[1::2], strict=True):
            links, topics = links["links"], topics["topics"]
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
        own = f"persistent://{NAMESPACE}/{self._name}-"
        if gap["topic"].startswith(own):
            self.model.judge_gap(gap["topic"].removeprefix(own), gap["origin"], gap["kind"])
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
        path = f"/replication/v1/ack-vectors?topic={quote(self._full(topic), safe='')}"
        clusters = self.shape.clusters
        found = await asyncio.gather(*(self._ask(name, "GET", path, allow=(404,)) for name in clusters))
        answers = {name: answer for name, answer in zip(clusters, found, strict=True) if answer is not None}
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
        for name in sorted(self.model.without_postgres):
            await self.postgres_back(at=name)
        for source, to in sorted(self.model.paused):
            if source in self.model.down:
                await self.start(at=source)
            await self.resume(source=source, to=to)
        for name in sorted(self.model.down):
            await self.start(at=name)
        await self.settle()
        if self.model.moved:
            for name in sorted(self.model.moved):
                await self.fail_back(to=name)
            await self.settle()
        for cluster in self.shape.clusters:
            left = [
                each
                for each in self.model.subscriptions.values()
                if not each.deleted and cluster in each.clusters and cluster not in each.excluded
            ]
            came = await asyncio.gather(*(self._drain(each, cluster) for each in left))
            if sum(came):
                await self.settle()
        await self._judge_backlogs()
        if self.model.damaged:
            await self._run("verify", "--fix")  # mends blocks that nobody read
        await self._verify()

    async def _judge_backlogs(self) -> None:
        """Raise :class:`Violation` if a cluster says that a subscription has messages left, which received all."""
        for topic in self.model.topics:
            for cluster in self.shape.clusters:
                stats = "partitioned-stats" if topic == PARTED else "stats"
                found = await self._admin(cluster, "GET", f"{self._path(topic)}/{stats}", allow=(404,))
                for each in self.model.of_topic(topic):
                    if (
                        found is None
                        or each.deleted
                        or each.passed_over
                        or cluster not in each.clusters - each.excluded
                    ):
                        continue
                    left = found["subscriptions"].get(each.name, {}).get("msgBacklog", 0)
                    if left:
                        raise Violation(
                            f"{topic} {each.name} at {cluster} has a backlog of {left}, and got all messages"
                        )

    async def _drain(self, subscription: Subscription, at: str) -> int:
        """Receive and acknowledge all messages that a subscription has left, and judge them. Return their number."""
        consumer = await self._consumer(at, subscription.topic, subscription.name, earliest=True)
        got: list[str] = []
        try:
            while True:
                missing = self.model.missing(subscription, at, got)
                first_seconds = SURE_SECONDS if missing else FIRST_SECONDS
                messages = await self._receive(consumer, 1_000, first_seconds=first_seconds)
                if not messages:
                    break
                self._judge(subscription, at, messages)
                got += [uid_of(message) for message in messages]
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
        return len(got)

    async def _verify(self) -> None:
        """Run ``verify`` on all clusters. Raise :class:`Violation` if it finds a fault."""
        topology = load_topology(self.regions.file)
        urls = {name: self.regions.url(name) for name in self.shape.clusters}
        settings = VerifySettings(settle_seconds=3.0)
        topics = [self._full(topic) for topic in self.model.topics if topic != PARTED]
        topics += [f"{self._full(PARTED)}-partition-{number}" for number in range(self.model.partitions)]
        if not topics:
            return
        try:
            report = await asyncio.to_thread(partial(verify, None, urls, topology.links, topics, settings=settings))
        except BadOption:
            return  # no cluster has any of these topics
        if report.findings:
            raise Violation(f"verify finds {report.findings[:5]}")
