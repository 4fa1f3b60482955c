"""``replicator tokens``: what it makes is what workers take, and what it shows."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from replicator.cli.main import app
from replicator.security.tokens import SingleKey, Tokens, TokenSettings, read_public_key, read_secret


def run(*arguments: str, said: str | None = None) -> Result:
    return CliRunner().invoke(app, ["tokens", *arguments], input=said)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_pair_of_keys_signs_and_checks_and_the_private_one_is_ones_own(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    files = ("--output-private-key", str(private), "--output-public-key", str(public))
    assert run("create-key-pair", *files, "--algorithm", algorithm).exit_code == 0
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    before = private.read_bytes()
    assert run("create-key-pair", *files).exit_code != 0, "a key that is there is not written over"
    assert private.read_bytes() == before

    made = run("create", "--private-key", str(private), "--subject", "app", "--expiry-time", "30d", "--audience", "x")
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    identity = Tokens(SingleKey(read_public_key(public)), TokenSettings(audience="x")).identify(token)
    assert identity.role == "app"
    assert identity.expires_at is not None

    shown = run("show", token, "--public-key", str(public))
    assert shown.exit_code == 0
    told = json.loads(shown.stdout[: shown.stdout.rindex("}") + 1])
    assert (told["header"]["alg"], told["claims"]["sub"]) == (algorithm, "app")


def test_a_secret_key_signs_and_checks_and_a_token_that_does_not_count_is_said_to(tmp_path: Path) -> None:
    secret, other = tmp_path / "secret.key", tmp_path / "other.key"
    for each in (secret, other):
        assert run("create-secret-key", "--output-secret-key", str(each)).exit_code == 0
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    token = run("create", "--secret-key", str(secret), "--subject", "app").stdout.strip()
    assert Tokens(SingleKey(read_secret(secret))).identify(token).role == "app"
    assert run("show", "--secret-key", str(secret), said=token).exit_code == 0
    wrong = run("show", token, "--secret-key", str(other))
    assert wrong.exit_code == 1
    assert "does not count" in wrong.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--subject", "app"),
        ("create", "--subject", "app", "--secret-key", "a", "--private-key", "b"),
        ("create-key-pair", "--output-private-key", "a", "--output-public-key", "b", "--algorithm", "none"),
        ("show", "this is no token"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments).exit_code != 0
    assert not list(tmp_path.iterdir())
