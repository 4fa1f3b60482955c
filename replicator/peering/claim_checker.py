"""Questions of a worker about claims that it was told: it asks the cluster that the claim is about.

Whoever may replicate something can send a claim, such as "cluster A has a newer store". The claim is only a hint. The
worker of the cluster is asked, at its address in the topology, with the credentials and certificates of links. Its
answer counts.

Invariants (DESIGN §3): 8, a cluster that does not answer delays only claims about it; 11, however many hints come, one
question of a kind is under way to a cluster, and a pause follows it.

1. A hint starts a question. Hints that come while it is under way share the next one.
2. The next question begins :data:`PAUSE_SECONDS` after the end of the one before it. After a failure, it begins
   :data:`FAILED_PAUSE_SECONDS` later. So a flood of false hints delays an honest one by one question and one pause.
3. Without an answer nothing changes. Whoever told the claim tries again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp

from replicator.engine.cluster_settings.state import SettingsMessage
from replicator.engine.errors import EngineError, NotAllowedError
from replicator.engine.lineage import StoreLine
from replicator.engine.log.store_tables import HighWater
from replicator.peering.cluster_settings import BODY_BYTES_MAX, OWN_SETTINGS_ROUTE, OwnSettingsTold
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.peering.lives import COPIED_ANEW_ROUTE, OriginMarks
from replicator.running.connecting import UNREADABLE, read_at_most, why_no_answer
from replicator.running.json_by_steps import loads_by_steps
from replicator.running.short_tasks import awaited, heard
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url
from replicator.security.errors import SecurityError
from snapshots.errors import InvalidPosition

PAUSE_SECONDS: Final = 0.2
"""Pause between two questions of one kind to a cluster: five small requests a second at most, whoever sends hints."""
FAILED_PAUSE_SECONDS: Final = 2.0
"""Pause after a question that failed. Its answer may have been large."""
ANSWER_SECONDS_MAX: Final = 5.0
SETTINGS_SECONDS_MAX: Final = 20.0
"""Time for an answer with all settings of a cluster, which may have megabytes."""
COPIES_AT_ONCE: Final = 8
"""Questions about copies that are under way at a time. Each is small."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Largest answer, except one with settings."""
REASON_CHARS_MAX: Final = 300
NO_TOPIC: Final = "none"
"""No topic has this name, so the answer about marks is short."""
_MARKS: Final = "/replication/v1/high-water"

_T = TypeVar("_T")
_Key = tuple[str, ...]


class ClaimNotChecked(EngineError):
    """Error for a claim that was not believed, because the worker that it is about gives no answer."""

    status = 503


class ClaimChecker:
    """Asks the workers of the other clusters about claims. ``own`` is this cluster. All methods run on one event loop.

    Make it in the context that has the worker's credentials. Questions that a request causes then use these, too, and
    not the credentials of the request.
    """

    def __init__(
        self, own: str, *, pause_seconds: float = PAUSE_SECONDS, failed_pause_seconds: float = FAILED_PAUSE_SECONDS
    ) -> None:
        self._own = own
        self._addresses: Mapping[str, str] = {}
        self._pauses = pause_seconds, failed_pause_seconds
        self._context = copy_context()
        self._last: dict[_Key, asyncio.Task[Any]] = {}
        """Last question of each kind, which may be over."""
        self._waiting: dict[_Key, asyncio.Task[Any]] = {}
        """Question of each kind that has not begun."""
        self._free_at: dict[_Key, float] = {}
        """Time from which the next question of each kind may begin."""
        self._copies = asyncio.Semaphore(COPIES_AT_ONCE)

    def change(self, addresses: Mapping[str, str]) -> None:
        """Take new addresses of the other clusters' workers, by cluster. All later questions go to them."""
        self._addresses = dict(addresses)

    async def stop(self) -> None:
        """End the questions that are under way or wait."""
        asked = {*self._waiting.values(), *self._last.values()}
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def check(self, cluster: str) -> None:
        """Raise :class:`NotAllowedError` if ``cluster`` is no other cluster of the topology."""
        if cluster not in self._addresses:
            raise NotAllowedError(
                f"the topology of {self._own!r} has no other cluster {cluster[:100]!r}; give all workers the same "
                "topology file, and run `replicator apply`"
            )

    async def store_line(self, cluster: str, origin: str, told: StoreLine) -> StoreLine:
        """Ask the worker of ``cluster`` for the newest store of ``origin``, and return it if it is the store ``told``.

        If ``origin`` is ``cluster``, its newest store is the one on which the worker runs.

        Raises :class:`ClaimNotChecked`, and :class:`NotAllowedError` if the worker names another store.
        """
        self.check(cluster)
        line = await self.shared(("store", cluster, origin), lambda: self._store_line(cluster, origin))
        if line is None or line.store != told.store:
            raise NotAllowedError(
                f"the announced store {told.store[:100]!r} of {origin!r} is not believed: the worker of {cluster!r} at "
                "the address in the topology, which was asked, names another one"
            )
        return line

    async def settings(self, cluster: str, known: Mapping[str, str]) -> SettingsMessage | None:
        """Ask the worker of ``cluster`` for its settings, and return them; None if nothing was ever set there.

        ``known`` has, for each store of that cluster, the digest of the settings that are kept here. The answer may
        have only what changed since. Raises :class:`ClaimNotChecked` or :class:`NotAllowedError`.
        """
        self.check(cluster)
        params = [("from", self._own), *(("known", f"{digest}:{store}") for store, digest in known.items())]
        status, body = await self._get(cluster, OWN_SETTINGS_ROUTE, params, SETTINGS_SECONDS_MAX, BODY_BYTES_MAX)
        if status != HTTPStatus.OK:
            raise self._refused(cluster, status, body)
        told = await self._read(cluster, lambda: OwnSettingsTold.of_json(body))
        if told.cluster != cluster or (told.told is not None and told.told.head.cluster != cluster):
            raise self._wrong_cluster(cluster, told.cluster)
        return told.told

    async def copied_anew(self, cluster: str, topic: str, told: Mapping[str, HighWater]) -> Mapping[str, HighWater]:
        """Return the marks of ``told`` that the worker of ``cluster`` confirms: it has ``topic`` in full up to them.

        Raises :class:`ClaimNotChecked`, and :class:`NotAllowedError` if no link of that worker wants to copy the topic
        anew to this cluster at this moment.
        """
        self.check(cluster)
        async with self._copies:
            params = [("topic", topic), ("to", self._own)]
            status, body = await self._start(self._get(cluster, COPIED_ANEW_ROUTE, params))
        if status == HTTPStatus.CONFLICT:
            raise NotAllowedError(
                f"the copy of {topic!r} is not deleted to be copied anew: the worker of {cluster}, which was asked, "
                "has no link that copies it anew to this cluster"
            )
        if status != HTTPStatus.OK:
            raise self._refused(cluster, status, body)
        found = (await self._read(cluster, lambda: OriginMarks.from_json(body))).origins
        return {origin: mark for origin, mark in found.items() if told.get(origin) == mark}

    async def shared(self, key: _Key, question: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the answer to a question that begins after this call. Callers with the same ``key`` share it.

        A key is a kind of question with names of clusters of the topology, so there are few.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._start(self._ask_after(self._last.get(key), key, question))
            waiting.add_done_callback(heard)
            self._waiting[key] = self._last[key] = waiting
        answer: _T = await asyncio.shield(waiting)
        return answer

    async def _ask_after(
        self, before: asyncio.Task[Any] | None, key: _Key, question: Callable[[], Coroutine[Any, Any, _T]]
    ) -> _T:
        clock = asyncio.get_running_loop().time
        try:
            if before is not None:
                await asyncio.wait([before])
            await asyncio.sleep(max(0.0, self._free_at.get(key, 0.0) - clock()))
        finally:
            del self._waiting[key]
        pause_seconds, failed_seconds = self._pauses
        self._free_at[key] = clock() + failed_seconds
        answer = await question()
        self._free_at[key] = clock() + pause_seconds
        return answer

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        return self._context.run(awaited, work)

    async def _store_line(self, cluster: str, origin: str) -> StoreLine | None:
        status, body = await self._get(
            cluster, STORE_OF_ROUTE, [("cluster", self._own if cluster == origin else origin)]
        )
        if status == HTTPStatus.OK:
            told = await self._read(cluster, lambda: StoreOf.of_json(body))
            if told.cluster != cluster:
                raise self._wrong_cluster(cluster, told.cluster)
            if cluster != origin:
                return None if told.newest is None else told.newest.line
            if told.own is not None:
                return told.own
        elif status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            raise self._refused(cluster, status, body)
        # a worker of an earlier version names its store with its marks alone
        status, body = await self._get(cluster, _MARKS, [("origin", self._own), ("topic", NO_TOPIC)])
        if status != HTTPStatus.OK:
            raise self._refused(cluster, status, body)
        if body.get("cluster") != cluster:
            raise self._wrong_cluster(cluster, body.get("cluster"))
        if cluster != origin or "store" not in body:
            return None
        return await self._read(cluster, lambda: StoreLine.of_json(body))

    async def _get(
        self,
        cluster: str,
        path: str,
        params: Sequence[tuple[str, str]],
        seconds_max: float = ANSWER_SECONDS_MAX,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> tuple[int, dict[str, Any]]:
        """Send a GET request to the worker of ``cluster``. Return the status and the JSON object of its answer.

        Raises :class:`ClaimNotChecked` if no answer comes, or one that cannot be read, and :class:`NotAllowedError` if
        the topology no longer has the cluster.
        """
        self.check(cluster)  # a reload may have taken it away meanwhile
        address = self._addresses[cluster]
        try:
            async with (
                timeout(seconds_max),
                worker_session() as session,
                session.get(f"{worker_url(address)}{path}", params=params) as response,
            ):
                body = await read_at_most(response, bytes_max)
                answer = await asyncio.to_thread(loads_by_steps, body) if body else {}
                if not isinstance(answer, dict):
                    raise TypeError("it is no object")
                return response.status, answer
        except (aiohttp.ClientError, OSError, TimeoutError, SecurityError) as error:
            raise self._unchecked(cluster, why_no_answer(error, "")) from None
        except UNREADABLE as error:
            raise self._unchecked(cluster, f"its answer cannot be read: {error!r:.100}") from None

    async def _read(self, cluster: str, reading: Callable[[], _T]) -> _T:
        """Return the result of ``reading``, which reads an answer and may take long.

        Raises :class:`ClaimNotChecked` if the answer cannot be read.
        """
        try:
            return await asyncio.to_thread(reading)
        except (*UNREADABLE, InvalidPosition) as error:
            raise self._unchecked(cluster, f"its answer cannot be read: {error!r:.100}") from None

    def _refused(self, cluster: str, status: int, body: Mapping[str, Any]) -> ClaimNotChecked:
        reason = str(body.get("message", ""))[:REASON_CHARS_MAX]
        return self._unchecked(cluster, f"status {status}: {reason or 'it gives no reason'}")

    def _wrong_cluster(self, cluster: str, found: object) -> ClaimNotChecked:
        return self._unchecked(cluster, f"cluster {str(found)[:80]!r} answers there")

    def _unchecked(self, cluster: str, reason: str) -> ClaimNotChecked:
        at = self._addresses.get(cluster, "an unknown address")
        return ClaimNotChecked(
            f"{self._own} believes claims about {cluster} only if its worker, at {at} by the topology, says the same. "
            f"It was asked: {reason}"
        )
