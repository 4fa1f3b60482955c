"""The session of one producer: SEND frames in, receipts out.

1. Entries of one turn of the event loop go to the engine in one call, in order, as the bytes that came.
2. Answers leave in the order of the sends, as official clients insist; those of one turn in one write.
3. A call of several entries that the engine refuses for one of them is made again in halves, so that only the wrong
   one is refused. What was sent behind it waits until that is over, or is published again after it
   (:mod:`replicator.engine.producing.publish_order`).
4. With deduplication, nothing is stored behind a refused entry, unless nothing can be stored any more. If later
   entries were stored, and the client sent the refused one again, it would be confirmed as a duplicate of an entry that
   is not here (invariant 1). So the producer is closed, and the client connects it again. Clients of C++, Java and Go
   give up their message at different errors, so this is done at each error.
5. Messages that a quota holds count as held by the connection. If it has no room for more, it could not read the
   acknowledgements that make the backlog smaller. So such producers are closed, and their clients connect again, which
   is refused until the backlog is within its quota. This also happens if a topic has all the messages waiting that it
   may have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from replicator.engine.errors import BacklogQuotaHolds, EngineError, TopicTerminated
from replicator.engine.producing.producers import CLOSED, EngineProducer
from replicator.engine.producing.publish_order import PublishOrder
from replicator.engine.producing.publishing import PUBLISH_BYTES_MAX
from replicator.gateway.refusals import moved_to_of, server_error
from replicator.gateway.wire import Wire
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandSendError,
)
from replicator.protocol.data_commands import SENDS_MAX, ReceiptWriter, Sends
from replicator.protocol.frames import encode
from replicator.protocol.server import NO_REQUEST
from replicator.protocol.versions import CLOSE_BY_SERVER_SINCE
from replicator.running.short_tasks import awaited
from snapshots.position import Position

CLOSE_SECONDS_MAX: Final = 2.0
"""Longest wait for an answer after the producer was closed."""


class _Call:
    """Entries that go to the engine together. The engine gives it their positions, or an error.

    It is an :class:`~replicator.engine.log.requests.Answer`, and not a future: so the receipts of all publishes of a
    commit are written in one turn of the event loop. ``answered`` is called at once when the outcome is known.
    """

    __slots__ = ("_answered", "_known", "begun", "error", "positions", "sends", "size_bytes", "task")

    def __init__(self, sends: Sends, size_bytes: int, answered: Callable[[], None]) -> None:
        self.sends = sends
        self.size_bytes = size_bytes
        self.begun = False
        """Whether the engine has the entries. Not so while they wait for earlier entries of the producer."""
        self.task: asyncio.Task[list[Position]] | None = None
        """The task that publishes, if there must be one."""
        self.positions: list[Position] | None = None
        self.error: BaseException | None = None
        self._answered = answered
        self._known: asyncio.Event | None = None

    def done(self) -> bool:
        return self.positions is not None or self.error is not None

    def set_result(self, positions: list[Position], /) -> None:
        self.positions = positions
        self._tell()

    def set_exception(self, exception: BaseException, /) -> None:
        self.error = exception
        self._tell()

    def cancel(self) -> bool:
        """Give the entries up. What the writer has already is stored."""
        if self.done():
            return False
        self.error = asyncio.CancelledError()
        if self.task is not None:
            self.task.cancel()
        self._tell()
        return True

    async def known(self) -> None:
        """Wait until the outcome is known."""
        if not self.done():
            self._known = asyncio.Event()
            await self._known.wait()

    def _tell(self) -> None:
        if self._known is not None:
            self._known.set()
        self._answered()


class ProducerSession:
    """One producer of a connection."""

    def __init__(
        self,
        wire: Wire,
        producer_id: int,
        producer: EngineProducer,
        partition: int,
        schema_version: bytes,
        *,
        extended: bool = False,
    ) -> None:
        self._wire = wire
        self._id = producer_id
        self.producer = producer
        self.schema_version = schema_version
        self._receipts = ReceiptWriter(producer_id, partition, extended=extended)
        self._gathered: Sends | None = None
        self._gathered_bytes = 0
        self._scheduled = False
        self._calls: deque[_Call] = deque()
        self._order = PublishOrder()
        self._refused = False
        """Whether a call was refused, and later entries are not settled yet."""
        self._settling: asyncio.Task[list[Position]] | None = None
        """Task that publishes the entries of a refused call again."""
        self._answering = False
        """Whether a task answers the calls, because a call was refused."""
        self._waiting: list[asyncio.Future[None]] = []
        self._over = False
        self._given_up = False
        """Whether the unanswered entries are given up, because nobody waits for them."""
        self._farewell: CommandCloseProducer | None = None
        """Command that tells the client why its producer was closed. It is sent after all earlier answers."""
        producer.on_closed = self._let_go

    def send(self, sends: Sends) -> None:
        """Publish entries."""
        size_bytes = sum(map(len, sends.entries))
        gathered = self._gathered
        if gathered is None:
            self._gathered = sends
        elif (
            self._gathered_bytes + size_bytes > PUBLISH_BYTES_MAX
            or len(gathered.entries) + len(sends.entries) > SENDS_MAX
        ):
            self._publish()
            self._gathered = sends
        else:
            gathered.extend(sends)
        self._gathered_bytes += size_bytes
        self._wire.held(size_bytes)
        if not self._scheduled:
            self._scheduled = True
            self._wire.later(self._tick)

    def close(self) -> None:
        """Close the producer after the client closed it or has gone.

        Entries that were sent before are published. Their answers are sent if that is possible.
        """
        begins = self._gathered is not None
        self._publish()
        self._over = True
        self.producer.on_closed = None
        if begins:  # on the next turn of the event loop, and the producer is closed behind it
            asyncio.get_running_loop().call_soon(self.producer.close)
        else:
            self.producer.close()
        if self._calls:  # a backlog over its quota may hold them for hours
            asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self._give_up)

    def relieve(self) -> None:
        """Give back to the client the publishes that a quota holds, since the connection has no room for more."""
        held = BacklogQuotaHolds("more waits for the backlog to come under its quota than a connection may send ahead")
        if not self._over and self.producer.give_back(held):
            self._let_go(held.code, str(held))

    def _tick(self) -> None:
        self._scheduled = False
        self._publish()

    def _publish(self) -> None:
        sends, size_bytes = self._gathered, self._gathered_bytes
        if sends is None:
            return
        self._gathered, self._gathered_bytes = None, 0
        call = _Call(sends, size_bytes, self._confirm)
        self._calls.append(call)
        self._wire.unanswered[self] = None
        if self._refused:
            self._answer_apart()
        else:
            self._begin(call)

    def _begin(self, call: _Call) -> None:
        call.begun = True
        call.task = self.producer.begin_publish(call.sends.entries, self._order.turn(), call)

    def _confirm(self) -> None:
        """Answer confirmed calls in their order. If a call was refused, start a task that answers it and all later
        calls."""
        if self._answering:
            return
        while self._calls:
            call = self._calls[0]
            if call.positions is None:
                if call.error is not None or not call.begun:
                    self._answer_apart()
                return
            self._calls.popleft()
            self._wire.write(self._receipts.write(call.sends, call.positions))
            self._wire.held(-call.size_bytes)
        self._all_answered()

    def _answer_apart(self) -> None:
        if not self._answering:
            self._answering = True
            # What was sent is published and its bytes counted back, also when the client has gone.
            self._wire.work(self._answer(), "answers of a producer", to_the_end=True)

    async def _answer(self) -> None:
        while self._calls:
            call = self._calls[0]
            if not call.begun and not self._given_up:
                self._go_on()
                continue
            try:
                if call.begun:
                    await call.known()
                    if not isinstance(call.error, asyncio.CancelledError):
                        self._wire.write(await self._answers(call))
            except asyncio.CancelledError:
                if not self._given_up:
                    raise
            finally:
                self._calls.popleft()
                self._wire.held(-call.size_bytes)
        self._answering = False
        self._all_answered()

    def _all_answered(self) -> None:
        if self._refused or self._order.refused is not None:
            self._refused, self._order = False, PublishOrder()
        self._wire.unanswered.pop(self, None)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        self._send_close()

    def answered(self) -> asyncio.Future[None]:
        """Return a future that is done once everything that the client sent has been answered."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._calls:
            self._waiting.append(waiting)
        else:
            waiting.set_result(None)
        return waiting

    def _go_on(self) -> None:
        """Give waiting calls to the engine, after everything that was refused with an earlier call is settled."""
        self._refused, self._order = False, PublishOrder()
        for call in self._calls:
            self._begin(call)

    async def _answers(self, call: _Call) -> bytes:
        sends, error = call.sends, call.error
        if call.positions is not None:
            return self._receipts.write(sends, call.positions)
        assert error is not None
        if not isinstance(error, EngineError):
            raise error
        first, self._refused = not self._refused, True
        if self._is_final(error) or (first and len(sends.entries) == 1):
            return self._refused_with(sends, error)
        pieces = sends.halves() if first else (sends,)
        return b"".join([await self._settled(piece) for piece in pieces])

    async def _settled(self, sends: Sends) -> bytes:
        """Return answers for entries that were refused together, or because of earlier ones. Publish them again in
        parts."""
        self._settling = awaited(self.producer.publish(sends.entries))
        try:
            return self._receipts.write(sends, await self._settling)
        except EngineError as error:
            if self._is_final(error) or len(sends.entries) == 1:
                return self._refused_with(sends, error)
        return b"".join([await self._settled(half) for half in sends.halves()])

    def _is_final(self, error: EngineError) -> bool:
        """Return whether another try in parts is useless, so that the client must be told."""
        return self.producer.closed or isinstance(error, BacklogQuotaHolds)

    def _refused_with(self, sends: Sends, error: EngineError) -> bytes:
        if isinstance(error, BacklogQuotaHolds) and not self._over:
            self.producer.close()
            self._let_go(error.code, str(error))
        if self._farewell is not None:
            return b""  # the client sends it again where it goes; at an error some close the whole connection
        refusals = b"".join(self._refusal(sequence_id, error) for sequence_id in sends.sequence_ids)
        terminated = isinstance(error, TopicTerminated)
        if self.producer.deduplicated and not self.producer.closed and not terminated:
            self.producer.close()
            self._let_go(CLOSED, str(error))
        return refusals

    def _refusal(self, sequence_id: int, error: EngineError) -> bytes:
        refusal = CommandSendError(
            producer_id=self._id,
            sequence_id=sequence_id,
            error=server_error(error),
            message=str(error),
            engine_error=error.code,
        )
        return encode(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=refusal))

    def _let_go(self, code: str, reason: str) -> None:
        """Tell the client that the engine closed the producer, and why, so that it looks the topic up again.

        The client first gets the answers to what it sent before. Otherwise it would send stored messages again.
        """
        if self._over:
            return
        self._over = True
        if self._wire.producer_gone(self._id, self):
            self._farewell = CommandCloseProducer(
                producer_id=self._id, request_id=NO_REQUEST, engine_error=code, reason=reason
            )
            if (moved_to := moved_to_of(self._wire.admission.producers)) is not None:
                self._farewell.assignedBrokerServiceUrl = moved_to.url
                if moved_to.tls_url is not None:
                    self._farewell.assignedBrokerServiceUrlTls = moved_to.tls_url
            self._publish()
            if self._calls:
                asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self._send_close)
            else:
                self._send_close()

    def _send_close(self) -> None:
        farewell, self._farewell = self._farewell, None
        if farewell is None:
            return
        if self._wire.understands(CLOSE_BY_SERVER_SINCE):
            self._wire.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=farewell))
        else:
            self._wire.fail(farewell.reason)

    def _give_up(self) -> None:
        self._given_up = True
        if self._settling is not None:
            self._settling.cancel()
        for call in tuple(self._calls):
            if call.begun:
                call.cancel()
