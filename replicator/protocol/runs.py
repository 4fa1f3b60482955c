"""Readers that gather consecutive commands of the same kind, so that a decoder hands them on at once. Sans-IO.

A server reads SENDs and ACKs (:class:`SendReader`), a client reads MESSAGEs and SEND_RECEIPTs (:class:`AnswerReader`).
Most are read by comparison with the one before (:mod:`replicator.protocol.forms`); protobuf reads the others, and
decides what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.protocol.commands_pb2 import BaseCommand, CommandAck, CommandMessage, CommandSendReceipt
from replicator.protocol.data_commands import SENDS_MAX, Acks, Sends, read_ack, read_send
from replicator.protocol.errors import BadFrame
from replicator.protocol.forms import Form
from replicator.protocol.values import SIGN
from snapshots.position import BEFORE_ALL, Position

RUN_MAX: Final = 1_000
"""Limit of the commands in one :class:`Run`."""
FORMS_MAX: Final = 4
"""Number of forms that one connection remembers: enough for several consumers, and entries of several clusters."""
FORM_BYTES_MAX: Final = 1_000
"""Largest command that is remembered as a form; the usual ones have fewer than 100 bytes."""

_MESSAGE: Final = int(BaseCommand.MESSAGE)
_RECEIPT: Final = int(BaseCommand.SEND_RECEIPT)
_SEND: Final = int(BaseCommand.SEND)
_ACK: Final = int(BaseCommand.ACK)
_MESSAGE_NUMBERS: Final = ((9, 2, 2), (9, 100), (9, 103))
"""Paths to the entry's number, its batch size, and its number in the cluster of its origin."""
_RECEIPT_NUMBERS: Final = ((7, 2), (7, 3, 2))
"""Paths to the sequence id and the entry's number."""


class RunReader(Protocol):
    """Interface that gathers consecutive commands of its kinds. ``rest`` is the bytes behind a command."""

    def reads(self, data: bytes, at: int, stop: int) -> bool:
        """Return whether ``data[at:stop]`` is a command that is gathered; then :meth:`add` comes next."""

    def takes(self, command: BaseCommand, encoded: memoryview) -> bool:
        """Return whether a command is gathered that :meth:`reads` did not know and protobuf has read.

        Raises :class:`BadFrame` for impossible values in it.
        """

    def add(self, rest: bytes) -> None:
        """Add ``rest``, the bytes behind the command that was read last, to its run."""

    def gathered(self) -> list[Any]:
        """Return the runs so far, in order, and forget them."""


class Run:
    """Commands that differ only in some numbers, with the bytes behind each.

    ``command`` is the first of them; ``numbers`` has those of each.
    """

    __slots__ = ("command", "numbers", "rests")

    def __init__(self, command: Any, numbers: tuple[int, ...]) -> None:
        self.command = command
        self.numbers = [numbers]
        self.rests: list[bytes] = []


class Messages(Run):
    """MESSAGEs of one consumer.

    Numbers: the entry's; its batch size, unless it is left out; for a message of another cluster also the entry's
    number there."""

    __slots__ = ()
    command: CommandMessage

    def positions(self) -> list[Position]:
        """Return the positions of the entries."""
        return _positions(self.command.message_id.ledgerId, [each[0] for each in self.numbers])

    def batch_sizes(self) -> list[int]:
        """Return the number of messages of each entry; 1 if the command does not say."""
        if self.command.HasField("batch_size"):
            return [each[1] for each in self.numbers]
        return [1] * len(self.numbers)

    def origin_positions(self) -> list[Position]:
        """Return the positions of the entries in their origin cluster, which the command names."""
        ledger = self.command.origin_ledger
        if self.command.HasField("origin_entry"):
            return [Position(ledger, each[-1]) for each in self.numbers]
        return [Position(ledger, 0)] * len(self.numbers)


class Receipts(Run):
    """SEND_RECEIPTs of one producer. Numbers: the sequence id, and the entry's."""

    __slots__ = ()
    command: CommandSendReceipt

    def positions(self) -> list[Position]:
        """Return the positions of the entries; for a receipt of several sends, that of the first entry."""
        return _positions(self.command.message_id.ledgerId, [each[1] for each in self.numbers])


class AnswerReader:
    """Reader of a client: the :class:`RunReader` that gathers :class:`Messages` and :class:`Receipts`."""

    __slots__ = ("_forms", "_goes_on", "_runs")

    def __init__(self) -> None:
        self._forms: list[tuple[Form, type[Run], Any, bool]] = []
        """Recent forms, the last one first, each with its command, and whether the command has a batch size."""
        self._runs: list[Run] = []
        self._goes_on = False
        """Whether the last run is of the first form."""

    def reads(self, data: bytes, at: int, stop: int) -> bool:
        size, forms = stop - at, self._forms
        for index, known in enumerate(forms):
            form, kind, command, batched = known
            if form.size != size or (numbers := form.numbers(data, at)) is None:
                continue
            if batched and not 0 < numbers[1] <= BATCH_MESSAGES_MAX:
                return False
            if index:
                forms.insert(0, forms.pop(index))
            elif self._goes_on and len(run_numbers := self._runs[-1].numbers) < RUN_MAX:
                run_numbers.append(numbers)
                return True
            self._runs.append(kind(command, numbers))
            self._goes_on = True
            return True
        return False

    def takes(self, command: BaseCommand, encoded: memoryview) -> bool:
        kind: type[Run]
        inside: Any
        paths: Sequence[Sequence[int]]
        if command.type == _MESSAGE:
            kind, inside, paths = Messages, command.message, _MESSAGE_NUMBERS
            numbers: tuple[int, ...] = (inside.message_id.entryId,)
            if batched := inside.HasField("batch_size"):
                numbers += (inside.batch_size,)
                if not 0 < inside.batch_size <= BATCH_MESSAGES_MAX:
                    raise BadFrame(
                        f"an entry says that it has {inside.batch_size} messages, and one has 1 to "
                        f"{BATCH_MESSAGES_MAX}: its frame is damaged"
                    )
            if isinstance(inside.origin, bytes):  # the parser leaves a text so that is not UTF-8
                raise BadFrame("CommandMessage.origin of a command is not UTF-8: its sender must send text in UTF-8")
            if inside.HasField("origin_entry"):
                numbers += (inside.origin_entry,)
        elif command.type == _RECEIPT:
            kind, inside, paths, batched = Receipts, command.send_receipt, _RECEIPT_NUMBERS, False
            numbers = (inside.sequence_id, inside.message_id.entryId)
        else:
            return False
        form = None
        if len(encoded) <= FORM_BYTES_MAX and not (kind is Receipts and inside.sends > 1):
            form = Form.of(known := bytes(encoded), paths)
            if form is not None and form.numbers(known, 0) != numbers:
                form = None
        self._goes_on = form is not None
        if form is not None:
            self._forms.insert(0, (form, kind, inside, batched))
            del self._forms[FORMS_MAX:]
        self._runs.append(kind(inside, numbers))
        return True

    def add(self, rest: bytes) -> None:
        self._runs[-1].rests.append(rest)

    def gathered(self) -> list[Run]:
        runs, self._runs, self._goes_on = self._runs, [], False
        return runs


class SendReader:
    """Reader of a server: the :class:`RunReader` that gathers :class:`Sends` and :class:`Acks`."""

    __slots__ = ("_acks", "_last", "_runs")

    def __init__(self) -> None:
        self._runs: list[Sends | Acks] = []
        self._last = _NO_SENDS
        """The last run, if it is of SENDs."""
        self._acks = _NO_ACKS
        """The last run, if it is of ACKs."""

    def reads(self, data: bytes, at: int, stop: int) -> bool:
        found = read_send(data, at, stop)
        if found is None:
            return (ack := read_ack(data, at, stop)) is not None and self._take_ack(ack)
        producer_id, sequence_id, highest_sequence_id = found
        sends = self._last
        if sends.producer_id != producer_id or len(sends.entries) >= SENDS_MAX:
            sends = self._begin(producer_id)
        sends.sequence_ids.append(sequence_id)
        sends.highest_sequence_ids.append(highest_sequence_id)
        return True

    def _take_ack(self, ack: CommandAck) -> bool:
        acks, consumer_id = self._acks, ack.consumer_id
        if acks.consumer_id != consumer_id or len(acks.commands) >= RUN_MAX:
            self._last, self._acks = _NO_SENDS, (acks := Acks(consumer_id))
            self._runs.append(acks)
        acks.commands.append(ack)
        return True

    def takes(self, command: BaseCommand, encoded: memoryview) -> bool:
        if command.type == _ACK:
            return self._take_ack(command.ack)
        if command.type != _SEND:
            return False
        send, sends = command.send, self._last
        if sends.producer_id != send.producer_id or sends.full:
            sends = self._begin(send.producer_id)
        sends.sequence_ids.append(send.sequence_id)
        sends.highest_sequence_ids.append(send.highest_sequence_id)
        return True

    def add(self, rest: bytes) -> None:
        if self._last is not _NO_SENDS:  # nobody reads what stands behind an ACK
            self._last.entries.append(rest)

    def gathered(self) -> list[Sends | Acks]:
        runs, self._runs, self._last, self._acks = self._runs, [], _NO_SENDS, _NO_ACKS
        return runs

    def _begin(self, producer_id: int) -> Sends:
        self._last, self._acks = (sends := Sends(producer_id)), _NO_ACKS
        self._runs.append(sends)
        return sends


_NO_SENDS: Final = Sends(-1)
"""SENDs of no producer: the next SEND begins a run."""
_NO_ACKS: Final = Acks(-1)
"""ACKs of no consumer: the next one begins a run."""


def _positions(ledger: int, entries: Sequence[int]) -> list[Position]:
    """Return the positions of entries in one ledger, like :func:`replicator.protocol.values.position_of`."""
    if ledger >= SIGN:
        return [BEFORE_ALL] * len(entries)
    return [Position(ledger, entry if entry < SIGN else -1) for entry in entries]
