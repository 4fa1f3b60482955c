"""Tests beside programs that nobody here wrote are skipped where these cannot run; where they must run, they fail."""

from __future__ import annotations

import os

import pytest


def require(missing: str | None) -> None:
    """Skip, or fail where ``REPLICATOR_PEERS=required``, if something is ``missing``: why, in words."""
    if missing is None:
        return
    if os.environ.get("REPLICATOR_PEERS") == "required":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
