"""Positions of brokers that were put back to an older copy of their data have names of their own in all clusters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.broker_lives import BrokerLife, BrokerLives
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


def test_a_first_life_has_the_positions_of_its_places() -> None:
    lives, places = BrokerLives(), PositionSet([Position(3, 1), Position(4, 0)])
    assert lives.origin_of(Position(3, 1)) == lives.place_of(Position(3, 1)) == Position(3, 1)
    assert lives.origins(places) == lives.places(places) == places
    assert (lives.begin, lives.incarnations, lives.later) == (BEFORE_ALL, [], [])


def test_a_position_that_the_brokers_lost_has_no_place_and_those_before_keep_theirs() -> None:
    lives = BrokerLives().began(BrokerLife(Position(3, 4), 100, lost=Position(5, 9)), first=7)
    assert lives.incarnations == [7, 100]
    assert lives.origin_of(Position(3, 4)) == Position(3, 4)
    assert lives.origin_of(Position(3, 5)) == Position(103, 5)
    assert lives.origin_of(Position(5, 9)) == Position(105, 9)
    assert lives.place_of(Position(5, 9)) == Position(3, 4)  # up to there the brokers have it
    assert lives.place_of(Position(105, 9)) == Position(5, 9)
    assert lives.places(PositionSet([Position(3, 4), Position(3, 5), Position(5, 9), Position(105, 9)])) == PositionSet(
        [Position(3, 4), Position(5, 9)]
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("ledger"), st.integers(1, 3)),
        st.tuples(st.just("put back"), st.integers(0, 40)),
    ),
    max_size=30,
)


@given(STEPS)
def test_invariant_2_no_two_messages_have_one_position_however_often_brokers_are_put_back(
    steps: list[tuple[str, int]],
) -> None:
    lives, at, there = BrokerLives(), Position(1, -1), list[tuple[Position, int]]()
    named: dict[Position, int] = {}
    published = 0
    for step, number in steps:
        if step == "publish":
            for _ in range(number):
                at, published = Position(at.ledger, at.entry + 1), published + 1
                assert lives.origin_of(at) not in named
                named[lives.origin_of(at)] = published
                there.append((at, published))
        elif step == "ledger":
            at = Position(at.ledger + number, -1)
        else:
            there = there[: number and min(number, len(there))]
            at = there[-1][0] if there else Position(1, -1)
            life = BrokerLife(there[-1][0] if there else BEFORE_ALL, max([1_000, *(p.ledger + 1 for p in named)]))
            lives = lives.began(life._replace(incarnation=max(life.incarnation, *[0, 0], *later(lives))), first=7)
        places = PositionSet([place for place, _ in there])
        origins = lives.origins(places)
        assert [named[position] for position in origins] == [message for _, message in there]
        assert lives.places(PositionSet(named)) == places
        assert all(lives.place_of(lives.origin_of(place)) == place for place, _ in there)
        assert BrokerLives.from_json(lives.to_json().encode()).later == lives.later
        assert BrokerLives.of_shown(lives.shown()).shown() == lives.shown()


def later(lives: BrokerLives) -> list[int]:
    return [each + 1 for each in lives.incarnations]
