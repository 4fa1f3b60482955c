"""Permission to publish: names, access modes and epochs, as the registry decides."""

from __future__ import annotations

import pytest

from replicator.engine.errors import NotAllowedError, ProducerBusy, ProducerFenced
from replicator.engine.producing.producer_registry import (
    EPOCH_MAX,
    PRODUCER_NAME_BYTES_MAX,
    Admitted,
    Fenced,
    ProducerRegistry,
)
from replicator.engine.types import AccessMode, ProducerOptions

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode


def options(mode: AccessMode = SHARED, epoch: int | None = None) -> ProducerOptions:
    return ProducerOptions(access_mode=mode, topic_epoch=epoch)


def test_many_producers_share_a_topic_and_the_epoch_stays() -> None:
    registry = ProducerRegistry(None)
    for session in range(3):
        assert registry.connect(session, f"p{session}", options()) == [Admitted(session, None, save_epoch=False)]
    assert len(registry) == 3
    assert registry.epoch is None


def test_a_name_belongs_to_one_connected_producer_and_is_free_when_it_has_left() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "p", options())
    with pytest.raises(ProducerBusy, match="'p' is connected"):
        registry.connect(2, "p", options())
    registry.leave(1)
    assert registry.connect(3, "p", options())


def test_a_name_that_waits_is_taken_too() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "a", options(EXCLUSIVE))
    registry.connect(2, "b", options(WAIT))
    with pytest.raises(ProducerBusy):
        registry.connect(3, "b", options(WAIT))


@pytest.mark.parametrize("name", ["", "x" * (PRODUCER_NAME_BYTES_MAX + 1), "a\0b"])
def test_a_name_that_cannot_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(NotAllowedError):
        ProducerRegistry(None).connect(1, name, options())


def test_an_exclusive_producer_admits_nobody_beside_it() -> None:
    registry = ProducerRegistry(None)
    assert registry.connect(1, "owner", options(EXCLUSIVE)) == [Admitted(1, 0, save_epoch=True)]
    with pytest.raises(ProducerFenced):
        registry.connect(2, "other", options(EXCLUSIVE))
    with pytest.raises(ProducerBusy):
        registry.connect(3, "third", options())
    assert registry.leave(1) == []
    assert registry.connect(4, "other", options(EXCLUSIVE)) == [Admitted(4, 1, save_epoch=True)]


def test_an_exclusive_producer_is_refused_while_others_share_the_topic() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "p", options())
    with pytest.raises(ProducerFenced):
        registry.connect(2, "owner", options(EXCLUSIVE))
    assert registry.epoch is None


def test_those_that_wait_get_the_topic_in_the_order_in_which_they_came() -> None:
    registry = ProducerRegistry(6)
    registry.connect(1, "p1", options(WAIT))
    assert registry.connect(2, "p2", options(WAIT)) == []
    assert registry.connect(3, "p3", options(WAIT)) == []
    with pytest.raises(ProducerFenced):
        registry.connect(4, "p4", options(EXCLUSIVE))
    assert registry.leave(1) == [Admitted(2, 8, save_epoch=True)]
    assert registry.leave(2) == [Admitted(3, 9, save_epoch=True)]


def test_one_that_gave_up_waiting_is_passed_over() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "p1", options(EXCLUSIVE))
    registry.connect(2, "p2", options(WAIT))
    registry.connect(3, "p3", options(WAIT))
    assert registry.leave(2) == []
    assert registry.leave(1) == [Admitted(3, 1, save_epoch=True)]


def test_one_that_waits_behind_shared_producers_gets_the_topic_when_the_last_has_left() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "s1", options())
    registry.connect(2, "s2", options())
    assert registry.connect(3, "owner", options(WAIT)) == []
    with pytest.raises(ProducerBusy):  # else it could wait for ever
        registry.connect(4, "s3", options())
    assert registry.leave(2) == []
    assert registry.leave(1) == [Admitted(3, 0, save_epoch=True)]


def test_a_fencing_producer_puts_out_all_others_and_those_that_wait() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "owner", options(EXCLUSIVE))
    registry.connect(2, "waiting", options(WAIT))
    *fenced, admitted = registry.connect(3, "taker", options(FENCING))
    assert [decision.session for decision in fenced if isinstance(decision, Fenced)] == [1, 2]
    assert admitted == Admitted(3, 1, save_epoch=True)
    assert registry.leave(1) == registry.leave(2) == []
    assert registry.waiting == 0


def test_a_fencing_producer_may_take_the_name_of_the_one_that_it_puts_out() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "p", options())
    fenced, admitted = registry.connect(2, "p", options(FENCING))
    assert fenced.session == 1
    assert admitted == Admitted(2, 0, save_epoch=True)
    assert registry.sessions == {"p": 2}


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_an_old_epoch_is_fenced_and_changes_nothing(mode: AccessMode) -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "first", options(EXCLUSIVE))
    registry.leave(1)
    registry.connect(2, "second", options(EXCLUSIVE))
    with pytest.raises(ProducerFenced, match="epoch 0"):
        registry.connect(3, "first", options(mode, epoch=0))
    assert registry.sessions == {"second": 2}
    registry.leave(2)
    with pytest.raises(ProducerFenced):
        registry.connect(4, "first", options(mode, epoch=0))


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_the_owner_comes_back_with_its_epoch_and_the_epoch_stays(mode: AccessMode) -> None:
    registry = ProducerRegistry(4)
    assert registry.connect(1, "owner", options(mode, epoch=4)) == [Admitted(1, 4, save_epoch=False)]


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAIT, FENCING])
def test_the_owner_on_a_new_connection_takes_its_place_before_those_that_wait(mode: AccessMode) -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "owner", options(EXCLUSIVE))
    registry.connect(2, "waiting", options(WAIT))
    fenced, admitted = registry.connect(3, "owner", options(mode, epoch=0))
    assert fenced.session == 1
    assert admitted == Admitted(3, 0, save_epoch=False)
    assert registry.leave(1) == []  # its old connection is noticed to be dead only now
    assert registry.leave(3) == [Admitted(2, 1, save_epoch=True)]


def test_another_name_with_the_owners_epoch_does_not_take_its_place() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "owner", options(EXCLUSIVE))
    with pytest.raises(ProducerFenced):
        registry.connect(2, "thief", options(EXCLUSIVE, epoch=0))


def test_one_with_the_present_epoch_waits_before_those_without() -> None:
    """This happens after a restart, when others were quicker to share the topic and to wait for it."""
    registry = ProducerRegistry(4)
    registry.connect(1, "sharing", options())
    registry.connect(2, "waiting", options(WAIT))
    registry.connect(3, "owner", options(WAIT, epoch=4))
    assert registry.leave(1) == [Admitted(3, 4, save_epoch=False)]
    assert registry.leave(3) == [Admitted(2, 5, save_epoch=True)]


def test_an_epoch_above_the_topics_is_taken_over() -> None:
    """The store was put back from an older copy."""
    registry = ProducerRegistry(4)
    assert registry.connect(1, "owner", options(EXCLUSIVE, epoch=9)) == [Admitted(1, 9, save_epoch=True)]


@pytest.mark.parametrize("epoch", [-1, 2**63])
def test_an_epoch_out_of_range_is_refused(epoch: int) -> None:
    with pytest.raises(NotAllowedError):
        ProducerRegistry(None).connect(1, "p", options(EXCLUSIVE, epoch=epoch))


def test_no_producer_can_use_up_the_epochs_of_a_topic() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "a", options(EXCLUSIVE, EPOCH_MAX))
    registry.leave(1)
    (admitted,) = registry.connect(2, "b", options(EXCLUSIVE))
    assert isinstance(admitted, Admitted)
    assert admitted.epoch == EPOCH_MAX + 1 < 2**63
    registry.leave(2)
    assert registry.connect(3, "b", options(EXCLUSIVE, admitted.epoch)) == [
        Admitted(3, admitted.epoch, save_epoch=False)
    ]


def test_the_policys_limit_on_producers_is_kept() -> None:
    registry = ProducerRegistry(None)
    registry.connect(1, "p1", options(), producers_max=1)
    with pytest.raises(ProducerBusy, match="max_producers"):
        registry.connect(2, "p2", options(), producers_max=1)
