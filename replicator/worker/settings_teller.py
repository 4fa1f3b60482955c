"""Tells other workers that the policies and permissions of this cluster changed, and asks for those that it lost.

Invariants (DESIGN §3): 8, a worker that is away delays only itself; 11, one message is under way to each worker.

1. When a row changed, its version is stored, and each other worker gets a hint with the version. It asks back for the
   rows (:mod:`replicator.api.cluster_settings`).
2. A worker whose state is not known gets a hint, too; that costs a few hundred bytes if it has this version. This is so
   after a start, after a failure, after its link to this cluster opened, and every :data:`LOOK_SECONDS`.
3. After a new store took back settings, each worker that was silent then is asked once it answers. If it keeps settings
   that were set later, those count, as long as nobody set anything here meanwhile; otherwise the status names them. It
   also names settings that those in effect never knew, here or there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import aiohttp
import structlog

from replicator.engine.cluster_settings.own import TAKEN
from replicator.engine.cluster_settings.putting_back import note_without, put_back, store_inactive
from replicator.engine.cluster_settings.state import STORES_MAX, KeptState, Verdict, taken_back
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.peering.cluster_settings import BODY_BYTES_MAX, SETTINGS_ROUTE, HintAnswer, SettingsHint, SettingsKept
from replicator.running.connecting import UNREADABLE, read_at_most, why_no_answer
from replicator.running.json_by_steps import loads_by_steps
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url

LOOK_SECONDS: Final = 60.0
"""Time between two questions to a worker whether it still has the version that it was told."""
RETRY_SECONDS: Final = 5.0
TELL_SECONDS_MAX: Final = 30.0
KEPT_BYTES_MAX: Final = STORES_MAX * BODY_BYTES_MAX
"""Largest answer with the settings that a worker keeps of all stores of a cluster."""
GATHER_SECONDS: Final = 0.1
"""Time in which changes are gathered, so that a script that sets many policies causes few messages."""

log = structlog.get_logger(__name__)


class SettingsNotSent(Exception):
    """Another worker does not answer, or does not keep the settings."""


class SettingsPublisher:
    """Tells the settings of ``engine``'s cluster. ``on_put_back`` is called after settings were put back later than at
    the start."""

    def __init__(self, engine: Engine, on_put_back: Callable[[], None] = lambda: None) -> None:
        self.engine = engine
        self.on_put_back = on_put_back
        self.noting = asyncio.Lock()
        """Held while the note about what was taken back changes."""
        self._changed = asyncio.Event()
        self._peers: dict[str, _Peer] = {}
        self._running = False
        self._task = engine.supervisor.task("settings", "settings of this cluster", self._run)
        engine.cluster_settings.changed.on_changed = self._changed.set

    async def change(self, addresses: Mapping[str, str]) -> None:
        """Tell the workers at ``addresses`` from now on, by cluster; this cluster is not among them."""
        gone = [peer for name, peer in self._peers.items() if addresses.get(name) != peer.address]
        await asyncio.gather(*(peer.task.stop() for peer in gone))
        for peer in gone:
            del self._peers[peer.name]
        for name, address in addresses.items():
            if name not in self._peers:
                self._peers[name] = peer = _Peer(self, name, address)
                if self._running:
                    peer.task.start()

    async def start(self) -> None:
        """Begin to tell. Returns when this cluster's version is known."""
        with suppress(EngineError):  # it is tried again
            await self.settle()
        self._running = True
        self._task.start()
        for peer in self._peers.values():
            peer.task.start()

    async def stop(self) -> None:
        self._running = False
        self.engine.cluster_settings.changed.on_changed = lambda: None
        await asyncio.gather(self._task.stop(), *(peer.task.stop() for peer in self._peers.values()))

    def opened(self, cluster: str) -> None:
        """Ask ``cluster`` again: its link to this cluster has opened, so it may have started anew."""
        if (peer := self._peers.get(cluster)) is not None:
            peer.forget()

    async def settle(self) -> None:
        """Store the next version if rows changed, and tell each peer. Raises errors of the store."""
        await self.engine.cluster_settings.settle()
        for peer in self._peers.values():
            peer.wake()

    def status(self) -> dict[str, Any]:
        """Return the version here, what each other worker has of it, and what was taken back at the start."""
        own, kept = self.engine.cluster_settings, self.engine.kept_settings
        note = self.engine.store.meta(TAKEN)
        waits = note is not None and (note["silent"] or note.get("newer") or note.get("passed_over"))
        return {
            "version": own.version,
            "told": {name: {"kept": peer.kept, "reason": peer.reason} for name, peer in self._peers.items()},
            "kept_of": {
                cluster: max(head.version for head in kept.of(cluster))
                for cluster, _ in kept.heads
                if cluster != self.engine.cluster  # what was replaced here
            },
            "taken_back": note if waits or note is None else {**note, "permissions": []},
        }

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            try:
                await self.settle()
            except EngineError as error:
                log.warning("settings have no version yet", cluster=self.engine.cluster, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()


class _Peer:
    """One other worker, with what it has of this cluster's settings."""

    def __init__(self, teller: SettingsPublisher, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.reason = ""
        """Why it was not told; empty if nothing is wrong."""
        self._teller = teller
        self._engine = teller.engine
        self._kept: str | None = None
        """Digest of the settings that it keeps; None if that is not known."""
        self._wake = asyncio.Event()
        self.task = self._engine.supervisor.task("settings", f"settings told to {name}", self._run)

    @property
    def kept(self) -> bool:
        """Return whether the peer has the newest version of the settings."""
        own = self._engine.cluster_settings
        return not own.version or self._kept == own.digest

    def forget(self) -> None:
        self._kept = None
        self._wake.set()

    def wake(self) -> None:
        """Tell the peer now if it may lack the newest version."""
        if not self.kept:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            seconds = LOOK_SECONDS
            try:
                try:
                    await self._ask_if_silent_before()
                finally:
                    await self._tell()
                self._note("")
            except (SettingsNotSent, EngineError) as error:
                self._kept = None
                self._note(str(error))
                seconds = RETRY_SECONDS
            with suppress(TimeoutError):
                async with timeout(seconds):
                    await self._wake.wait()

    def _note(self, reason: str) -> None:
        if reason and reason != self.reason:
            log.info("settings not told", cluster=self._engine.cluster, to=self.name, reason=reason)
        self.reason = reason

    async def _tell(self) -> None:
        head = self._engine.cluster_settings.head()
        if head is None:
            return
        answer = await self._post(SettingsHint(head))
        if answer.verdict is not Verdict.KEPT:
            raise SettingsNotSent(
                f"{self.name} keeps newer settings (policies, permissions and so on) of this cluster: this cluster's "
                "store was put back to an older copy of itself, and the older settings are in effect. Compare them "
                f"with what `GET /replication/v1/settings?cluster={self._engine.cluster}` shows at {self.name}, and "
                f"set again what is missing here. From the first change on, {self.name} keeps the settings of here "
                "instead"
            )
        self._kept = answer.digest

    async def _ask_if_silent_before(self) -> None:
        """Ask for this cluster's settings if the worker was silent when a new store took back settings."""
        note: dict[str, Any] | None = self._engine.store.meta(TAKEN)
        if note is None or self.name not in note["silent"]:
            return
        kept = (await ask_settings({self.name: self.address}, self._engine.cluster))[self.name]
        if kept is None:
            raise SettingsNotSent(
                f"{self.name} does not answer which settings of this cluster it keeps; it is asked again"
            )
        await self._engine.partitioned.learn_deletions(kept.deletions)
        async with self._teller.noting:
            await self._heard(kept.states, kept.deleted_at)

    async def _heard(self, states: Sequence[KeptState], deleted_at: Mapping[str, int]) -> None:
        """Put back the newest of ``states`` if it was set later than the settings here, unless somebody set something
        here since settings were taken back. The note names those of ``states`` that do not count.

        ``deleted_at`` has the times at which this cluster deleted topics.
        """
        engine = self._engine
        note: dict[str, Any] = engine.store.meta(TAKEN)
        silent = [name for name in note["silent"] if name != self.name]
        own = await engine.cluster_settings.state()
        set_last = engine.cluster_settings.set_at, engine.cluster_settings.set_in
        is_as_taken = set_last == (note.get("set_at"), note.get("set_in"))
        set_since = None if is_as_taken else (note.get("set_at", note["version"]), note["version"])
        taken = await asyncio.to_thread(taken_back, engine.cluster, {self.name: states}, own, set_since=set_since)
        if set_since is not None and own is not None:
            for each in _forked(own, states, note):
                await store_inactive(engine, each)  # the peer keeps one version of each store
                taken = replace(taken, newer=(*taken.newer, (self.name, each.head)))
        for peer, head in taken.newer:
            log.warning("newer settings do not count", cluster=engine.cluster, peer=peer, store=head.store)
        if taken.peer != self.name:
            await engine.remember(TAKEN, note_without(taken, engine, silent))
            return
        await put_back(
            engine,
            taken,
            note["missing"],
            silent=silent,
            unless_set_since=set_last,
            deleted_at=deleted_at,
            on_put_back=self._teller.on_put_back,
        )
        await self._teller.settle()

    async def _post(self, hint: SettingsHint) -> HintAnswer:
        url = f"{worker_url(self.address)}{SETTINGS_ROUTE}"
        try:
            async with (
                timeout(TELL_SECONDS_MAX),
                worker_session() as session,
                session.post(url, params={"from": self._engine.cluster}, json=hint.as_json()) as response,
            ):
                answer = json.loads(await response.read())
                if response.status != 200:
                    raise SettingsNotSent(
                        f"the worker of {self.name} refuses this cluster's settings: "
                        f"{answer.get('message', response.status)}"
                    )
                return HintAnswer.of_json(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SettingsNotSent(
                f"the worker of {self.name} at {self.address} cannot be told this cluster's settings: "
                f"{why_no_answer(error)}"
            ) from None
        except UNREADABLE as error:
            raise SettingsNotSent(
                f"the worker of {self.name} at {self.address}: its answer cannot be read: {error!r:.100}; run the same "
                "version everywhere"
            ) from None


def _forked(own: KeptState, states: Sequence[KeptState], note: Mapping[str, Any]) -> list[KeptState]:
    """Return those of ``states`` that this very store told before a snapshot of its disk was put back, and that it does
    not know: they were set after the snapshot. ``note`` has the version at which the store went on."""
    went_on_at = note.get("own_version", own.head.version)  # a note of an earlier version does not have it
    of_store = [each for each in states if (each.head.cluster, each.head.store) == (own.head.cluster, own.head.store)]
    return [each for each in of_store if each.head.rank[0] > went_on_at and each.head.digest != own.head.digest]


async def ask_settings(
    addresses: Mapping[str, str], cluster: str, seconds_max: float = TELL_SECONDS_MAX
) -> dict[str, SettingsKept | None]:
    """Return, by other cluster, what its worker keeps of ``cluster``'s settings; None if it gives no valid answer.

    Each worker is asked at its configured address, all at once.
    """
    answers = await asyncio.gather(*(_asked(name, at, cluster, seconds_max) for name, at in addresses.items()))
    return dict(zip(addresses, answers, strict=True))


async def _asked(name: str, address: str, cluster: str, seconds_max: float) -> SettingsKept | None:
    url = f"{worker_url(address)}{SETTINGS_ROUTE}"
    try:
        async with (
            timeout(seconds_max),
            worker_session() as session,
            session.get(url, params={"cluster": cluster}) as response,
        ):
            body = await read_at_most(response, KEPT_BYTES_MAX)
            if response.status != 200:
                raise SettingsNotSent(  # noqa: TRY301 - one place logs all reasons
                    f"the worker answers with an error, status {response.status}: {bytes(body[:200])!r}"
                )
            kept = await asyncio.to_thread(lambda: SettingsKept.of_json(loads_by_steps(body)))
            if kept.cluster != name:
                raise SettingsNotSent(  # noqa: TRY301 - see above
                    f"cluster {kept.cluster!r} answers at the address of {name!r}: correct the address in the topology"
                )
            return kept
    except (aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE, SettingsNotSent) as error:
        log.warning("a cluster does not say which settings it keeps", asked=name, address=address, reason=repr(error))
        return None
