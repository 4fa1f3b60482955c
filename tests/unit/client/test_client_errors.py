"""Every error of the engine that a client can meet has a name of its own at the client."""

from __future__ import annotations

import pytest

from replicator.client import errors
from replicator.client.errors import (
    ConnectError,
    InvalidConfiguration,
    ProducerBlockedQuotaExceededException,
    ProducerFenced,
    PulsarException,
    UnknownError,
    from_code,
    from_engine,
    from_loss,
)
from replicator.engine import errors as engine_errors
from replicator.engine.errors import EngineError

NOT_OF_CLIENTS = {
    "BlockCorrupt",
    "CopyGap",
    "IncarnationMismatch",
    "LogMoved",
    "MarkerNewer",
    "FrameTooLarge",
    "NoRoomToOpen",
    "NotReclaimed",
    "StoreCopyFailed",
} | {
    "InvalidWriter",
    "StagingFull",
    "StagedMissing",
    "AttemptAborted",
    "CommitPending",
    "WriterMoved",
    "SchemaNotFound",
    "IncompatibleSchema",
}
"""Errors that clients never get: of copying, of the store's own blocks, of Spark's staging; and of schemas, which only
clients of the binary protocol register."""
ENGINE_ERRORS = [
    kind
    for kind in vars(engine_errors).values()
    if isinstance(kind, type) and issubclass(kind, EngineError) and kind is not EngineError
]


@pytest.mark.parametrize("kind", ENGINE_ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_of_the_engine_is_known_to_the_client(kind: type[EngineError]) -> None:
    error = from_engine(kind("why"))
    assert isinstance(error, UnknownError) is (kind.__name__ in NOT_OF_CLIENTS)
    assert "why" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InvalidHashRanges", InvalidConfiguration),
        ("BacklogQuotaExceeded", ProducerBlockedQuotaExceededException),
        ("InvalidPolicies", InvalidConfiguration),
        ("ProducerBusy", errors.ProducerBusy),
        ("InvalidSeek", errors.InvalidSeek),
    ],
)
def test_a_code_has_the_name_that_users_know(code: str, kind: type[PulsarException]) -> None:
    assert type(from_code(code, "why")) is kind


@pytest.mark.parametrize("code", ["ProducerClosed", "EntryCorrupt", "InternalError", "NotAllowedError", "ProducerBusy"])
def test_a_loss_is_a_connect_error_after_which_one_may_connect_again(code: str) -> None:
    error = from_loss(code, "why")
    assert type(error) is ConnectError
    assert code in str(error)


def test_only_the_loss_of_a_fenced_producer_is_final() -> None:
    assert type(from_loss("ProducerFenced", "why")) is ProducerFenced


def test_a_broker_that_says_no_code_is_quoted_alone() -> None:
    error = from_loss("", "why")
    assert type(error) is ConnectError
    assert str(error) == "why"
