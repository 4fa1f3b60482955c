"""A producer that waits for exclusive access does not get it after its permission was taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gateway_support import BareClient
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.protocol.client import Response
from replicator.protocol.commands_pb2 import BaseCommand, CommandCloseProducer, CommandProducer, ProducerAccessMode
from replicator.protocol.errors import Refused

T = BaseCommand.Type
TOPIC = "persistent://public/default/awaited"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets) -> Iterator[ServedWorker]:
    with served_worker(sections={"auth": secrets.auth()}, token=secrets.token("operator")) as served:
        yield served


def producing(client: BareClient, mode: ProducerAccessMode) -> BaseCommand:
    number = client.state.request_id()
    return BaseCommand(
        type=T.PRODUCER,
        producer=CommandProducer(topic=TOPIC, producer_id=1, request_id=number, producer_access_mode=mode),
    )


def answer(client: BareClient) -> Any:
    """Return the next answer to a request of ``client``; raise :class:`Refused` if it is a refusal."""
    while True:
        for at, step in enumerate(client._steps):
            if isinstance(step, Response):
                del client._steps[at]
                if isinstance(step.answer, Refused):
                    raise step.answer
                return step.answer
        client._receive()


def publishers(worker: ServedWorker) -> int:
    return len(worker.ask("GET", "persistent/public/default/awaited/stats").json["publishers"])


def test_who_waited_for_a_topic_is_refused_once_its_permission_is_gone(worker: ServedWorker, secrets: Secrets) -> None:
    granted = "namespaces/public/default/permissions"
    for role in ("first", "second", "third"):
        assert worker.ask("POST", f"{granted}/{role}", '["produce"]').status == 204
    clients = [BareClient(worker.port, token=secrets.token(role)) for role in ("first", "second", "third")]
    first, second, third = clients
    try:
        wait = ProducerAccessMode.WaitForExclusive
        for client in clients:
            client.send(producing(client, wait))
            if client is first:
                answer(client)
            else:
                assert not client.next(T.PRODUCER_SUCCESS).command.producer_success.producer_ready
        assert worker.ask("DELETE", f"{granted}/second").status == 204
        first.request(
            lambda number: BaseCommand(
                type=T.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=1, request_id=number)
            )
        )
        with pytest.raises(Refused, match="may not"):
            answer(second)
        assert answer(third).producer_ready
        assert publishers(worker) == 1
    finally:
        for client in clients:
            client.socket.close()
