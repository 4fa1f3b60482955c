"""Execution of the actions that one topic's sync cores decide: one action after another, by one task at a time.

1. Actions are carried out in the order in which they were decided. Updates that stand together are merged one after
   another and saved together; markers that stand together are written together. A pass over the log (module
   :mod:`~replicator.sync.ignored_updates`) puts the updates that it finds before itself, until it ends.
2. When nothing is left, what waits for its messages is saved, and then how far markers were handled: a crash before
   that only handles them again.
3. What was decided is not decided again. So while the store refuses writes the queue stands still with all that is in
   it, and tries the first action again; nothing new is decided until then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

import structlog

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound, TopicNotFound
from replicator.engine.log.entry import encode_entry
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.running.pacing import Pace
from replicator.running.supervisor import SupervisedTask
from replicator.sync.checkpoint import Checkpoint
from replicator.sync.ignored_updates import IgnoredUpdates
from replicator.sync.shared import Shared
from replicator.sync.topic_state import TopicState, save_living
from replicator.sync.update_applier import UpdateApplier
from snapshots.actions import Action, ApplyUpdate, RecordMapping, WriteLocalSnapshot, WriteUpdate
from snapshots.markers import Marker, encode_marker
from snapshots.position import Position

ACTIONS_AT_ONCE: Final = 100
"""Updates that are merged and saved together; and markers that go to the writer together."""
REFUSED_PAUSE_SECONDS: Final = 1.0
"""Pause before a store that refused a write is tried again."""
PRODUCER_NAME: Final = "replicator"

log = structlog.get_logger(__name__)


class ActionQueue:
    """Queue of the actions that the sync cores of one topic decided.

    ``on_saved`` is called after a checkpoint, and ``on_resumed`` when the store takes writes again. ``on_written`` is
    called when an announcing marker is in the log or was refused.
    """

    __slots__ = (
        "_actions",
        "_announced",
        "_applier",
        "_checkpoint",
        "_loop",
        "_markers_to_come",
        "_on_resumed",
        "_on_saved",
        "_on_written",
        "_paused",
        "_repeating",
        "_sequence",
        "_shared",
        "_state",
        "_stopped",
        "_task",
        "_to_save_first",
        "_topic",
        "_woken",
        "written",
    )

    def __init__(
        self,
        shared: Shared,
        topic: Topic,
        applier: UpdateApplier,
        state: TopicState,
        checkpoint: Checkpoint,
        *,
        on_saved: Callable[[], None],
        on_resumed: Callable[[], None],
        on_written: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._topic = topic
        self._applier = applier
        self._state = state
        self._checkpoint = checkpoint
        self._on_saved = on_saved
        self._on_resumed = on_resumed
        self._on_written = on_written
        self._loop = asyncio.get_running_loop()
        self._announced: tuple[str, int] | None = None
        """Origin and time of the oldest update that waits to be applied; None if none waits."""
        self._actions: list[Action | IgnoredUpdates] = []  # an empty deque takes 600 bytes, for each topic
        self._markers_to_come: dict[str, int] = {}
        """For each subscription, the number of queued actions that write a marker about it."""
        self._paused: asyncio.TimerHandle | None = None
        """Timer that is set while the store refuses writes; None otherwise."""
        self._repeating = False
        """Whether the first action in the queue was tried before."""
        self._stopped = False
        self._task: SupervisedTask | None = None
        """Task that carries out actions; None until the first action, because most topics never have any."""
        self._to_save_first: dict[str, Subscription] | None = None
        """Subscriptions to be saved before what waits and before the checkpoint, by name; None if there are none."""
        self._woken = False
        """Whether there may be something to carry out or to save that the running task has not looked at."""
        self._sequence = count()
        self.written: dict[Position, Marker] = {}
        """Markers of the commit that is reported next, by position, so that nobody decodes what this queue encoded."""

    @property
    def is_paused(self) -> bool:
        """Return whether the store refuses writes. Then decide nothing new until the queue is carried out."""
        return self._paused is not None

    @property
    def is_empty(self) -> bool:
        return not self._actions

    @property
    def is_idle(self) -> bool:
        """Return whether the queue is empty and no action is being carried out."""
        return not self._actions and (self._task is None or not self._task.running)

    def add(self, actions: Sequence[Action | IgnoredUpdates]) -> None:
        self._actions.extend(actions)
        for action in actions:
            if isinstance(action, WriteUpdate):
                for update in action.marker.updates:
                    self._markers_to_come[update.subscription] = self._markers_to_come.get(update.subscription, 0) + 1
        if actions:
            self.wake()

    def wake(self) -> None:
        """Start the task that carries out actions and saves, if it does not run."""
        self._woken = True
        if self._paused is None and not self._stopped:
            if self._task is None:
                name = f"sync {self._topic.name}"
                self._task = self._shared.engine.supervisor.task("sync", name, self._work, until_done=True)
            self._task.start()

    def save_first(self, subscription: Subscription) -> None:
        """Save a subscription that took waiting acknowledgements, and only then that they wait no more.

        Or save that it must be announced because another cluster asked, and only then that the question was handled.
        In the other order, a worker that is killed between the two would forget them.
        """
        self._to_save_first = self._to_save_first or {}
        self._to_save_first[subscription.name] = subscription
        self.wake()

    async def stop(self) -> None:
        """Carry out nothing more. Return when the task has ended."""
        self._end()
        if self._task is not None:
            await self._task.stop()

    def discard(self) -> None:
        """Drop all actions: the topic was deleted."""
        self._actions.clear()
        self._markers_to_come.clear()
        self._end()

    def _end(self) -> None:
        self._stopped = True
        if self._paused is not None:
            self._paused.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        """Carry out what is waiting, in order; then note how far markers were handled."""
        try:
            self._woken = True
            while self._woken:
                self._woken = False
                while self._actions:
                    await self._run_next_actions()
                    self._repeating = False
                handled = self._checkpoint.handled  # all that these markers asked for is carried out
                await self.save_noted()
                await self._state.save_pending()
                if await self._checkpoint.save(handled):
                    self._on_saved()
        except TopicNotFound:  # it is being deleted; if that is refused, what was merged is to be saved
            self._repeating = True
            if self._topic.deleted is None:  # it stays already
                self._paused = self._loop.call_later(REFUSED_PAUSE_SECONDS, self._go_on)
            else:
                log.info("subscription sync ends", topic=self._topic.name)
        except (StoreFull, StoreFailed) as error:
            # What was decided is not decided again, so it waits. A crash loses nothing either: the checkpoint stays.
            if not self._repeating:
                log.error("subscription sync stands still", topic=self._topic.name, reason=str(error))  # noqa: TRY400
            self._repeating = True
            self._paused = self._loop.call_later(REFUSED_PAUSE_SECONDS, self._go_on)
        except BaseException:  # it starts again: what it was about may be done, or not
            self._repeating = True
            raise

    def _go_on(self) -> None:
        self._paused = None
        self.wake()
        self._on_resumed()

    async def _run_next_actions(self) -> None:
        """Carry out the first action, and the actions of the same kind right after it.

        Finished actions leave the queue, even if this raises."""
        actions = list(islice(self._actions, ACTIONS_AT_ONCE))
        first = actions[0]
        if isinstance(first, IgnoredUpdates):
            found = await first.some()
            if self._actions:  # else the topic is gone
                self._actions[:1] = found if first.ended else [*found, first]
            return
        updates, others = list[ApplyUpdate](), list[Action]()
        for action in actions:
            if isinstance(action, ApplyUpdate) and not others:
                updates.append(action)
            elif isinstance(action, ApplyUpdate | IgnoredUpdates) or updates:
                break
            else:
                others.append(action)
        if updates:
            await self._apply(updates)
            del self._actions[: len(updates)]
        elif len(actions) == 1:  # no task of its own
            await self._carry_out(others[0])
            del self._actions[:1]
        else:
            await self._write_all(others)

    async def _apply(self, updates: Sequence[ApplyUpdate]) -> None:
        """Merge updates one after another, and save the results together.

        So the last subscription of a marker does not wait for the others' commits.
        """
        turns = self._shared.engine.turns
        pace = Pace(turns, turns.own)
        saving: list[asyncio.Future[None] | None] = []
        for update in updates:
            await pace.step()
            saving.append(await self._applier.apply(update, repeating=self._repeating))
        for outcome in await asyncio.gather(*(each for each in saving if each is not None), return_exceptions=True):
            if isinstance(outcome, SubscriptionNotFound):  # it is being deleted; other subscriptions' updates go on
                self._shared.counted.updates_ignored += 1
            elif isinstance(outcome, BaseException):
                raise outcome
        if self._announced is not None:
            origin, announced_ms = self._announced
            self._announced = None
            writer = self._shared.engine.writer
            writer.latencies.sync[origin].observe((writer.wall_clock_ms() - announced_ms) / 1000)

    async def save_noted(self) -> None:
        """Save what :meth:`save_first` was given. Raises the store's errors; then it is saved at the next try."""
        while taken := self._to_save_first:
            self._to_save_first = None
            try:
                await asyncio.gather(*map(save_living, taken.values()))
            except BaseException:
                self._to_save_first = {**taken, **(self._to_save_first or {})}
                raise

    def announced(self, origin: str, announced_ms: int) -> None:
        """Record that updates wait that ``origin`` announced at ``announced_ms``."""
        self._announced = self._announced or (origin, announced_ms)

    async def _write_all(self, actions: Sequence[Action]) -> None:
        """Give all markers to the writer in order, which puts them into few commits.

        If a commit takes long, markers come faster than one per commit, and updates must not wait for them. A marker
        that failed stays in the queue. Markers that were written leave it.
        """
        done: set[int] = set()

        async def carry_out(number: int, action: Action) -> None:
            await self._carry_out(action)
            done.add(number)

        try:
            outcomes = await asyncio.gather(
                *(carry_out(number, action) for number, action in enumerate(actions)), return_exceptions=True
            )
        finally:
            if self._actions:  # else the topic is gone
                self._actions[: len(actions)] = [each for number, each in enumerate(actions) if number not in done]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _carry_out(self, action: Action) -> None:
        if isinstance(action, RecordMapping):
            self._shared.index.mapping_recorded(self._topic.name, action.mapping)
        elif not isinstance(action, ApplyUpdate):
            written = await self._write(action.marker, local=isinstance(action, WriteLocalSnapshot))
            if isinstance(action, WriteUpdate):
                self._note_announced(action, written=written)
                self._on_written()

    def _note_written(self, positions: Sequence[Position], marker: Marker) -> None:
        for position in positions:
            self.written[position] = marker

    async def _write(self, marker: Marker, *, local: bool) -> bool:
        try:
            await self._topic.writing.marker(
                self._entry(marker), local=local, noted=lambda positions: self._note_written(positions, marker)
            )
        except (StoreFull, StoreFailed, TopicNotFound):
            raise
        except EngineError as error:  # it is refused however often it is tried; what comes after it goes on
            log.error("marker refused", topic=self._topic.name, reason=str(error))  # noqa: TRY400
            return False
        return True

    def _note_announced(self, action: WriteUpdate, *, written: bool) -> None:
        """Note that a marker left the queue: it is in the log if ``written``, and was refused otherwise.

        A subscription counts as announced when the last queued marker about it is in the log.
        """
        for update in action.marker.updates:
            name = update.subscription
            to_come = self._markers_to_come.pop(name) - 1
            if to_come:
                self._markers_to_come[name] = to_come
            elif written and (subscription := self._topic.subscriptions.get(name)) is not None:
                subscription.note_announced()
                self._checkpoint.announced(name)

    def _entry(self, marker: Marker) -> bytes:
        marker_type, payload = encode_marker(marker)
        metadata = MessageMetadata(
            producer_name=PRODUCER_NAME,
            sequence_id=next(self._sequence),
            publish_time=time.time_ns() // 1_000_000,
            marker_type=int(marker_type),
        )
        return encode_entry(metadata, payload)
