"""Names with passwords, as an ``htpasswd`` file has them: bcrypt or apr1. The hashes are libpass'.

A hash takes tens of milliseconds by design, so it is computed on one of a few threads of its own: who guesses waits for
others who guess, and nobody else does. What waits is bounded. What was found right is remembered, keyed by a
secret of this process, so that a client that shows its password with every request costs one hash.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from passlib.apache import HtpasswdFile

from replicator.engine.errors import TooBusy
from replicator.security.errors import NotIdentified, SecurityError
from replicator.security.identity import Identity

CREDENTIALS_BYTES_MAX: Final = 4 * 1024
REMEMBERED_MAX: Final = 1_000
HASHING_MAX: Final = 2
WAITING_MAX: Final = 100
NAME_BYTES_MAX: Final = 255
PASSWORD_BYTES_MAX: Final = 72
"""Limit of bcrypt: it would ignore further bytes."""
_WRONG: Final = "the name or the password is wrong"


class _Hashing:
    """The threads of this process that hash, and the requests that wait for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(HASHING_MAX, "passwords")
        self._waiting = 0

    async def run(
        self, check: Callable[[HtpasswdFile, str, str], bool], file: HtpasswdFile, name: str, password: str
    ) -> bool:
        """Run ``check`` on a thread and return its result. Raise :class:`TooBusy` if too many checks wait."""
        if self._waiting >= WAITING_MAX:
            raise TooBusy("too many passwords are being checked; try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check, file, name, password)
        finally:
            self._waiting -= 1


_HASHING: Final = _Hashing()


class Passwords:
    """The users of one file, as it is when this is made; a reload makes another."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raise :class:`SecurityError`."""
        self._path = path
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, str] = OrderedDict()
        """Hashes for which a name and password were right, by the digest of both."""
        self._file = self._read()

    def known(self, credentials: bytes) -> Identity | None:
        """Return the identity if these credentials were found right before; this computes no hash."""
        name, password = split_credentials(credentials)
        stored = self._stored(name)
        return Identity(name) if stored and self._right.get(self._digest(name, password)) == stored else None

    async def identify(self, credentials: bytes) -> Identity:
        """Return the identity for ``NAME:PASSWORD``. Raise :class:`NotIdentified` or :class:`TooBusy`."""
        if (known := self.known(credentials)) is not None:
            return known
        name, password = split_credentials(credentials)
        stored, file = self._stored(name), self._file
        right = await _HASHING.run(_is_right, file, name, password)
        if not right or stored is None:
            raise NotIdentified(_WRONG)
        self._right[self._digest(name, password)] = stored
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)
        return Identity(name)

    def _stored(self, name: str) -> str | None:
        found = self._file.get_hash(name)
        return found.decode() if isinstance(found, bytes) else found

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{len(name)}:{name}{password}".encode(), hashlib.sha256)

    def _read(self) -> HtpasswdFile:
        try:
            read = HtpasswdFile.from_string(self._path.read_bytes())
            users = read.users()
        except OSError as error:
            raise SecurityError(f"{self._path}: the password file cannot be read: {error.strerror}") from None
        except (ValueError, UnicodeDecodeError):
            raise SecurityError(
                f"{self._path}: not a password file: each line must be NAME:HASH, as htpasswd writes it"
            ) from None
        for name in users:
            stored = read.get_hash(name)
            if not (stored or b"").startswith((b"$2", b"$apr1$")):
                raise SecurityError(
                    f"{self._path}: the hash of {name!r} is neither bcrypt nor apr1; set the password again with "
                    "`htpasswd -B`"
                )
        return read


def _is_right(file: HtpasswdFile, name: str, password: str) -> bool:
    """Return whether a password is right. An unknown name takes as long as the first known one, so that nobody learns
    which names exist.
    """
    users = file.users()
    if name not in users:
        if users:
            file.check_password(users[0], password)
        return False
    return bool(file.check_password(name, password))


def split_credentials(credentials: bytes) -> tuple[str, str]:
    """Split ``NAME:PASSWORD``. Raise :class:`NotIdentified`."""
    if len(credentials) > CREDENTIALS_BYTES_MAX or b"\0" in credentials:
        raise NotIdentified(_WRONG)
    try:
        name, colon, password = credentials.decode().partition(":")
    except UnicodeDecodeError:
        raise NotIdentified(_WRONG) from None
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        raise NotIdentified(_WRONG)
    if not colon or not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise NotIdentified("basic authentication must show NAME:PASSWORD, and shows something else")
    return name, password


def from_header(text: str) -> bytes:
    """Return the content of ``Authorization: Basic …``. Raise :class:`NotIdentified`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotIdentified(
            "basic authentication must show NAME:PASSWORD in base64, and shows something else"
        ) from None
