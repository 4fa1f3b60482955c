"""Address and role behind the current request: set where a request comes in, and read where its effects are noted."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

ASKED_FROM: Final[ContextVar[str]] = ContextVar("ASKED_FROM", default="")
"""The address of the one whose request is being carried out; empty where nobody asked. Tasks that a request starts have
it too."""
ASKED_BY: Final[ContextVar[str]] = ContextVar("ASKED_BY", default="")
"""Their role; empty where nobody is told apart."""
