"""Completion of the shell: what is offered, and that each shell's script is printed and installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from admin_support import Admin, administered
from cli_support import PROGRAM as PROGRAM_HERE
from cli_support import VERBS, options
from typer._completion_classes import BashComplete

from snapshots.position import BEFORE_ALL

PROGRAM = Path(sys.executable).with_name("replicator")


TOPOLOGY = """
clusters:
  solo: {address: "127.0.0.1:9", data: ./solo}
  other: {address: "127.0.0.1:19", data: ./other}
links:
  - {from: solo, to: other, name: fast}
  - {from: other, to: solo, name: back}
"""


def completed(shell: str, line: str) -> str:
    """Return the completions after ``line``, as the shell's script asks for them."""
    environment = {**os.environ, "_REPLICATOR_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    if shell == "fish":
        environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_formats_are_offered(shell: str) -> None:
    assert "subscriptions" in completed(shell, "replicator subsc")
    assert "--watch" in completed(shell, "replicator status --wat")
    assert "yaml" in completed(shell, "replicator status --output ya")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed_and_installed_below_the_home_directory(tmp_path: Path, shell: str) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        environment.pop(name, None)
    shown, installed = (
        subprocess.run(
            [PROGRAM, option, shell], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        for option in ("--show-completion", "--install-completion")
    )
    assert shown.returncode == 0, shown.stderr
    assert "_REPLICATOR_COMPLETE" in shown.stdout
    assert installed.returncode == 0, installed.stderr
    written = [each for each in tmp_path.rglob("*") if each.is_file()]
    scripts = [each for each in written if "_REPLICATOR_COMPLETE" in each.read_text()]
    assert len(scripts) == 1, written
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n", scripts[0]], check=True, timeout=60)


def offered(line: str) -> set[str]:
    """Return bash's completions, computed in this process; a space at the end begins a new word."""
    *words, incomplete = line.split(" ")
    return {each.value for each in BashComplete(PROGRAM_HERE, {}, "replicator", "").get_completions(words, incomplete)}


def test_names_of_clusters_and_links_are_those_of_the_topology(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    with_file = f"-f {file}"
    for command in ("worker", "topics list", "links list", "store check", "doctor", "backup create"):
        assert offered(f"{command} {with_file} --cluster ") == {"solo", "other"}, command
    assert offered(f"failover {with_file} --from s") == {"solo"}
    assert offered(f"links pause {with_file} --to ") == {"solo", "other"}
    assert offered(f"links pause {with_file} --name ") == {"fast", "back"}
    assert offered(f"links pause {with_file} --from solo --to other --name ") == {"fast"}
    assert offered(f"backfill {with_file} --link ") == {"fast", "back"}
    assert completed("bash", f"replicator worker {with_file} --cluster so").split() == ["solo"]


def test_names_of_namespaces_topics_and_subscriptions_are_those_of_the_worker(tmp_path: Path) -> None:
    async def work(admin: Admin) -> None:
        engine = admin.engine
        await engine.partitioned.create("persistent://public/default/parts", 2)
        for name in ("orders", "outcomes", "stock"):
            await engine.topic(f"persistent://public/default/{name}")
        topic = await engine.topic("persistent://public/default/orders")
        for subscription in ("billing", "search"):
            await topic.subscriptions.create(subscription, BEFORE_ALL)

        async def named(line: str) -> set[str]:
            return await asyncio.to_thread(offered, line.replace("@", f"--url {admin.url}"))

        assert await named("topics stats @ o") == {"orders", "outcomes"}
        assert await named("topics stats @ par") == {"parts"}
        assert await named("topics stats @ public/default/or") == {"public/default/orders"}
        assert await named("topics stats @ persistent://pub") == {"persistent://public/default/"}
        assert await named("topics stats @ persistent://public/default/st") == {"persistent://public/default/stock"}
        assert await named("topics policies @ out") == {"outcomes"}
        assert await named("namespaces policies @ pub") == {"public/default"}
        assert await named("namespaces delete @ pub") == {"public/default"}
        assert await named("subscriptions clear @ orders ") == {"billing", "search"}
        assert await named("subscriptions clear @ no-such-topic ") == set()
        assert await named("topics stats @ no/such/") == set()

    async def main() -> None:
        async with administered(tmp_path) as admin:
            await work(admin)

    asyncio.run(main())


def test_nothing_is_offered_and_nothing_fails_where_the_topology_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("clusters: [")
    for file in ("broken.yaml", "missing.yaml"):
        assert offered(f"worker -f {tmp_path / file} --cluster ") == set()
    assert offered("worker --cluster ") == set()
    assert offered("subscriptions seek --to ") == set()
    assert offered("topics stats --url http://127.0.0.1:9 o") == set()
    assert offered("topics stats o") == set()


def test_every_option_that_names_a_cluster_is_completed() -> None:
    for verb in VERBS:
        for name, option in options(verb).items():
            if option.metavar == "CLUSTER" or (name == "--cluster" and verb != "init"):
                assert option._custom_shell_complete is not None, (verb, name)
