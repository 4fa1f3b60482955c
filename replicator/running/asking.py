"""Address and role behind the current request: set where a request comes in, and read where its effects are noted."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

ASKED_FROM: Final[ContextVar[str]] = ContextVar("ASKED_FROM", default="")
"""Address from which the current request came; empty without a request. Tasks that a request starts have it too."""
ASKED_BY: Final[ContextVar[str]] = ContextVar("ASKED_BY", default="")
"""Role of whoever sent the current request; empty without a request or without authentication."""
