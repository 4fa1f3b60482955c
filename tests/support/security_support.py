"""Keys, tokens, certificates and topologies of workers that ask who somebody is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passlib.hash import apr_md5_crypt, bcrypt

from replicator.security.tokens import create_token, new_secret, read_secret


@dataclass(frozen=True, slots=True)
class Secrets:
    """A secret key in a directory, and tokens that it signs."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> Secrets:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "secret.key").write_bytes(new_secret())
        return cls(directory)

    @property
    def key(self) -> Path:
        return self.directory / "secret.key"

    def token(self, role: str, *, seconds: float | None = None, **claims: object) -> str:
        """One that counts for so long; for ever without."""
        expires_at = None if seconds is None else time.time() + seconds
        return create_token(read_secret(self.key), role, expires_at=expires_at, claims=claims)

    def token_file(self, role: str) -> Path:
        file = self.directory / f"{role}.token"
        file.write_text(self.token(role))
        return file

    def passwords(self, **passwords: str) -> Path:
        """An htpasswd file, in which the first is hashed with bcrypt and the others as apr1."""
        lines = [
            f"{name}:{(apr_md5_crypt if number else bcrypt.using(rounds=5)).hash(password)}\n"
            for number, (name, password) in enumerate(passwords.items())
        ]
        file = self.directory / "htpasswd"
        file.write_text("".join(lines))
        return file

    def auth(self, **more: object) -> dict[str, Any]:
        """The section of a topology: the superuser is ``operator``, whose token workers show."""
        return {
            "tokens": {"secret_key": str(self.key)},
            "superusers": ["operator"],
            "token_file": str(self.token_file("operator")),
            **more,
        }
