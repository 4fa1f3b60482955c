"""``replicator tokens``: makes keys and tokens, and shows what a token says. It asks no worker."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.commands import Commands
from replicator.cli.json_types import TokenAnswer, TokenContents
from replicator.cli.output import Shown

app = Commands(help="Keys and tokens for authentication.", no_args_is_help=True)

PRIVATE_MODE = 0o600
TOKEN_CHARS_READ = 64 * 1024

SecretKey = Annotated[
    Path | None,
    typer.Option("--secret-key", metavar="FILE", help="File of the secret that signs and checks tokens (HS256)."),
]
PrivateKey = Annotated[
    Path | None,
    typer.Option("--private-key", metavar="FILE", help="File of the private key that signs tokens (RS256 or ES256)."),
]
PublicKey = Annotated[
    Path | None,
    typer.Option("--public-key", metavar="FILE", help="File of the public key that checks tokens (RS256 or ES256)."),
]


@app.command("create-secret-key")
def create_secret_key(
    secret_key: Annotated[
        Path,
        typer.Option("--output-secret-key", metavar="FILE", help="File to write the secret key to; it must not exist."),
    ],
) -> None:
    """Make a secret key. Every worker needs it, and whoever has it can make tokens for everybody."""
    from replicator.security.tokens import new_secret

    _write_new(secret_key, new_secret(), PRIVATE_MODE)


@app.command("create-key-pair")
def create_key_pair(
    private_key: Annotated[
        Path,
        typer.Option(
            "--output-private-key", metavar="FILE", help="File to write the private key to, which signs tokens."
        ),
    ],
    public_key: Annotated[
        Path,
        typer.Option(
            "--output-public-key", metavar="FILE", help="File to write the public key to, which workers need."
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm", "-a", metavar="RS256|ES256", help="Kind of the keys: RSA (RS256) or elliptic curve (ES256)."
        ),
    ] = "RS256",
) -> None:
    """Make a private key, which makes tokens, and its public key, which can only check them."""
    from replicator.security.tokens import new_key_pair

    if algorithm not in ("RS256", "ES256"):
        raise typer.BadParameter(f"--algorithm is RS256 or ES256, not {algorithm[:20]!r}")
    private, public = new_key_pair(algorithm)
    _write_new(private_key, private, PRIVATE_MODE)
    _write_new(public_key, public, 0o644)


@app.command()
def create(
    subject: Annotated[
        str,
        typer.Option(
            "--subject", "-s", metavar="ROLE", help="Role that the token proves: whoever shows it has the role."
        ),
    ],
    secret_key: SecretKey = None,
    private_key: PrivateKey = None,
    expiry_time: Annotated[
        str | None,
        typer.Option(
            "--expiry-time",
            "-e",
            metavar="DURATION",
            help="Time until the token expires, such as 30d. Default: it never expires.",
        ),
    ] = None,
    audience: Annotated[
        str | None,
        typer.Option(
            "--audience",
            metavar="NAME",
            help="Audience that the token is for, as `auth.tokens.audience` of the topology says; without it, none.",
        ),
    ] = None,
) -> Shown[TokenAnswer]:
    """Print a token for a role."""
    from replicator.security.tokens import create_token, read_private_key, read_secret
    from replicator.topology.scalars import parse_duration

    if (secret_key is None) == (private_key is None):
        raise typer.BadParameter("give exactly one of --secret-key and --private-key: the key that signs the token")
    key = read_secret(secret_key) if secret_key is not None else read_private_key(str(private_key))
    expires_at = None
    if expiry_time is not None:
        try:
            seconds = parse_duration(expiry_time)
        except ValueError as error:
            raise typer.BadParameter(f"--expiry-time: {error}") from None
        expires_at = time.time() + float(str(seconds))
    token = create_token(key, subject, expires_at=expires_at, claims={} if audience is None else {"aud": audience})
    return Shown({"token": token}, token)


@app.command()
def show(
    token: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOKEN]", help="Token whose contents are printed. Default: it is read from standard input."
        ),
    ] = None,
    secret_key: SecretKey = None,
    public_key: PublicKey = None,
) -> Shown[TokenContents]:
    """Print what a token says; with a key also whether it counts. Exit status 1 if it does not."""
    from replicator.security.errors import NotIdentified
    from replicator.security.tokens import SingleKey, Tokens, as_text, read_public_key, read_secret, show_token

    text = (token or sys.stdin.read(TOKEN_CHARS_READ)).strip()
    header, claims = show_token(text)
    said: TokenContents = {"header": header, "claims": claims}
    if secret_key is None and public_key is None:
        return Shown(said, as_text(said))
    key = read_secret(secret_key) if secret_key is not None else read_public_key(str(public_key))
    try:
        identity = Tokens(SingleKey(key)).identify(text)
    except NotIdentified as error:
        return Shown({**said, "counts": False}, as_text(said), status=1, notes=[f"it does not count: {error}"])
    return Shown({**said, "counts": True}, as_text(said), notes=[f"it counts, for role {identity.role}"])


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Never over a key that is there: who lost it could make no tokens for it any more."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise typer.BadParameter(f"{path}: the key cannot be written to a new file there: {error.strerror}") from None
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
