"""Container of a pod: processes with namespaces of their own, a root of their own, and the user of the pod."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from pathlib import Path
from typing import Final

from kubelet.api import Object
from replicator.running.timeouts import timeout

_SETUP: Final = """\
set -eu
read -r first rest </proc/self/stat # before /proc is that of the new namespace, where the number is 1
echo $first >{pid}
hostname {hostname}
mount -t tmpfs -o mode=755,size=16m tmpfs {root}
cd {root}
mkdir -p dev etc proc sys tmp var run/names
for top in bin sbin lib lib32 lib64 usr; do
  if [ -L /$top ]; then cp -P /$top .; elif [ -d /$top ]; then mkdir $top; mount --bind -o ro /$top $top; fi
done
(cd /etc; cp -a ld.so.* ssl alternatives localtime {root}/etc; cp -a java-* {root}/etc 2>/dev/null || true)
echo 'hosts: files' >etc/nsswitch.conf
printf 'root:x:0:0::/:/bin/sh\\nimage:x:%s:%s::/:/bin/sh\\n' {user} {group} >etc/passwd
mount --bind -o ro {names} run/names # a folder, because its file is exchanged
ln -s /run/names/hosts etc/hosts
mount -t proc proc proc
mount --rbind -o ro /sys sys
mount --rbind -o ro /dev dev
mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
{mounts}
exec chroot . {command}
"""
_UNSHARED: Final = ("unshare", "--mount", "--pid", "--ipc", "--uts", "sh", "-c", 'sh -c "$0"; exit $?')
"""Command that runs a script as the first process of new namespaces. `unshare --fork` would hide that it was killed."""


class Container:
    """Container of a pod, which can be started again after its end. ``spec`` is its part of the pod's object.

    Its logs and its root go into ``directory``. ``network`` is the name of the pod's network namespace, ``names`` the
    folder with its ``hosts``.
    """

    def __init__(self, pod: Object, spec: Object, directory: Path, network: str, names: Path) -> None:
        self.spec = spec
        self._hostname, self._network, self._names = pod["metadata"]["name"], network, names
        self._directory = directory / self.spec["name"]
        self._security = pod["spec"].get("securityContext", {}) | self.spec.get("securityContext", {})
        self._user, self._group = (int(self._security.get(which, 0)) for which in ("runAsUser", "runAsGroup"))
        assert self._user or not self._security.get("runAsNonRoot"), "runAsNonRoot needs runAsUser: images have no user"
        self._process: asyncio.subprocess.Process | None = None
        (self._directory / "root").mkdir(parents=True)

    async def start(self, environment: dict[str, str], mounts: list[tuple[Path, str, bool]]) -> None:
        """Start the process. Each of ``mounts`` has a source, a path in the container, and whether it is read-only."""
        (self._directory / "pid").unlink(missing_ok=True)
        self._as_user = self._credentials(environment)
        known = [expand(text, environment) for text in [*self.spec["command"], *self.spec.get("args", ())]]
        with (self._directory / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("nsenter", f"--net=/run/netns/{self._network}", *_UNSHARED),
                self._script(mounts, [*self._as_user, *known]),
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )

    async def ended(self) -> int:
        """Wait until the container's first process ends; return its exit status as a shell gives it."""
        assert self._process is not None
        status = await self._process.wait()
        (self._directory / "status").write_text(str(status))
        return status

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to the first process, and after the grace time SIGKILL, which ends all processes."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
            if self._process is not None and self._process.returncode is None and seconds != 0:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    os.kill(await self._first(), number)
                    async with timeout(seconds):
                        await self._process.wait()

    async def run_inside(self, command: list[str]) -> bool:
        """Run a command in the container; return whether it succeeds. Raise ProcessLookupError if it has ended."""
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--all", "--root", "--wd", f"--target={await self._first()}", *self._as_user, *command),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:  # this was cancelled
                process.kill()

    async def _first(self) -> int:
        """Return the id of the container's first process on this machine. Raise ProcessLookupError if it has ended."""
        while self._process is not None and self._process.returncode is None:
            with contextlib.suppress(FileNotFoundError, ValueError):  # not written yet, or not all of it
                return int((self._directory / "pid").read_text())
            await asyncio.sleep(0.005)
        raise ProcessLookupError

    def _credentials(self, environment: dict[str, str]) -> list[str]:
        groups = f"--groups={self._security['fsGroup']}" if "fsGroup" in self._security else "--clear-groups"
        command = ["setpriv", f"--reuid={self._user}", f"--regid={self._group}", groups]
        if self._security.get("allowPrivilegeEscalation") is False:
            command.append("--no-new-privs")
        if "ALL" in self._security.get("capabilities", {}).get("drop", ()):
            command += ["--bounding-set=-all", "--inh-caps=-all"]
        return [*command, "env", "-i", *(f"{name}={value}" for name, value in environment.items())]

    def _script(self, mounts: list[tuple[Path, str, bool]], command: list[str]) -> str:
        lines, locks = [], []
        for source, target, read_only in sorted(mounts, key=lambda mount: mount[1]):
            place = shlex.quote("." + target)
            lines.append(f"mkdir -p {place}; mount --rbind {shlex.quote(str(source))} {place}")
            locks += [f"mount -o remount,bind,ro {place}"] if read_only else []
        locks += ["mount -o remount,ro ."] if self._security.get("readOnlyRootFilesystem") else []
        return _SETUP.format(
            hostname=shlex.quote(self._hostname),
            pid=shlex.quote(str(self._directory / "pid")),
            root=shlex.quote(str(self._directory / "root")),
            names=shlex.quote(str(self._names)),
            user=self._user,
            group=self._group,
            mounts="\n".join([*lines, *locks]),  # locked last, because a volume may be mounted within another one
            command=shlex.join(command),
        )


def expand(text: str, environment: dict[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced by the variable of that name in ``environment``."""
    for name, value in environment.items():
        text = text.replace(f"$({name})", value)
    return text
