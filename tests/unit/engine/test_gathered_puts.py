"""Rows of many owners in one request: what one owner does, or cannot store, is not the others' affair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from engine_support import eventually

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound
from replicator.engine.log import gathered_puts
from replicator.engine.log.gathered_puts import GatheredPuts, Prefix, Row


class Owner:
    """Writes one row of that size; ``begin`` raises ``refusal`` if there is one."""

    def __init__(self, name: str, size_bytes: int = 1) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.refusal: Exception | None = None
        self.outcomes: list[EngineError | None] = []

    def begin(self) -> tuple[Sequence[Row], Sequence[Prefix]]:
        if self.refusal is not None:
            raise self.refusal
        return [("cursors", self.name.encode(), bytes(self.size_bytes))], []

    def undo(self) -> None: ...

    def ended(self, error: EngineError | None) -> None:
        self.outcomes.append(error)
        if self.name == "fails":
            raise RuntimeError("a bug")


async def written(*owners: Owner, room_bytes: int = 1 << 40) -> list[list[str]]:
    """Return the names of the owners of each request that was written."""
    requests: list[list[str]] = []

    async def put_many(rows: Sequence[Row], _: Sequence[Prefix]) -> None:
        await asyncio.sleep(0)
        if sum(len(value or b"") for _, _, value in rows) > room_bytes:
            raise StoreFull("there is no room")
        requests.append([key.decode() for _, key, _ in rows])

    puts = GatheredPuts(put_many)
    for owner in owners:
        puts.join(owner)
    await eventually(lambda: all(owner.outcomes for owner in owners), "all owners hear of theirs")
    assert all(len(owner.outcomes) == 1 for owner in owners)
    return requests


def test_an_owner_that_fails_keeps_no_other_waiting() -> None:
    broken, fails, others = Owner("broken"), Owner("fails"), [Owner("a"), Owner("b")]
    broken.refusal = RuntimeError("a bug")
    assert asyncio.run(written(others[0], broken, fails, others[1])) == [["a", "fails", "b"]]
    assert isinstance(broken.outcomes[0], StoreFailed)
    assert [each.outcomes for each in others] == [[None], [None]]


def test_where_the_store_is_full_only_what_does_not_fit_is_refused() -> None:
    owners = [Owner(str(number), 100 if number == 5 else 1) for number in range(9)]
    requests = asyncio.run(written(*owners, room_bytes=50))
    assert sorted(name for request in requests for name in request) == list("01234678")
    assert isinstance(owners[5].outcomes[0], StoreFull)


def test_what_may_not_be_written_any_more_is_not_written_again() -> None:
    owners = [Owner("large", 100), Owner("deleted"), Owner("small")]

    async def main() -> list[list[str]]:
        asyncio.get_running_loop().call_later(0, setattr, owners[1], "refusal", SubscriptionNotFound("it is deleted"))
        return await written(*owners, room_bytes=50)

    assert asyncio.run(main()) == [["small"]]
    assert isinstance(owners[1].outcomes[0], SubscriptionNotFound)


def test_a_request_is_bounded_by_its_owners_and_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered_puts, "GATHERED_MAX", 3)
    monkeypatch.setattr(gathered_puts, "GATHERED_BYTES_MAX", 10)
    owners = [Owner(str(number), size) for number, size in enumerate([1, 1, 1, 1, 9, 1, 20, 1])]
    assert asyncio.run(written(*owners)) == [["0", "1", "2"], ["3", "4"], ["5", "6"], ["7"]]
