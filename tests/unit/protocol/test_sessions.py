"""Ids of producers and consumers on one connection: closed while opening, opened again, let go of, and how many."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from replicator.protocol.commands_pb2 import ServerError
from replicator.protocol.errors import OutOfOrder, Refused
from replicator.protocol.sessions import GONE_MAX, Sessions, Slot

LIMIT = 3


class SessionsMachine(RuleBasedStateMachine):
    """Against a model: by id, the slot that counts and its session."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.sessions: Sessions[str] = Sessions("producer", LIMIT)
        self.model: dict[int, tuple[Slot[str], str | None]] = {}
        self.gone: set[int] = set()
        self.made = 0

    @rule(number=st.integers(0, 4), target=slots)
    def begin(self, number: int) -> Slot[str] | None:
        if number in self.model or len(self.model) >= LIMIT:
            with pytest.raises(Refused) as refused:
                self.sessions.begin(number)
            busy = ServerError.ServiceNotReady if number in self.model else ServerError.TooManyRequests
            assert refused.value.code == busy
            return None
        slot = self.sessions.begin(number)
        self.model[number] = (slot, None)
        self.gone.discard(number)
        return slot

    @rule(slot=slots)
    def opened(self, slot: Slot[str] | None) -> None:
        if slot is None or slot.session is not None:
            return
        self.made += 1
        session = f"session {self.made}"
        counts = self.model.get(slot.number, (None, None))[0] is slot
        assert self.sessions.opened(slot, session) is counts
        if counts:
            self.model[slot.number] = (slot, session)

    @rule(slot=slots)
    def failed(self, slot: Slot[str] | None) -> None:
        if slot is None or slot.session is not None:
            return
        self.sessions.failed(slot)
        if self.model.get(slot.number, (None, None))[0] is slot:
            del self.model[slot.number]

    @rule(number=st.integers(0, 4))
    def close(self, number: int) -> None:
        assert self.sessions.close(number) == self.model.pop(number, (None, None))[1]
        self.gone.discard(number)

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 4), stale=st.booleans())
    def forget(self, number: int, stale: bool) -> None:
        session = self.model.get(number, (None, None))[1]
        if session is None or stale:
            assert not self.sessions.forget(number, "somebody else")
            return
        assert self.sessions.forget(number, session)
        del self.model[number]
        self.gone.add(number)

    @invariant()
    def what_is_there_is_what_the_model_says(self) -> None:
        assert len(self.sessions) == len(self.model) <= LIMIT
        assert self.sessions.open() == [session for _, session in self.model.values() if session is not None]
        for number in range(5):
            session = self.model.get(number, (None, None))[1]
            assert self.sessions.get(number) == session
            if session is not None or (number in self.gone and number not in self.model):
                assert self.sessions.receiving(number) == session
            else:
                with pytest.raises(OutOfOrder, match=f"producer {number} is not open on this connection"):
                    self.sessions.receiving(number)


TestSessions = SessionsMachine.TestCase


def test_ids_that_were_let_go_of_are_remembered_up_to_a_limit() -> None:
    sessions: Sessions[str] = Sessions("producer", 1)
    for number in range(GONE_MAX + 1):
        sessions.opened(sessions.begin(number), "s")
        sessions.forget(number, "s")
    assert sessions.receiving(GONE_MAX) is None
    assert sessions.receiving(1) is None
    with pytest.raises(OutOfOrder):
        sessions.receiving(0)
