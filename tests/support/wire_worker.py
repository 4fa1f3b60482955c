"""A worker's read API over scripted logs: real blocks, real Arrow streams, real HTTP.

It exists to serve what a healthy worker never has: doubled, swapped, changed and lost entries.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from aiohttp import web

from replicator.engine.log.arrow import BLOCK_SCHEMA
from replicator.engine.log.block import BlockKind, build_block, read_header
from replicator.engine.log.block_heads import encode_heads, head_of
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position

INCARNATION = 7
PUBLISHED_AT_MS = 1_700_000_000_000


def single_entry(payload: bytes, *, key: str | None = None, sequence_id: int = 0, **properties: str) -> bytes:
    """Return an entry of one message outside a batch."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=PUBLISHED_AT_MS)
    if key is not None:
        metadata.partition_key = key
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    return encode_entry(metadata, payload)


def batch_entry(payloads: list[bytes], *, key: str | None = None, sequence_id: int = 0) -> bytes:
    """Return an entry of a batch; its messages share a key."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=sequence_id,
        publish_time=PUBLISHED_AT_MS,
        num_messages_in_batch=len(payloads),
    )
    batch = bytearray()
    for payload in payloads:
        single = SingleMessageMetadata(payload_size=0)
        if key is not None:
            single.partition_key = key
        append_to_batch(batch, single, payload)
    return encode_entry(metadata, bytes(batch))


def marker_entry(marker_type: int, payload: bytes = b"marker") -> bytes:
    return encode_entry(
        MessageMetadata(
            producer_name="replicator", sequence_id=0, publish_time=PUBLISHED_AT_MS, marker_type=marker_type
        ),
        payload,
    )


@dataclass
class ScriptedTopic:
    """A topic's log at one cluster, and its report by the worker. Its ledger is 3 by default."""

    cluster: str
    incarnation: int = INCARNATION
    blocks: list[tuple[Position, int, bytes]] = field(default_factory=list)
    subscriptions: list[dict[str, Any]] = field(default_factory=list)
    mappings: list[dict[str, Any]] = field(default_factory=list)
    next: Position = field(default=Position(3, 0))
    clusters: list[str] | None = None
    """Clusters to which its namespace is copied."""
    cut: dict[str, Any] = field(default_factory=dict)
    """Report on the topic's progress, if not empty: ``trimmed``, ``high_water`` and so on."""
    life: int = 1
    """Number of the topic's life, as the listing for readers gives it; it is below the ids of its ledgers."""
    trimmed: Position = BEFORE_ALL

    def publish(self, *entries: bytes, sizes: list[int] | None = None, kind: BlockKind = BlockKind.MESSAGES) -> bytes:
        """Store entries of this cluster's own as one block; returns the block."""
        if sizes is None:
            sizes = [1 if kind is BlockKind.MESSAGES else 0] * len(entries)
        block = build_block(
            kind=kind,
            origin=self.cluster,
            incarnation=self.incarnation,
            origin_first=self.next,
            publish_time_ms=PUBLISHED_AT_MS,
            entries=entries,
            batch_sizes=sizes,
        )
        self.store(block)
        return block

    def store(self, block: bytes) -> Position:
        """Store a block as it is, copied or not, at the next local position; return that position."""
        at, entries = self.next, read_header(block).entries
        self.blocks.append((at, entries, block))
        self.next = Position(at.ledger, at.entry + entries)
        return at

    def trim(self, upto: Position) -> None:
        """Drop the blocks up to ``upto``, which is the end of one."""
        self.blocks = [row for row in self.blocks if row[0] > upto]
        self.trimmed = upto

    @property
    def runs(self) -> list[list[int]]:
        """Return the ledgers with their first and last entries."""
        found: dict[int, list[int]] = {}
        for at, entries, _ in self.blocks:
            run = found.setdefault(at.ledger, [at.ledger, at.entry, at.entry])
            run[2] = at.entry + entries - 1
        return list(found.values())

    def open_ledger(self, ledger: int) -> None:
        self.next = Position(ledger, 0)

    @property
    def last(self) -> Position:
        if not self.blocks:
            return BEFORE_ALL
        at, entries, _ = self.blocks[-1]
        return Position(at.ledger, at.entry + entries - 1)

    def subscribe(
        self,
        name: str,
        mark_delete: Position = BEFORE_ALL,
        *,
        ranges: tuple[tuple[Position, Position], ...] = (),
        batch_acks: dict[Position, list[int]] | None = None,
        replicated: bool = True,
    ) -> None:
        self.subscriptions.append(
            {
                "name": name,
                "type": "Shared",
                "replicated": replicated,
                "generation": 1,
                "mark_delete": str(mark_delete),
                "individually_deleted": [[str(start), str(end)] for start, end in ranges],
                "batch_acks": {str(position): indexes for position, indexes in (batch_acks or {}).items()},
            }
        )

    def map(self, local: Position, peer: str, remote: Position) -> None:
        self.mappings.append(
            {"snapshot_id": f"s{len(self.mappings)}", "local": str(local), "peer": peer, "remote": str(remote)}
        )


class WireWorker:
    """Worker that serves :class:`ScriptedTopic` s from a thread. ``refuse[what]`` makes a call fail with that
    status."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.topics: dict[str, ScriptedTopic] = {}
        self.refuse: dict[str, int] = {}
        self.requests: list[str] = []
        self.links: list[dict[str, Any]] = []
        """Report on the links that leave it."""
        self.on_request: dict[str, Callable[[Any], dict[str, Any]]] = {}
        """Handlers of requests beside reading, by path; each returns the answer."""
        self.vanish_at: str | None = None
        """Start of the request from which on the topic is deleted."""
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def topic(self, name: str) -> ScriptedTopic:
        return self.topics.setdefault(name, ScriptedTopic(self.cluster))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        application = web.Application()
        for what in ("links", "topics", "blocks", "raw-blocks", "block-heads", "cuts", "subscriptions", "mappings"):
            application.router.add_get(f"/replication/v1/{what}", self._answer)
        application.router.add_get("/replication/v1/positions", self._positions)
        application.router.add_post("/replication/v1/measure", self._measure)
        application.router.add_post("/replication/v1/positions-at", self._positions_at)
        application.router.add_route("*", "/replication/v1/{rest:.*}", self._asked)
        runner = web.AppRunner(application)

        async def start() -> None:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _asked(self, request: web.Request) -> web.Response:
        """Answer a request that is not one of reading."""
        what = request.match_info["rest"]
        self.requests.append(f"{request.method} {request.path_qs}")
        if what not in self.on_request:
            return web.json_response({"error": "NotFound", "message": f"no {what} here"}, status=404)
        return web.json_response(self.on_request[what](await request.json() if request.can_read_body else None))

    async def _answer(self, request: web.Request) -> web.Response:
        what = request.path.rsplit("/", 1)[1]
        self.requests.append(request.path_qs)
        if what in self.refuse:
            return web.json_response({"error": "Scripted", "message": "as scripted"}, status=self.refuse[what])
        if what == "topics":
            return web.json_response({"cluster": self.cluster, "topics": [self._state(name) for name in self.topics]})
        if what == "cuts":
            return web.json_response(
                {"cluster": self.cluster, "topics": {name: self._cut(name) for name in self.topics}}
            )
        if what == "links":
            return web.json_response({"links": self.links})
        name = request.query["topic"]
        if self.vanish_at is not None and request.path_qs.startswith(self.vanish_at):
            self.topics.pop(name, None)
        if name not in self.topics:
            return web.json_response({"error": "TopicNotFound", "message": f"no topic {name}"}, status=404)
        topic = self.topics[name]
        if what in ("blocks", "raw-blocks"):
            return self._blocks(topic, request)
        if what == "block-heads":
            return self._heads(topic, request)
        return web.json_response({"topic": name, what: getattr(topic, what)})

    async def _positions(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        if "positions" in self.refuse:
            return web.json_response({"error": "Scripted", "message": "as scripted"}, status=self.refuse["positions"])
        rows = [[name, topic.life, str(topic.trimmed), topic.runs] for name, topic in self.topics.items()]
        return web.json_response({"cluster": self.cluster, "token": "", "whole": True, "topics": rows, "deleted": []})

    async def _measure(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        body = await request.json()
        left, answer = body["bytes_max"], list[list[Any] | None]()
        for name, after, upto, limit in body["ranges"]:
            if answer and left <= 0:
                break
            reached, entries, messages, size = Position.parse(after), 0, 0, 0
            for at, count, block in self.topics[name].blocks:
                last = Position(at.ledger, at.entry + count - 1)
                if last <= reached:
                    continue
                if at > Position.parse(upto) or (size and size + len(block) > min(limit, left)):
                    break
                entries += count
                messages += read_header(block).messages
                size += len(block)
                reached = min(last, Position.parse(upto))
            left -= size
            answer.append([str(reached), entries, messages, size])
        return web.json_response({"cluster": self.cluster, "ranges": answer})

    async def _positions_at(self, request: web.Request) -> web.Response:
        """Answer with positions at a time, by the blocks' own times."""
        self.requests.append(request.path_qs)
        body = await request.json()
        found = {}
        for name in body["topics"]:
            topic = self.topics[name]
            reached = topic.trimmed
            for at, count, block in topic.blocks:
                if read_header(block).publish_time_ms >= body["time_ms"]:
                    break
                reached = Position(at.ledger, at.entry + count - 1)
            found[name] = str(reached)
        return web.json_response({"cluster": self.cluster, "topics": found})

    def _state(self, name: str) -> dict[str, Any]:
        topic = self.topics[name]
        return {
            "name": name,
            "incarnation": topic.incarnation,
            "first": str(topic.blocks[0][0] if topic.blocks else BEFORE_ALL),
            "lac": str(topic.last),
            "entries": sum(entries for _, entries, _ in topic.blocks),
            "messages": sum(read_header(block).messages for _, _, block in topic.blocks),
            "clusters": topic.clusters,
        }

    def _cut(self, name: str) -> dict[str, Any]:
        topic = self.topics[name]
        runs = [[at.ledger, at.entry, at.entry + entries - 1] for at, entries, _ in topic.blocks]
        scripted = {"trimmed": str(BEFORE_ALL), "trimmed_of": {}, "high_water": None, "left_out": {}}
        return {"runs": runs, **scripted, **topic.cut}

    @staticmethod
    def _heads(topic: ScriptedTopic, request: web.Request) -> web.Response:
        after, upto = Position.parse(request.query["after"]), Position.parse(request.query["upto"])
        heads = [
            head_of(at, read_header(block), memoryview(block), len(block))
            for at, entries, block in topic.blocks
            if after < Position(at.ledger, at.entry + entries - 1) and at <= upto
        ]
        headers = {"X-Replicator-Next": str(upto), "X-Replicator-End": "true"}
        return web.Response(body=encode_heads(heads).to_pybytes(), headers=headers)

    @staticmethod
    def _blocks(topic: ScriptedTopic, request: web.Request) -> web.Response:
        after = Position.parse(request.query["after"])
        upto = Position.parse(request.query.get("upto", str(topic.last)))
        room = int(request.query.get("max_bytes", 2**23))
        # The last block that starts at or before `after` may hold entries past it.
        start = max(bisect_right(topic.blocks, after, key=lambda row: row[0]) - 1, 0)
        rows, following, end = [], after, True
        for at, entries, block in topic.blocks[start:]:
            last = Position(at.ledger, at.entry + entries - 1)
            if last <= after:
                continue
            if at > upto:
                break
            if room <= 0:
                end = False
                break
            rows.append((at.ledger, at.entry, entries, block))
            room -= len(block)
            following = last
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, BLOCK_SCHEMA) as stream:
            columns = zip(*rows, strict=True) if rows else [()] * 4
            stream.write_batch(
                pa.record_batch(
                    [pa.array(column, item.type) for column, item in zip(columns, BLOCK_SCHEMA, strict=True)],
                    schema=BLOCK_SCHEMA,
                )
            )
        return web.Response(
            body=sink.getvalue().to_pybytes(),
            headers={
                "X-Replicator-Next": str(following),
                "X-Replicator-End": str(end).lower(),
                "X-Replicator-Trimmed": str(topic.trimmed),
                "X-Replicator-Incarnation": str(topic.life),
            },
        )
