"""Sessions of signed-in browsers of this worker's dashboard, and the tokens of its forms.

What somebody showed stays in this process's memory; their browser has a random id in a cookie that scripts cannot read
and that other sites' requests do not bear. A form bears a token that is made from that id and a secret of this process:
another site can neither read nor guess it. A restart of the worker signs everybody out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SESSIONS_MAX: Final = 1_000
"""The one that was not used for longest goes first."""
IDLE_SECONDS_MAX: Final = 8 * 3600.0
ID_CHARS: Final = 43
"""Number of characters of an id, which is made of 32 random bytes."""


@dataclass(slots=True)
class _Session:
    authorization: str
    used_at: float


class Sessions:
    """Sessions of one worker's dashboard."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    @staticmethod
    def new_id() -> str:
        return secrets.token_urlsafe(32)

    def sign_in(self, authorization: str) -> str:
        """Keep credentials; return a new session id, whatever id the browser had before."""
        session_id = self.new_id()
        self._sessions[session_id] = _Session(authorization, self._clock())
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def sign_out(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def authorization(self, session_id: str) -> str | None:
        """Return the browser's credentials; None if it has not signed in, or has not come back for hours."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now = self._clock()
        if now - session.used_at > IDLE_SECONDS_MAX:
            del self._sessions[session_id]
            return None
        session.used_at = now
        self._sessions.move_to_end(session_id)
        return session.authorization

    def is_signed_in(self, session_id: str) -> bool:
        """Return whether that browser is signed in. Unlike a request of its user, this does not prolong the session."""
        session = self._sessions.get(session_id)
        return session is not None and self._clock() - session.used_at <= IDLE_SECONDS_MAX

    def form_token(self, session_id: str) -> str:
        """Return the token of the forms that this browser gets."""
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session_id: str, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session_id).encode(), token.encode("utf-8", "replace"))


def is_id(text: str) -> bool:
    """Return whether a cookie has the form of an id."""
    return len(text) == ID_CHARS and text.isascii() and text.replace("-", "").replace("_", "").isalnum()
