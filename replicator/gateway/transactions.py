"""Transactions: refused. Stored as any other message, one of a transaction would be seen before its commit.

Upstream without a transaction coordinator answers the first thing that clients ask with NotAllowedError, and they give
up; what only follows that is answered the same way, in its own shape.
"""

from __future__ import annotations

from typing import Any, Final

from replicator.gateway.connection import Connection
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandNewTxnResponse,
    CommandOfTransactionResponse,
    CommandTcClientConnectResponse,
    ServerError,
)
from replicator.protocol.frames import Frame

T = BaseCommand.Type
REASON: Final = "Transactions are not supported: this cluster has no transaction coordinator"
_SHAPES: Final[dict[int, tuple[str, BaseCommand.Type, str, type[Any]]]] = {
    T.TC_CLIENT_CONNECT_REQUEST: (
        "tcClientConnectRequest",
        T.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectResponse",
        CommandTcClientConnectResponse,
    ),
    T.NEW_TXN: ("newTxn", T.NEW_TXN_RESPONSE, "newTxnResponse", CommandNewTxnResponse),
    **{
        kind: (field, answer, f"{field}Response", CommandOfTransactionResponse)
        for kind, field, answer in (
            (T.ADD_PARTITION_TO_TXN, "addPartitionToTxn", T.ADD_PARTITION_TO_TXN_RESPONSE),
            (T.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE),
            (T.END_TXN, "endTxn", T.END_TXN_RESPONSE),
            (T.END_TXN_ON_PARTITION, "endTxnOnPartition", T.END_TXN_ON_PARTITION_RESPONSE),
            (T.END_TXN_ON_SUBSCRIPTION, "endTxnOnSubscription", T.END_TXN_ON_SUBSCRIPTION_RESPONSE),
        )
    },
}
"""Shape of each request type: its field, the type and field of its answer, and the answer's message."""


def refuse(connection: Connection, frame: Frame) -> None:
    """Any command of transactions."""
    field, kind, answer_field, answer = _SHAPES[frame.command.type]
    request = getattr(frame.command, field)
    refusal = answer(request_id=request.request_id, error=ServerError.NotAllowedError, message=REASON)
    connection.send(BaseCommand(type=kind, **{answer_field: refusal}))
