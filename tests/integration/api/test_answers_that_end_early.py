"""An answer that ends early is an error for every reader in a worker, a client, or a command.

Each answer has all that its reader asks for. Only the announced end does not come: a reader that does not look at it
would take the answer for a whole one. `tests/property/test_cut_bodies.py` has the readers of Spark's processes and of
`verify`; `tests/integration/cli/test_cli_every_command.py` has each command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import pytest
from answering_admin import asked as brokers_at
from cut_answers import CUTS, answering, cut, whole
from engine_support import TOPIC, opened

from replicator.apache.errors import AdminFailed
from replicator.backup.sources import of_worker
from replicator.client.wire.following import FollowingConnector
from replicator.dashboard.fan_out import FanOut
from replicator.drills.peers.pulsar.process import ask_admin
from replicator.drills.systems.own import OwnSystem
from replicator.drills.systems.system import StepTimedOut
from replicator.engine.errors import StoreCopyFailed
from replicator.engine.lineage import StoreLine
from replicator.engine.log.link_frame import ANSWER_HEADER_BYTES, PROTOCOL_VERSION, UPGRADED_FROM
from replicator.failover.epochs import FIRST, as_json
from replicator.failover.errors import ClusterUnreachable
from replicator.failover.peers import Peers
from replicator.links.errors import PeerUnavailable
from replicator.links.transport import HttpTransport
from replicator.operating.errors import WorkerUnavailable
from replicator.operating.health import ask_health
from replicator.peering.claim_checker import ClaimChecker, ClaimNotChecked
from replicator.peering.cluster_settings import SettingsKept
from replicator.peering.known_stores import StoreOf
from replicator.running.connecting import ENDED_EARLY
from replicator.security.errors import SecurityError
from replicator.security.key_sets import KeySet
from replicator.sync.use_elsewhere import RemoteUse, UseAnswer
from replicator.topology.values import default_topology
from replicator.worker.asking_peers import PeerHighWaters, ask_all, list_peer_topics
from replicator.worker.settings_teller import ask_settings
from replicator.worker.taking_states import PeerAway, _Asked

PEER: Final = "eu-west"
FRAME: Final = json.dumps({"extents": {}, "refused": {}}).encode()
"""Answer of a destination to a frame of a link."""

KEYS: Final = (
    b'{"keys": [{"kid": "1", "kty": "EC", "crv": "P-256", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", '
    b'"y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}'
)
"""Key set with the public key of the example in RFC 7517."""


class NotRead(Exception):
    """Error for an answer whose reader returns the reason instead of raising it."""


def address(url: str) -> str:
    return url.removeprefix("http://")


async def marks_of_a_link(url: str, _: Path) -> None:
    async with HttpTransport("us-east", PEER, address(url)) as transport:
        await transport.high_water(("us-east",))


async def question_of_a_failover(url: str, _: Path) -> None:
    async with Peers({PEER: address(url)}) as peers:
        await peers.state(PEER)


async def consumers_elsewhere(url: str, path: Path) -> None:
    async with opened(path) as engine:
        elsewhere = RemoteUse(engine, lambda _: frozenset({PEER}))
        elsewhere.change({PEER: address(url)}, 60_000)
        try:
            _, told = await elsewhere._ask(PEER, "sub", [TOPIC], asyncio.get_running_loop().time() + 60)
        finally:
            await elsewhere.stop()
        if isinstance(told, str):
            raise NotRead(told)


async def states_of_a_peer(url: str, _: Path) -> None:
    async with aiohttp.ClientSession() as session:
        await _Asked(session, PEER, address(url)).topics()


async def store_of_a_starting_worker(url: str, _: Path) -> None:
    answers, silent = await ask_all({PEER: address(url)}, "us-east", seconds=60, new=False, counted=False)
    if PEER not in answers:
        raise NotRead(silent[PEER])


async def topics_of_a_peer(url: str, _: Path) -> None:
    _names, reasons = await list_peer_topics({PEER: address(url)}, seconds=60)
    if reasons:
        raise NotRead(reasons[PEER])


async def marks_elsewhere(url: str, _: Path) -> None:
    if (await PeerHighWaters({PEER: address(url)}, "us-east").of(TOPIC)).silent:
        raise NotRead(ENDED_EARLY)  # the log has the reason


async def settings_that_a_peer_keeps(url: str, _: Path) -> None:
    if (await ask_settings({PEER: address(url)}, "us-east"))[PEER] is None:
        raise NotRead(ENDED_EARLY)  # the log has the reason


async def claim_about_a_peer(url: str, _: Path) -> None:
    asking = ClaimChecker("us-east", pause_seconds=0)
    asking.change({PEER: address(url)})
    try:
        await asking.store_line(PEER, PEER, StoreLine("a" * 32))
    finally:
        await asking.stop()


async def page_of_the_dashboard(url: str, path: Path) -> None:
    topology = default_topology(path, (int(url.rpartition(":")[2]), 1))
    asking = FanOut(lambda: topology)
    try:
        answer = await asking.ask(asking.clusters[0], "/replication/v1/status")
    finally:
        await asking.close()
    if answer.error:
        raise NotRead(answer.error)


async def health(url: str, path: Path) -> None:
    topology = default_topology(path, (int(url.rpartition(":")[2]), 1))
    await ask_health(topology, topology.clusters[0])


async def keys_of_tokens(url: str, _: Path) -> None:
    await KeySet(url).fetch()


async def admin_of_brokers(url: str, _: Path) -> None:
    async with brokers_at(url) as admin:
        await admin.tenants()


async def provider_of_a_client(url: str, _: Path) -> None:
    connector = FollowingConnector([url], lambda _: pytest.fail("nothing is opened"), default_url=None,
                                   check_interval_seconds=60)  # fmt: skip
    try:
        if await connector._ask(url) is None:
            raise NotRead(ENDED_EARLY)  # the log has the reason
    finally:
        await connector.close()


async def marks_of_a_drill(url: str, path: Path) -> None:
    topology = default_topology(path, (int(url.rpartition(":")[2]), 1))
    name = topology.clusters[0].name
    drilled: Any = SimpleNamespace(_topology=topology, topics=[TOPIC])
    await OwnSystem.high_waters(drilled, drilled, name, origin=name)


def told(cluster: str) -> bytes:
    line = StoreLine("a" * 32)
    return json.dumps(StoreOf(cluster, as_json(FIRST), None, own=line).as_json()).encode()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader of one answer: what it reads, and its error for an answer that is cut."""

    read: Callable[[str, Path], Awaitable[None]]
    body: bytes
    error: type[Exception]


READERS: Final = [
    Reader(marks_of_a_link, b'{"cluster": "eu-west", "protocol": 6, "topics": {}}', PeerUnavailable),
    Reader(question_of_a_failover, json.dumps({"record": as_json(FIRST)}).encode(), ClusterUnreachable),
    Reader(consumers_elsewhere, json.dumps(UseAnswer(PEER, {}).to_json()).encode(), NotRead),
    Reader(states_of_a_peer, b'{"cluster": "eu-west", "topics": []}', PeerAway),
    Reader(store_of_a_starting_worker, told(PEER), NotRead),
    Reader(topics_of_a_peer, b'{"topics": []}', NotRead),
    Reader(marks_elsewhere, b'{"topics": {}}', NotRead),
    Reader(settings_that_a_peer_keeps, json.dumps(SettingsKept(PEER, ()).as_json()).encode(), NotRead),
    Reader(claim_about_a_peer, told(PEER), ClaimNotChecked),
    Reader(page_of_the_dashboard, b"{}", NotRead),
    Reader(health, b'{"status": "ok"}', WorkerUnavailable),
    Reader(keys_of_tokens, KEYS, SecurityError),
    Reader(admin_of_brokers, b"[]", AdminFailed),
    Reader(marks_of_a_drill, b'{"topics": {}}', StepTimedOut),
    Reader(provider_of_a_client, b'{"serviceUrl": "pulsar://127.0.0.1:6650"}', NotRead),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda each: each.read.__name__)
def test_an_answer_that_ends_before_its_announced_end_is_an_error_in_words_for_every_reader(
    tmp_path: Path, reader: Reader
) -> None:
    async def main() -> None:
        with answering(whole(reader.body)) as url:
            await reader.read(url, tmp_path)
        for how in CUTS:
            with answering(cut(reader.body, how)) as url:
                with pytest.raises(reader.error) as raised:
                    await reader.read(url, tmp_path)
                assert ENDED_EARLY in str(raised.value), (how, str(raised.value))

    asyncio.run(main())


UPGRADED: Final = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: any\r\n\r\n"
POSTED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame_announced(length: int) -> bytes:
    return length.to_bytes(ANSWER_HEADER_BYTES, "big") + FRAME


def in_chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


STREAMS: Final = {
    "upgraded": (PROTOCOL_VERSION, UPGRADED + frame_announced(len(FRAME)), UPGRADED + frame_announced(1_000)),
    "in a request's body": (
        UPGRADED_FROM - 1,
        POSTED + in_chunk(frame_announced(len(FRAME))),
        POSTED + in_chunk(frame_announced(1_000)),
    ),
}
"""By kind of stream: the version that has it, a whole answer to a frame, and one that ends early."""


@pytest.mark.parametrize("kind", STREAMS)
def test_an_answer_to_a_frame_that_ends_early_breaks_the_link_and_is_never_taken_for_a_whole_one(kind: str) -> None:
    version, whole_one, cut_one = STREAMS[kind]

    async def opens(url: str) -> None:
        async with HttpTransport("us-east", PEER, address(url)) as transport:
            transport._version = version
            await transport.open()

    async def main() -> None:
        with answering(whole_one) as url:
            await opens(url)
        with answering(cut_one) as url:
            with pytest.raises(PeerUnavailable, match="connects again") as raised:
                await opens(url)
            assert ENDED_EARLY in str(raised.value)

    asyncio.run(main())


@pytest.mark.parametrize("how", CUTS)
def test_a_refusal_of_a_stream_that_ends_early_is_a_destination_that_cannot_be_asked(how: str) -> None:
    async def main() -> None:
        for version in (PROTOCOL_VERSION, UPGRADED_FROM - 1):
            with answering(cut(b'{"error": "NotAllowed", "message": "no"}', how, status=403)) as url:
                async with HttpTransport("us-east", PEER, address(url)) as transport:
                    transport._version = version
                    with pytest.raises(PeerUnavailable):
                        await transport.open()

    asyncio.run(main())


@pytest.mark.parametrize("how", CUTS)
def test_a_broker_of_a_drill_that_is_killed_in_its_answer_is_one_that_is_away(how: str) -> None:
    with answering(whole(b"[]")) as url:
        assert ask_admin(url, None, "GET", "tenants") == []
    with answering(cut(b"[]", how)) as url, pytest.raises(OSError, match=ENDED_EARLY):
        ask_admin(url, None, "GET", "tenants")


@pytest.mark.parametrize("how", CUTS)
def test_a_copy_of_a_store_that_ends_early_is_none(how: str) -> None:
    with answering(cut(b"{}", how)) as url, pytest.raises(StoreCopyFailed, match=url), of_worker(url, set()):
        pytest.fail("it was taken for a copy")
