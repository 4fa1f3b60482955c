"""Keys of tokens from a URL: a JWKS, as identity providers publish theirs, kept in memory and fetched anew.

It is fetched when the worker starts, every :data:`REFRESH_SECONDS`, and soon after a token names a key that is not
there (not more often than every :data:`ASKED_SECONDS_MIN`, whatever tokens strangers make up). Checking a token never
waits for it. While the URL does not answer the keys that are there go on counting.
"""

from __future__ import annotations

import asyncio
import http
import json
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import structlog

from replicator.running.connecting import why_no_answer
from replicator.running.supervisor import SupervisedTask, Supervisor
from replicator.running.timeouts import timeout
from replicator.security.errors import SecurityError
from replicator.security.tokens import Key, key_of_jwk

REFRESH_SECONDS: Final = 300.0
ASKED_SECONDS_MIN: Final = 10.0
ANSWER_SECONDS_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100

log = structlog.get_logger(__name__)


class KeySet:
    """The keys at one URL."""

    def __init__(self, url: str, former: KeySet | None = None) -> None:
        """Make the key set. The keys of ``former`` count until those of this URL are there."""
        self.url = url
        self._keys: Mapping[str, Key] = {} if former is None else former._keys
        self._wanted = asyncio.Event()

    def key_for(self, key_id: str | None) -> Key | None:
        """Return the key of the id that a token names. A token without an id gets the only key, if there is exactly
        one.
        """
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        key = self._keys.get(key_id)
        if key is None:
            self._wanted.set()
        return key

    def start(self, supervisor: Supervisor) -> SupervisedTask:
        return supervisor.start("keys of tokens", f"keys of tokens {self.url}", self._run)

    async def fetch(self) -> None:
        """Fetch the keys. Raise :class:`SecurityError`; then the former keys go on counting."""
        try:
            async with (
                timeout(ANSWER_SECONDS_MAX),
                aiohttp.ClientSession() as session,
                session.get(self.url, allow_redirects=False) as response,
            ):
                if response.status != http.HTTPStatus.OK:
                    raise SecurityError(
                        f"{self.url}: the keys that check tokens cannot be fetched: HTTP status {response.status}; "
                        "see that auth.tokens.jwks has the right address"
                    )
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        break
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SecurityError(
                f"{self.url}: the keys that check tokens cannot be fetched: {why_no_answer(error, remedy='')}; see "
                "that auth.tokens.jwks has the right address and that its server runs"
            ) from None
        if len(body) > ANSWER_BYTES_MAX:
            raise SecurityError(
                f"{self.url}: the answer is over {ANSWER_BYTES_MAX} bytes, too many for keys that check tokens; see "
                "that auth.tokens.jwks is the address of a key set"
            )
        self._keys = read_key_set(bytes(body), self.url)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self.fetch()
            except SecurityError as error:
                log.warning("keys of tokens are as they were", reason=str(error), keys=len(self._keys))
                self._wanted.set()  # soon again
            await asyncio.sleep(ASKED_SECONDS_MIN)
            try:
                async with timeout(REFRESH_SECONDS - ASKED_SECONDS_MIN):
                    await self._wanted.wait()
            except TimeoutError:
                pass


def read_key_set(body: bytes, url: str) -> dict[str, Key]:
    """Return the public keys that can be used; ignore others. Raise :class:`SecurityError` if there are none."""
    try:
        listed: Any = json.loads(body)["keys"]
        jwks = [each for each in listed if isinstance(each, dict)][:KEYS_MAX]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SecurityError(
            f"{url}: not a key set (JWKS): it has no list `keys`; correct the address in auth.tokens.jwks"
        ) from None
    found: dict[str, Key] = {}
    for number, jwk in enumerate(jwks):
        try:
            found[str(jwk.get("kid", number))] = key_of_jwk(jwk)
        except SecurityError as error:
            log.info(
                "a key of a key set is passed over", url=url, key=str(jwk.get("kid", number))[:100], reason=str(error)
            )
    if not found:
        raise SecurityError(
            f"{url}: the key set has no public key of RSA or a NIST curve to check tokens with; add one, or correct "
            "the address in auth.tokens.jwks"
        )
    return found
