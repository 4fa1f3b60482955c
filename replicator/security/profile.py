"""Credentials that an operator's tools show to workers, from an option, the environment, or the operator's profile, a
small file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from replicator.security.access import Access, of_environment
from replicator.security.errors import SecurityError

PROFILE: Final = "REPLICATOR_PROFILE"
PROFILE_PLACE: Final = "~/.config/replicator/profile.yaml"
PROFILE_BYTES_MAX: Final = 64 * 1024
_FIELDS: Final = ("token_file", "trust", "certificate", "key")


def access_of_tool(environment: Mapping[str, str] | None = None, token_file: Path | None = None) -> Access:
    """Return a tool's credentials: those of its option, then of the environment, then of the operator's profile. Raise
    :class:`SecurityError`.
    """
    environment = os.environ if environment is None else environment
    found = _over(of_environment(environment), _profile(environment))
    return found if token_file is None else replace(found, token_file=token_file.expanduser(), token=None)


def _over(first: Access, second: Access) -> Access:
    """Return ``first``, with values of ``second`` where it has none."""
    if first.token_file is None and first.token is None:
        first = replace(first, token_file=second.token_file)
    if first.trust is None and first.trust_pem is None:
        first = replace(first, trust=second.trust)
    if first.certificate is None:
        first = replace(first, certificate=second.certificate, key=second.key)
    return first


def _profile(environment: Mapping[str, str]) -> Access:
    """Read the paths in the profile, which is YAML; relative paths are beside the profile."""
    named = environment.get(PROFILE)
    path = Path(named or PROFILE_PLACE).expanduser()
    try:
        with path.open("rb") as file:
            content: Any = yaml.safe_load(file.read(PROFILE_BYTES_MAX))
    except FileNotFoundError:
        if named:
            raise SecurityError(
                f"{path}: there is no such profile; correct or unset the environment variable {PROFILE}"
            ) from None
        return Access()
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is no YAML"
        raise SecurityError(f"{path}: the profile cannot be read: {reason}") from None
    if content is None:
        return Access()
    if not isinstance(content, dict) or not all(isinstance(each, str) for each in content.values()):
        raise SecurityError(
            f"{path}: the profile must be a mapping of {', '.join(_FIELDS)}, each with the path of a file"
        )
    if unknown := [name for name in content if name not in _FIELDS]:
        raise SecurityError(f"{path}: the field {str(unknown[0])[:40]} is unknown; a profile has {', '.join(_FIELDS)}")
    files = {name: path.parent / Path(value).expanduser() for name, value in content.items()}
    return Access(
        token_file=files.get("token_file"),
        trust=files.get("trust"),
        certificate=files.get("certificate"),
        key=files.get("key"),
    )
