"""Controller of state sync for one topic: it decides when to write markers, and acts on markers that arrived.

It serves invariants 5 (no skip: a position is claimed for a peer only through a mapping that proves it), 6 (monotone
within a generation), 7 (an idle topic gets no markers) and 8 (every peer answers for itself; a dead one delays nobody).
Sans-IO: events come in with the clock's reading, :data:`~snapshots.actions.Action` values come out, nothing is called.
The source is DESIGN 4.2; the idea of pairing LACs through request and response is the field's (seed 004).

Algorithm, in cluster A with peer B:

1. After messages were appended here, or came from a cluster that cannot ask, a ``SnapshotRequest`` is written, at most
   one in ``snapshot_interval_ms``. All topics of the worker share a budget of requests: where many topics move, each
   asks less often (:class:`~snapshots.pacing.SnapshotBudget`). One is written after the last message, so that the last
   messages are covered too. A request also contains its writer's own answer. Markers cause no request, so clusters do
   not keep each other awake.
2. B answers with its LAC and ``vector-B``: for each origin the highest origin position of a *message* in B's log.
   Markers are left out, so that a marker of some third cluster which died before A got it holds nothing up. If B keeps
   an earlier life of a topic (docs/adr/0080), the answer names that life as an origin of its own, which A lacks.
3. The answer is in A's log at L. The link from B is in order, so everything that B originated is before L; messages of
   A are in A's log by themselves. For each third origin A waits until its log has reached vector-B, at L' >= L.
   From there on: mark-delete position at or past L' => all of B up to LAC-B is consumed. That is true of *every*
   answer, whenever it comes: late, twice, after a restart, unasked, or asked for by another cluster. So A reads them
   all. Pending requests are only counted, and nothing depends on them.
4. The mapping L' <-> LAC-B goes to the table of B, to Postgres and, as a local marker, to the log. One local marker has
   the mappings of a round of answers (:mod:`snapshots.recording`).
5. A subscription's mark-delete position moves here, or a mapping comes. Then the best mapping at or below the position
   is announced to its peer, unless that was done before. The exact state goes with it (:mod:`snapshots.announcing`).
   Where snapshots are thinned, it waits for the next change of the exact state, as long as a snapshot would wait.
6. Messages of a peer A need no request of B's own: A asks behind them, and all answers come to B too. B only waits
   until, for each peer, an answer *covers* all messages that B has: the answer's vector is not below B's. If none
   comes, B asks in the end (:mod:`snapshots.scheduling`). So N clusters write about N markers for messages of one of
   them. If each asked each, they would write N * N.
7. With three or more clusters, a message of C may reach A, be consumed, and be asked about before it reaches B; then
   the topic is idle in A, and B would never cover it. So when B gets messages of others after its last answer, and
   nobody asks soon, B answers unasked (the *follow-up*). It does so once, so idle stays idle.

The shell must carry out actions in order, or stop. It calls ``on_append`` for a block before ``on_marker`` for its
markers, and hands over each marker at least once (everything is idempotent). After a restart it calls
``on_subscription`` for each replicated subscription, ``restore`` with the known mappings, and ``on_append(…,
origin=None, messages=True)`` if the topic holds messages. Then it hands over the markers that were not handled yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from snapshots.actions import (
    Action,
    ControllerSettings,
    ControllerStats,
    LogState,
    RecordMapping,
    WriteLocalSnapshot,
    WriteRequest,
    WriteResponse,
)
from snapshots.announcing import AckSource, UpdateAnnouncer
from snapshots.mapping import MappingTable, SnapshotMapping
from snapshots.markers import (
    LocalSnapshot,
    Marker,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionsUpdate,
)
from snapshots.pacing import SnapshotBudget, UpdateBudget
from snapshots.position import BEFORE_ALL, Position
from snapshots.recording import MappingRecorder
from snapshots.scheduling import SnapshotScheduler, UnansweredRequests, request_delay_ms
from snapshots.starts import Starts

WAITING_ANSWERS_MAX: Final = 16
"""Most answers of one peer that wait for a third origin. Beyond it the newest answer replaces the one before. The
oldest answers are fulfilled first, and the newest covers most."""


class SnapshotController:
    """State sync of one topic in cluster ``local``.

    ``peers`` are the clusters that get our markers; ``reachable_origins`` those whose entries reach us. ``next_id``
    makes snapshot ids, unique across restarts. ``now_ms`` is a monotonic clock's reading. ``budget`` is that of the
    updates of all topics of the worker, and ``snapshot_budget`` that of their snapshots; without them the topic has its
    own. ``starts`` returns the start of a subscription by origin.
    """

    def __init__(
        self,
        local: str,
        *,
        peers: Collection[str],
        reachable_origins: Collection[str],
        next_id: Callable[[], str],
        settings: ControllerSettings | None = None,
        acks: AckSource | None = None,
        budget: UpdateBudget | None = None,
        snapshot_budget: SnapshotBudget | None = None,
        starts: Callable[[str], Starts] | None = None,
    ) -> None:
        self._local = local
        self._settings = settings or ControllerSettings()
        self._budget = snapshot_budget or SnapshotBudget(exact=acks is not None)
        self._next_id = next_id
        self._peers = _others(peers, local)
        self._reachable = _others(reachable_origins, local)
        self._asked = _common(self._peers, self._reachable)
        """Clusters that get the requests of this cluster, and whose answers reach it."""
        self._recorder = MappingRecorder()
        self.stats = ControllerStats()
        self.updates = UpdateAnnouncer(
            local,
            self._peers,
            self._settings,
            self.stats,
            self._mapped,
            acks,
            budget or UpdateBudget(),
            self._budget,
            starts,
        )

        self._last = BEFORE_ALL
        self._last_message: Position | None = None
        """Position at or above the last message; None if it is not known yet."""
        self._scheduler = SnapshotScheduler(self._budget)
        self._unanswered = UnansweredRequests()
        self._waiting: dict[str, list[SnapshotResponse]] = {}
        self._waiting_may_end = False
        self._follow_up_ms: int | None = None

    # ---- questions of the shell ----------------------------------------------------------------------------

    def mappings(self, peer: str) -> MappingTable:
        """Return the mappings for ``peer``; an empty table if there are none."""
        return self._recorder.table(peer)

    def mapped_peers(self) -> list[str]:
        """Return the names of the peers that have mappings."""
        return self._recorder.peers()

    def next_deadline(self, now_ms: int) -> int | None:
        """Return the time of the next :meth:`on_tick`, unless an event changes it; None if nothing is due."""
        if self._waiting_may_end:
            return now_ms
        deadline_ms = self.updates.due_ms
        if self._scheduler.wanted and self._wants_request():
            request_ms = self._request_ms(now_ms)
            deadline_ms = request_ms if deadline_ms is None else min(deadline_ms, request_ms)
        if (snapshot_ms := self._recorder.due_ms) is not None:
            deadline_ms = snapshot_ms if deadline_ms is None else min(deadline_ms, snapshot_ms)
        if self._follow_up_ms is not None and (follow_up_ms := self._follow_up_due()) is not None:
            deadline_ms = follow_up_ms if deadline_ms is None else min(deadline_ms, follow_up_ms)
        if (expires_ms := self._unanswered.expire_ms(self._settings.snapshot_timeout_ms)) is not None:
            deadline_ms = expires_ms if deadline_ms is None else min(deadline_ms, expires_ms)
        return deadline_ms

    # ---- events that are only noted ---------------------------------------------------------------------

    def on_append(self, last: Position, *, origin: str | None, messages: int, now_ms: int) -> None:
        """Record that the log grew up to ``last`` by entries of ``origin``, among them ``messages`` messages.

        ``origin`` is None if the entries can be of any origin.
        """
        before, self._last = self._last, max(self._last, last)
        if origin != self._local and any(self._waiting.values()):
            self._waiting_may_end = True
        if messages:
            self._last_message = last
            self._recorder.on_messages()
            interval_ms = self._settings.snapshot_interval_ms
            self._scheduler.on_messages(messages, self._asked, now_ms, interval_ms, others_ask=origin in self._peers)
            if self._follow_up_ms is None and origin != self._local and self._peers:
                third = self._reachable if origin is None else {origin}
                if any(third - {peer} for peer in self._peers):
                    self._follow_up_ms = now_ms + request_delay_ms(self._budget, interval_ms)
        elif self._recorder.has_beyond(before):
            # A mapping was recorded ahead of this event: what is at the end of the log may reach it only now.
            self.updates.note_all(now_ms)

    def on_subscription(
        self,
        name: str,
        mark_delete: Position,
        generation: int,
        now_ms: int,
        *,
        announced: bool = False,
        claims: bool = True,
    ) -> None:
        """Record that the replicated subscription ``name`` exists, and tell peers once.

        With ``announced``, peers know of it and are not told. Without ``claims``, not everything up to ``mark_delete``
        was consumed, and peers are told nothing of that position.
        """
        self.updates.on_subscription(name, mark_delete, generation, now_ms, announced=announced, claims=claims)

    def on_mark_delete(self, name: str, mark_delete: Position, generation: int, now_ms: int, *, local: bool) -> None:
        """Note the new mark-delete position of subscription ``name``.

        ``local`` is False if only an update of another cluster moved it. The position moves back only together with
        the start of the subscription. A higher ``generation`` starts over. A lower one is ignored, and so is a
        subscription that is not replicated.
        """
        self.updates.on_mark_delete(name, mark_delete, generation, now_ms, local=local)

    def on_acknowledged(self, name: str, now_ms: int) -> None:
        """Record that subscription ``name`` has new acknowledgements that the source of acknowledgements can return."""
        self.updates.on_acknowledged(name, now_ms)

    def ask(self, name: str, now_ms: int) -> str:
        """Ask the other clusters for the whole state of the subscription ``name``. Return the id of the question.

        If the subscription is unknown, or there are no exact acknowledgements, nobody is asked, yet an id is returned.
        """
        ask_id = self._next_id()
        self.updates.ask(name, ask_id, now_ms)
        return ask_id

    def on_subscription_deleted(
        self,
        name: str,
        generation: int | None = None,
        now_ms: int = 0,
        *,
        announced: bool = False,
        unless_in_use: bool = False,
        again: bool = False,
    ) -> None:
        """Note that a subscription is gone, or is no longer replicated.

        ``generation`` is that of its tombstone, or None. With a tombstone, the deletion is announced to other clusters,
        unless ``announced``: then they know it. With ``unless_in_use``, a cluster with consumers keeps the
        subscription. With ``again``, the deletion is not new: clusters may have made the subscription since.
        """
        self.updates.on_subscription_deleted(
            name, generation, now_ms, announced=announced, unless_in_use=unless_in_use, again=again
        )

    def on_written(self, now_ms: int) -> None:
        """Record that a marker of :class:`WriteUpdate` was written or refused, so that the next one may follow."""
        self.updates.on_written(now_ms)

    def on_settings(self, settings: ControllerSettings) -> None:
        """Use ``settings`` from now on. Times that are set already do not change."""
        self._settings = self.updates.settings = settings

    def on_topology(self, peers: Collection[str], reachable_origins: Collection[str], now_ms: int) -> None:
        """Record the peers, and the origins that reach this cluster, after links were added or removed.

        If there is a new peer, announce every subscription again. Keep all mappings, also those of removed peers.
        """
        added = frozenset(peers) - self._peers - {self._local}
        self._peers = _others(peers, self._local)
        self._reachable = _others(reachable_origins, self._local)
        self._asked = _common(self._peers, self._reachable)
        self._follow_up_ms = self._follow_up_ms if self._peers else None
        self._scheduler.on_peers(self._asked, ask=bool(added) and self._last_message is not None)
        self._waiting_may_end = any(self._waiting.values())
        self.updates.on_peers(self._peers, now_ms, announce_all=bool(added))

    def restore(self, mappings: Iterable[SnapshotMapping]) -> None:
        """Load the mappings that were stored before a restart. Call it before any marker is replayed.

        The mappings of each peer come oldest first.
        """
        self._recorder.restore(mappings)

    def trim(self, below: Position) -> None:
        """Forget mappings that are not needed, since the mark-delete positions of all subscriptions stay at or above
        ``below``."""
        self._recorder.trim(below)

    # ---- events that are answered with actions ----------------------------------------------------------

    def on_marker(self, position: Position, origin: str, marker: Marker, log: LogState, now_ms: int) -> list[Action]:
        """Return the actions for ``marker`` of ``origin``, which is in the local log at ``position``.

        ``log`` is the state of the log at this moment.
        """
        assert position <= log.lac, f"marker at {position} is past the LAC {log.lac}"
        if origin == self._local:
            self.on_own_marker(position, marker)
            return []
        match marker:
            case SnapshotRequest() if marker.source_cluster == origin:
                return self._on_request(position, marker, log, now_ms)
            case SnapshotResponse() if marker.cluster == origin:
                return self._on_response(position, marker, log, now_ms)
            case SubscriptionsUpdate():
                return [*self.updates.on_updates(marker, origin, log.lac, now_ms)]
            case _:
                return []

    def on_tick(self, now_ms: int, log: LogState) -> list[Action]:
        """Return the actions that are due at ``now_ms``. ``log`` is the state of the log at this moment."""
        self.stats.timeouts += self._unanswered.expire(now_ms, self._settings.snapshot_timeout_ms)
        actions: list[Action] = []
        if self._waiting_may_end:
            actions += self._end_waiting(log, now_ms)
        actions += self._local_snapshot(now_ms)
        if self._wants_request() and self._request_ms(now_ms) <= now_ms:
            actions.append(self._request(now_ms, log))
        due_ms = self._follow_up_due()
        if due_ms is not None and due_ms <= now_ms:
            actions.append(self._answer(self._next_id(), "", log))
        update_ms = self.updates.due_ms
        if update_ms is not None and update_ms <= now_ms:
            actions += self.updates.announce(now_ms)
        return actions

    # ---- asking (steps 1 and 6) -------------------------------------------------------------------------

    def _wants_request(self) -> bool:
        return self._scheduler.wanted and bool(self._asked) and self.updates.has_subscriptions

    def _request_ms(self, now_ms: int) -> int:
        return self._scheduler.due_ms(now_ms, self._settings.snapshot_interval_ms)

    def _request(self, now_ms: int, log: LogState) -> WriteRequest:
        snapshot_id = self._next_id()
        self.stats.timeouts += self._unanswered.note(snapshot_id, self._asked, now_ms)
        self._scheduler.on_request(now_ms)
        self._follow_up_ms = None
        self.stats.requests += 1
        return WriteRequest(SnapshotRequest(snapshot_id, self._local, log.lac, log.said()))

    # ---- answering (steps 2 and 7) ----------------------------------------------------------------------

    def _on_request(self, position: Position, request: SnapshotRequest, log: LogState, now_ms: int) -> list[Action]:
        asked_by, actions = request.source_cluster, list[Action]()
        if asked_by in self._peers:
            actions.append(self._answer(request.snapshot_id, asked_by, log))
        if request.vector:
            self._scheduler.on_peer_request(now_ms, self._settings.snapshot_timeout_ms)
            said = SnapshotResponse(request.snapshot_id, asked_by, request.position, request.vector, "")
            actions += self._on_answer(position, said, log, now_ms)
        return actions

    def _answer(self, snapshot_id: str, asked_by: str, log: LogState) -> WriteResponse:
        self._follow_up_ms = None
        self.stats.answers += 1
        return WriteResponse(SnapshotResponse(snapshot_id, self._local, log.lac, log.said(), asked_by))

    def _follow_up_due(self) -> int | None:
        return self._follow_up_ms if self.updates.has_subscriptions else None

    # ---- mapping (steps 3 and 4) ------------------------------------------------------------------------

    def _on_response(self, position: Position, response: SnapshotResponse, log: LogState, now_ms: int) -> list[Action]:
        self.stats.responses += 1
        self._unanswered.answered(response.snapshot_id, response.cluster)
        return self._on_answer(position, response, log, now_ms)

    def _on_answer(self, position: Position, response: SnapshotResponse, log: LogState, now_ms: int) -> list[Action]:
        """Return the actions for the answer of a peer.

        There are three cases: the answer proves a mapping now, it will once a third origin has come further, or it
        never can.
        """
        missing = log.lacking(response, self._local)
        # Without a vector nothing is known of third origins (the answer of a broker that does not send one), or there
        # is no message to cover. And a peer with entries of ours that we do not have (we lost our log) proves nothing.
        unprovable = not response.vector or response.vector.get(self._local, BEFORE_ALL) > log.lac
        if unprovable or not missing <= self._reachable:
            self.stats.skipped += 1
            return []
        if missing:
            waiting = self._waiting.setdefault(response.cluster, [])
            if len(waiting) >= WAITING_ANSWERS_MAX:
                self.stats.skipped += 1
                waiting.pop()
            waiting.append(response)
            return []
        if log.may_lack_messages_of(response):
            self.stats.skipped += 1
            return []
        # With third origins the log reached the vector at some place up to its LAC, which need not be `position`.
        only_us_two = response.vector.keys() <= {self._local, response.cluster}
        return self._record(position if only_us_two else log.lac, response, log, now_ms)

    def _end_waiting(self, log: LogState, now_ms: int) -> list[Action]:
        """Record, for each peer, the newest answer whose vector the local log has reached."""
        self._waiting_may_end = False
        actions: list[Action] = []
        for waiting in self._waiting.values():
            # A peer's log only grows, so its answers are fulfilled in their order, and the newest is the best.
            fulfilled: SnapshotResponse | None = None
            while waiting and not log.lacking(waiting[0], self._local):
                answer = waiting.pop(0)
                if log.may_lack_messages_of(answer):
                    self.stats.skipped += 1
                else:
                    fulfilled = answer
            if fulfilled is not None:
                actions += self._record(log.lac, fulfilled, log, now_ms)
        return actions

    def _record(self, local: Position, response: SnapshotResponse, log: LogState, now_ms: int) -> list[Action]:
        peer = response.cluster
        covers = all(response.vector.get(origin, BEFORE_ALL) >= at for origin, at in log.reached().items())
        covers_first = covers and not self._recorder.is_covered(peer)
        if covers:
            self._scheduler.on_covered((peer,))
        interval_ms = self._settings.snapshot_interval_ms
        asked_here = response.requested_by == self._local
        if not asked_here and not covers_first and self._recorder.recorded_within(peer, interval_ms, now_ms):
            return []  # others ask at a pace of their own, each of them
        mapping = SnapshotMapping(response.snapshot_id, local, peer, response.position)
        if not self._recorder.record(mapping, now_ms, interval_ms, covers=covers):
            return []
        self.stats.mappings += 1
        self.updates.note_all(now_ms)
        return [RecordMapping(mapping), *self._local_snapshot(now_ms)]

    def _local_snapshot(self, now_ms: int) -> list[Action]:
        snapshot = self._recorder.snapshot(now_ms, self._asked)
        return [] if snapshot is None else [WriteLocalSnapshot(snapshot)]

    def _mapped(self, peer: str, claim: Position) -> Position | None:
        """Return the position up to which ``peer`` may move its copy of a subscription; None without a mapping.

        The subscription consumed everything up to ``claim`` in this cluster.
        """
        if self._last_message is not None and claim >= self._last_message:
            # Only markers follow, and nobody consumes those.
            claim = max(claim, self._last)
        return self._recorder.lookup(peer, claim)

    # ---- our own markers, seen again --------------------------------------------------------------------

    def on_own_marker(self, position: Position, marker: Marker) -> None:
        """Record that a marker of this cluster is in the log at ``position``.

        While the worker runs this changes nothing. After a restart it restores what the cluster asked and announced.
        """
        match marker:
            case SnapshotRequest():
                if self._last_message is not None and self._last_message < position:
                    about_all = not marker.vector or self._last_message <= marker.position
                    self._scheduler.on_request_stands(about_all=about_all)
                if marker.vector:
                    self._note_announced(marker.position)
            case LocalSnapshot():
                self._recorder.recall(marker)
                if marker.covers and self._last_message is not None and self._last_message <= marker.local:
                    self._scheduler.on_covered(marker.clusters)
            case SubscriptionsUpdate():
                for update in marker.updates:
                    self.updates.recall(update)
            case SnapshotResponse():
                self._note_announced(marker.position)

    def _note_announced(self, lac: Position) -> None:
        """Record that peers were told the vector of the log up to ``lac``. A follow-up is not needed if that covers all
        messages."""
        if self._last_message is not None and self._last_message <= lac:
            self._follow_up_ms = None


def _common(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return the names that are in both sets. Return ``one`` itself if possible, so that controllers of many topics
    share it."""
    return one if one <= other else one & other


def _others(clusters: Collection[str], local: str) -> frozenset[str]:
    """Return ``clusters`` without ``local``. A frozenset without ``local`` is returned itself, so that controllers
    share it."""
    others = frozenset(clusters)
    return others if local not in others else others - {local}
