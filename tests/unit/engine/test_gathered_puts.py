"""Rows of many owners in one request: what one owner does, or cannot store, is not the others' affair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine_support import TOPIC, eventually, message, opened, subscribed

from replicator.engine.errors import EngineError, StoreFailed, StoreFull, SubscriptionNotFound
from replicator.engine.log import gathered_puts
from replicator.engine.log.gathered_puts import GatheredPuts, Prefix, Row
from replicator.engine.log.writer import Writer
from replicator.engine.subscriptions.cursor_rows import CURSORS
from replicator.engine.types import Ack


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


def test_cursors_that_are_written_again_are_stored_and_a_deleted_one_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many = Writer.put_many
    refused: list[int] = []
    deletions: list[asyncio.Task[None]] = []

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            names = ["a", "b", "c", "d"]
            consumers = [(await subscribed(topic, name))[0] for name in names]
            (position,) = await topic.publish([message()])
            consumers[1].close()

            async def has_room_for_one(
                writer: Writer, writes: Sequence[Row], *, cleared: Sequence[Prefix] = ()
            ) -> None:
                if sum(table == CURSORS and value is not None for table, _, value in writes) > 1:
                    if not refused:  # its deletion comes while the request is on its way
                        deletions.append(asyncio.create_task(topic.subscriptions["b"].deleting.delete()))
                        await asyncio.sleep(0.01)
                    refused.append(len(writes))
                    raise StoreFull("there is no room for so much")
                await put_many(writer, writes, cleared=cleared)

            monkeypatch.setattr(Writer, "put_many", has_room_for_one)
            acks = [topic.subscriptions[name].begin_acknowledge([Ack(position)]) for name in names]
            outcomes = await asyncio.gather(*acks, return_exceptions=True)
            await deletions[0]
            assert [type(each) for each in outcomes if each is not None] == [SubscriptionNotFound]
            assert outcomes[1] is not None
            assert refused
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert sorted(each.name for each in topic.subscriptions.values()) == ["a", "c", "d"]
            assert [each.mark_delete for each in topic.subscriptions.values()] == [position] * 3

    asyncio.run(main())
