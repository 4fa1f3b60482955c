"""Python processes of a local master whose connection Spark closes."""

from __future__ import annotations

import socket

import pytest

from replicator.pipeline.spark import python_daemon


@pytest.mark.parametrize(
    ("error", "status"), [(BrokenPipeError(32, "gone"), 1), (ConnectionResetError(104, "gone"), 1), (None, 0)]
)
def test_a_connection_that_spark_closes_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None, status: int
) -> None:
    def ends(_: socket.socket, authenticated: bool) -> int:
        assert authenticated
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(python_daemon, "_worker", ends)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert python_daemon.worker(ours, True) == status


def test_other_errors_of_a_process_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: socket.socket, __: bool) -> int:
        raise ValueError("of the task")

    monkeypatch.setattr(python_daemon, "_worker", fails)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="of the task"):
        python_daemon.worker(ours, True)
