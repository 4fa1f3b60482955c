"""Credentials that a process shows: from an option, the environment or a profile; and a token file that is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.security.access import Access, of_environment
from replicator.security.errors import SecurityError
from replicator.security.profile import access_of_tool


def profile(directory: Path, text: str) -> dict[str, str]:
    (directory / "profile.yaml").write_text(text)
    return {"REPLICATOR_PROFILE": str(directory / "profile.yaml")}


def test_an_option_comes_before_the_environment_and_that_before_the_profile(tmp_path: Path) -> None:
    for name in ("option", "environment", "profile"):
        (tmp_path / name).write_text(f"token-of-{name}\n")
    kept = profile(tmp_path, "token_file: profile\ntrust: ca.pem\n")
    assert access_of_tool(kept).current_token() == "token-of-profile"
    assert access_of_tool(kept).trust == tmp_path / "ca.pem"
    said = kept | {"REPLICATOR_TOKEN_FILE": str(tmp_path / "environment")}
    assert access_of_tool(said).current_token() == "token-of-environment"
    assert access_of_tool(kept | {"REPLICATOR_TOKEN": "as-it-is"}).current_token() == "as-it-is"
    assert access_of_tool(said, tmp_path / "option").current_token() == "token-of-option"
    assert access_of_tool({"REPLICATOR_PROFILE": ""}, None).current_token() is None


@pytest.mark.parametrize("text", ["- a list", "token_file: 3", "password: x", "{", "token: abc"])
def test_a_profile_of_another_form_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(SecurityError, match=r"profile\.yaml"):
        access_of_tool(profile(tmp_path, text))


def test_a_token_that_is_replaced_counts_from_then_on_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    access = Access(token_file=file, token="instead")
    assert access.authorization() == "Bearer first"
    file.write_text("second\n")
    assert access.authorization() == "Bearer second"
    file.unlink()
    assert access.authorization() == "Bearer instead", "where the file cannot be read"
    assert "instead" not in repr(access)
    with pytest.raises(SecurityError, match="cannot be read"):
        Access(token_file=file).authorization()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SecurityError, match="not a token"):
        Access(token_file=file).authorization()


def test_what_goes_to_tasks_elsewhere_holds_what_the_files_hold(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    here = Access(token_file=tmp_path / "token", tls=True, trust=tmp_path / "ca.pem")
    assert "abc" not in here.as_environment().values(), "on this host the file says it"
    there = here.as_environment(with_secrets=True)
    for name in ("token", "ca.pem"):
        (tmp_path / name).unlink()
    read = of_environment(there)
    assert (read.current_token(), read.tls, read.trust, read.trust_pem) == ("abc", True, None, "CERTIFICATE")
