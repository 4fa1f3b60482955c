"""Waiting until clusters are at rest: nothing moves any more, and all agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from histories.clients import NAMESPACE, POLL_SECONDS, ClusterClients
from histories.judging import Violation
from histories.watch import Late, patient
from replicator.links.gaps import COPY_ANEW

REST_SECONDS: Final = 25.0
STILL_SECONDS: Final = 0.1
"""Time without movement that is needed before clusters count as being at rest."""
STILL_LOOKS: Final = 3
"""Looks without movement that are needed before clusters count as being at rest. A worker answers a look only after the
work that was due before it, however busy the machine is."""


class Settling(ClusterClients):
    """Waits until the clusters of a history are at rest."""

    async def settle_anew(self) -> None:
        """Wait until all clusters are at rest. Copy topics with a gap anew where a link allows that: this deletes the
        topic at its destination. Each other gap ends by its first policy."""
        await self.settle(anew=True)

    async def settle(self, *, anew: bool = False) -> None:
        """Wait until all clusters are at rest. End each gap of a link by its first policy, which loses nothing.

        ``anew`` does what :meth:`settle_anew` says.
        """
        if self.model.down or self.model.paused:
            return
        deadline = time.monotonic() + patient(REST_SECONDS)
        seen: Any = None
        since, looks = time.monotonic(), 0
        while True:
            busy, state = await self._look(anew=anew)
            if busy or state != seen:
                seen, since, looks = state, time.monotonic(), 0
            looks += 1
            if not busy and looks >= STILL_LOOKS and time.monotonic() - since > STILL_SECONDS:
                break
            if time.monotonic() > deadline:
                raise await self._late_or_wrong(f"the clusters do not come to rest: {busy or state}")
            await asyncio.sleep(POLL_SECONDS)
        await self._agree(deadline)
        self.model.settled()
        for each in self.model.subscriptions.values():
            if each.home is None and not each.deleted:
                for cluster in self.shape.clusters:
                    if cluster not in each.excluded and any(
                        self.shape.tells(known, cluster) for known in each.made - each.excluded
                    ):
                        each.clusters.add(cluster)

    async def _look(self, *, anew: bool) -> tuple[str, Any]:
        """Look at all links and topics once. Return a text that says what still moves, and the state of all topics.

        The text is empty if no link is busy. A state that differs from the last one shows that messages were copied. If
        a link has a gap, end the gap.
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
                    await self._resolve(name, link, gap, anew=anew)
                if link["state"] == "paused" and name in self.model.losers:
                    # The disk was lost before other clusters knew that an operator had resumed the link.
                    await self._link(name, link["key"], "resume")
                if link["state"] not in ("idle", "copying"):
                    return f"{link['key']} is {link['state']}: {link['detail']}", None
                if link["gaps"] or link["halted"] or link["backlog_entries"]:
                    return f"{link['key']}: {link['gaps']}, {link['halted']}, {link['backlog_entries']} entries", None
        return "", state

    async def _resolve(self, name: str, link: Mapping[str, Any], gap: Mapping[str, Any], *, anew: bool) -> None:
        own = f"persistent://{NAMESPACE}/{self._name}-"
        topic = gap["topic"].removeprefix(own)
        if gap["topic"].startswith(own):
            self.model.judge_gap(topic, gap["origin"], gap["kind"])
        policies = gap.get("policies", [])
        if not policies:
            raise Violation(f"{link['key']} has a gap that no policy ends: {gap}")
        policy = policies[0]
        if anew and COPY_ANEW in policies and topic in self.model.topics:
            policy, to = COPY_ANEW, link["key"].partition(">")[2]
            await self._forget_producers(to)
            self.model.topic_deleted(topic, to)
        body = {"topic": gap["topic"], "policy": policy}
        await self._link(name, link["key"], "resolve", body, allow=(404, 409))

    async def _link(self, at: str, key: str, verb: str, body: Any = None, *, allow: tuple[int, ...] = ()) -> None:
        """Ask the worker ``at`` to do ``verb`` with its link ``key``. HTTP errors in ``allow`` are right, too."""
        await self._ask(at, "POST", f"/replication/v1/links/{quote(key, safe='')}/{verb}", body, allow=allow)

    async def _agree(self, deadline: float) -> None:
        """Wait until clusters that tell each other acknowledgements agree on every replicated subscription.

        They need to agree only on the messages of origins from which they have the same messages.
        """
        for topic in sorted(self.model.topics):
            of_model = self.model.topic(topic)
            if of_model.void or of_model.trims or of_model.trimmed:
                continue  # clusters have different messages, for good
            while (different := await self._different(topic)) is not None:
                if time.monotonic() > deadline:
                    raise await self._late_or_wrong(f"{topic}: {different}")
                await asyncio.sleep(POLL_SECONDS)

    async def _late_or_wrong(self, what: str) -> Violation:
        """Return a violation by a state that lasts too long: a late one if that may be because workers are busy."""
        return Late(what) if await self._watch.is_busy() else Violation(what)

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
                    there = theirs["subscriptions"][name]
                    for origin in same:
                        if state["digest"].get(origin) != there["digest"].get(origin):
                            return f"{name} of origin {origin} differs between {one} and {other}: {state} {there}"
        return None
