"""Postgres takes whatever the engine takes: each column is written at its limit, and no noted change vanishes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from asynchronous import asynchronous
from postgres_support import opened
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, LargeBinary, String, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from replicator.engine.topic_name import check_subscription_name, parse_topic
from snapshots import limits
from snapshots.mapping import SnapshotMapping
from snapshots.models import Base
from snapshots.position import Position
from snapshots.repository import (
    AuditEntry,
    DrillRun,
    FailoverEpoch,
    LinkState,
    SnapshotRepository,
    SubscriptionState,
)
from snapshots.repository.rows import JSON_LEVELS_MAX, shown, shown_json

NOW = datetime(2026, 11, 28, tzinfo=UTC)
CLUSTER = "c" * limits.CLUSTER_CHARS_MAX
TOPIC = str(parse_topic("persistent://public/default/".ljust(limits.TOPIC_NAME_BYTES_MAX, "t")))
SUBSCRIPTION = check_subscription_name("s" * limits.SUBSCRIPTION_NAME_BYTES_MAX)
LINK = f"{CLUSTER}>{CLUSTER}#{'n' * limits.LINK_NAME_CHARS_MAX}"
ROLE = "r" * limits.ROLE_CHARS_MAX
WORD = "w" * limits.WORD_CHARS_MAX
AT = Position(2**62, 2**62)
UNSTORABLE = "NUL \0, half a character \ud800"
SHOWN = "NUL \\u0000, half a character \\ud800"


def test_each_text_column_has_a_limit_of_the_table() -> None:
    known = {getattr(limits, name) for name in dir(limits) if name.endswith("_MAX")}
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String):
                assert column.type.length in known, f"{table.name}.{column.name}"
    assert len(LINK) <= limits.LINK_CHARS_MAX


def at_its_limit(kind: Any) -> Any:
    """Return the largest value of a column's type."""
    if isinstance(kind, String):
        return "w" * (kind.length or 0)
    values: dict[type, Any] = {
        BigInteger: 2**63 - 1, Integer: 2**31 - 1, Boolean: True, LargeBinary: bytes(10_000), JSONB: {"a": "x" * 4_000}
    }  # fmt: skip
    if isinstance(kind, Uuid):
        return uuid4()
    return NOW if isinstance(kind, DateTime) else values[type(kind)]


@asynchronous
async def test_each_column_of_each_table_is_written_at_its_limit(postgres_url: str, data_dir: Path) -> None:
    async with opened(postgres_url, data_dir) as database:
        assert database.engine is not None
        async with database.engine.begin() as connection:
            for table in Base.metadata.sorted_tables:
                row = {column.name: at_its_limit(column.type) for column in table.columns}
                await connection.execute(table.insert().values(row))
                (found,) = (await connection.execute(table.select())).mappings()
                assert dict(found) == row, table.name


@asynchronous
async def test_each_field_is_written_at_its_limit(postgres_url: str, data_dir: Path) -> None:
    async with opened(postgres_url, data_dir) as database:
        assert database.engine is not None
        there = SnapshotRepository(database.engine, CLUSTER)
        mapping = SnapshotMapping("i" * limits.SNAPSHOT_ID_CHARS_MAX, AT, CLUSTER, AT)
        state = SubscriptionState(
            TOPIC, SUBSCRIPTION, 2**62, AT, replicated=True, ack_vector={CLUSTER: {"through": "x"}}
        )
        link = LinkState(LINK, TOPIC, WORD, AT, 2**62, "d" * limits.DETAIL_CHARS_MAX)
        epoch = FailoverEpoch(2**62, CLUSTER, CLUSTER, WORD, NOW, NOW, {"writer": ROLE})
        drill = DrillRun(WORD, WORD, WORD, NOW, NOW, True, {"a": 1})
        entry = AuditEntry(uuid4(), NOW, ROLE, WORD, "s" * limits.SUBJECT_CHARS_MAX, {"before": "x" * 4_000})
        await there.record_mappings([(TOPIC, mapping)])
        await there.save_subscription_states([state])
        await there.save_link_states([link])
        await there.record_failover_epochs([epoch])
        await there.save_drill_run(drill)
        await there.append_audit([entry])
        assert await there.mappings(TOPIC) == [mapping]
        assert await there.subscription_states() == [state]
        assert await there.link_states() == [link]
        assert await there.failover_epochs() == [epoch]
        assert (await there.drill_run(WORD)) == drill
        assert await there.audit_log() == [entry]


@asynchronous
async def test_what_postgres_cannot_hold_is_written_with_escapes(postgres_url: str, data_dir: Path) -> None:
    async with opened(postgres_url, data_dir) as database:
        assert database.engine is not None
        there = SnapshotRepository(database.engine, "us-east")
        detail = {"after": {UNSTORABLE: [UNSTORABLE, 1, None]}}
        await there.append_audit([AuditEntry(uuid4(), NOW, UNSTORABLE, UNSTORABLE, "x" * 5_000, detail)])
        await there.save_link_states([LinkState("a>b", "t", "failed", AT, 0, UNSTORABLE * 100)])
        await there.record_failover_epochs([FailoverEpoch(1, "a", "b", "planned", NOW, None, {"why": UNSTORABLE})])
        (noted,) = await there.audit_log()
        assert (noted.actor, noted.action) == (SHOWN, SHOWN)
        assert (len(noted.subject), noted.subject[-1]) == (limits.SUBJECT_CHARS_MAX, "…")
        assert noted.detail == {"after": {SHOWN: [SHOWN, 1, None]}}
        (link,) = await there.link_states()
        assert len(link.detail) == limits.DETAIL_CHARS_MAX
        (epoch,) = await there.failover_epochs()
        assert epoch.report == {"why": SHOWN}


@asynchronous
async def test_columns_of_an_earlier_version_are_made_wider_when_a_worker_starts(
    postgres_url: str, data_dir: Path
) -> None:
    async with opened(postgres_url, data_dir):
        pass
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE subscription_states ALTER COLUMN subscription TYPE VARCHAR(200)")
        connection.execute("ALTER TABLE audit_log ALTER COLUMN actor TYPE VARCHAR(200)")
    async with opened(postgres_url, data_dir) as database:
        assert database.engine is not None
        there = SnapshotRepository(database.engine, "us-east")
        state = SubscriptionState(TOPIC, SUBSCRIPTION, 1, AT, replicated=True)
        await there.save_subscription_states([state])
        await there.append_audit([AuditEntry(uuid4(), NOW, ROLE, "x", "y")])
        assert await there.subscription_states() == [state]
        assert (await there.audit_log())[0].actor == ROLE


@pytest.mark.parametrize("text", ["", "plain", "ünïcode ✓", "line\nbreak", "tab\t", "\x7f"])
def test_what_postgres_can_hold_is_left_as_it_is(text: str) -> None:
    assert shown(text, 100) == text
    assert shown_json({text: [text]}) == {text: [text]}


def test_json_that_is_nested_too_deep_is_cut() -> None:
    nested: Any = []
    for _ in range(5_000):
        nested = [nested]
    found = shown_json({"asked": nested})
    assert json.dumps(found).count("[") == JSON_LEVELS_MAX - 1
    assert shown_json({"asked": [[1]]}) == {"asked": [[1]]}
