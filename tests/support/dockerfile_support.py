"""Reader of helm/Dockerfile: its stages and their instructions. Here-documents are not read, for the file has none."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
DOCKERFILE: Final = REPOSITORY / "helm" / "Dockerfile"
IGNORE: Final = REPOSITORY / "helm" / "Dockerfile.dockerignore"


@dataclass
class Stage:
    """One stage, with its own instructions."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.instructions if name == instruction]


def stages() -> dict[str, Stage]:
    """Return the stages by name, in their order."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    found: dict[str, Stage] = {}
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            found[stage] = current = Stage(base, stage)
        elif found:
            current.instructions.append((name, rest.strip()))
    return found


def lineage(name: str) -> list[Stage]:
    """Return a stage and those that it is made from, the first one first."""
    all_stages = stages()
    stage = all_stages[name]
    return [*(lineage(stage.base) if stage.base in all_stages else []), stage]


def copy_context(to: Path) -> None:
    """Copy the files of the repository that a build sees."""
    shutil.copytree(REPOSITORY, to, ignore=_ignored, dirs_exist_ok=True)


def _ignored(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not _is_sent((Path(folder) / name).relative_to(REPOSITORY).as_posix())}


def _is_sent(path: str) -> bool:
    """Return whether a build sees a path. The last pattern that fits it, or a folder above it, decides."""
    sent = True
    places = [path, *(parent.as_posix() for parent in Path(path).parents if parent.as_posix() != ".")]
    for line in IGNORE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        anywhere = line.startswith("**/")
        if any(fnmatch(Path(place).name if anywhere else place, pattern) for place in places):
            sent = line.startswith("!")
    return sent
