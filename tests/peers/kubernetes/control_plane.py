"""A real Kubernetes API server with etcd, its controllers and its scheduler: processes of this machine, and no node.

``tests/peers/kubernetes/fetch`` builds the programs; etcd is Debian's package ``etcd-server``. It is ready after some
5 s and takes 400 MB. Pods stay pending: what runs them is :mod:`kubelet`. Standard library only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

HERE: Final = Path(__file__).parent
FETCH: Final = HERE / "fetch"
READY_SECONDS_MAX: Final = 180.0
"""Limit of the start; on an idle machine all is ready after 5 s."""
END_SECONDS_MAX: Final = 30.0
LOG_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit of a program's log; one older part of the same size is kept beside it."""
SERVICE_ADDRESSES: Final = "10.96.0.0/16"
"""Range of the addresses of Services, where no other is given."""
_CONF: Final = """\
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "{url}", certificate-authority: "{authority}"}}}}]
users: [{{name: admin, user: {{token: "{token}"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
current-context: here
"""
_CONTROLLERS: Final = "*,-node-ipam-controller,-node-lifecycle-controller,-ttl-controller,-cloud-node-lifecycle"
"""All controllers but those that need a kubelet that comes and goes, or a cloud."""
T = TypeVar("T")


class PeerMissing(Exception):
    """A program is not here; the message says how it gets here."""


class PeerFailed(Exception):
    """A program ended, was not ready in time, or refused what it was asked."""


def where(name: str) -> Path | None:
    """Return the folder of ``helm`` or ``kubernetes``; None if ``fetch`` has not built it."""
    found = subprocess.run([FETCH, "--where", name], capture_output=True, text=True, timeout=30, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def missing() -> str | None:
    """Return why no API server can run here; None if one can."""
    if where("kubernetes") is None or where("helm") is None:
        return "Kubernetes and helm are not built here: tests/peers/kubernetes/fetch (it needs Go)"
    if shutil.which("etcd") is None or shutil.which("openssl") is None:
        return "etcd and openssl are not here (on Debian: etcd-server, openssl)"
    return None


def keep_log(stream: IO[bytes], file: Path, bytes_max: int = LOG_BYTES_MAX) -> threading.Thread:
    """Write what a program says to ``file``, in a thread that ends with the stream; ``file.1`` is the part before."""

    def copy() -> None:
        while True:
            with file.open("wb", buffering=0) as log:
                while log.tell() < bytes_max:
                    said = stream.read1(65_536)  # type: ignore[attr-defined]
                    if not said:
                        return
                    log.write(said)
            file.replace(file.with_name(file.name + ".1"))

    file.touch()
    thread = threading.Thread(target=copy, name=f"log {file.name}", daemon=True)
    thread.start()
    return thread


def end(process: subprocess.Popen[bytes]) -> None:
    """Tell it to end, and kill it if that takes too long."""
    process.terminate()
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ControlPlane:
    """Programs etcd, API server, controllers and scheduler, with their data and logs in ``directory``.

    The API server has a free port at 127.0.0.1, and port 6443 at another ``address``, which pods reach. Services have
    addresses of the range ``services``.
    """

    def __init__(self, directory: Path, address: str = "127.0.0.1", services: str = SERVICE_ADDRESSES) -> None:
        self.directory = directory
        self.token = secrets.token_hex(16)
        self.authority = directory / "certs" / "apiserver.crt"
        self.kubeconfig = directory / "kubeconfig"
        port, self._etcd_port, self._etcd_peer_port = _free_ports(3)
        self._services = services
        self._address, self._port = address, port if address == "127.0.0.1" else 6443
        self.url = f"https://{self._address}:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all programs and wait until pods can be made. Raise :class:`PeerMissing` or :class:`PeerFailed`."""
        why = missing()
        if why is not None:
            raise PeerMissing(why)
        self.directory.mkdir(parents=True, exist_ok=True)
        for arguments in (("genrsa", "-out", "sa.key", "2048"), ("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")):
            subprocess.run(["openssl", *arguments], cwd=self.directory, capture_output=True, check=True, timeout=60)
        (self.directory / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(_CONF.format(url=self.url, authority=self.authority, token=self.token))
        try:
            self._start_programs()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it, the API server before what it keeps its objects in."""
        for name in reversed([*self._processes]):
            end(self._processes.pop(name))

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", seconds: float = 30
    ) -> Any:
        """Ask the API server, as its administrator; raises :class:`PeerFailed` with what it says."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind, "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(
                request, timeout=seconds, context=ssl.create_default_context(cafile=self.authority)
            ) as response:
                said = response.read()
                return json.loads(said) if "json" in response.headers.get("Content-Type", "") else said.decode()
        except urllib.error.HTTPError as error:
            raise PeerFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error

    def helm(self, *arguments: str | Path, seconds: float = 300) -> str:
        """Run helm against it; gives what it says, or raises :class:`PeerFailed` with that."""
        folder = where("helm")
        assert folder is not None
        home = {
            f"HELM_{kind}_HOME": str(self.directory / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")
        }
        ran = subprocess.run(
            [folder / "helm", "--kubeconfig", self.kubeconfig, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **home},
        )
        if ran.returncode != 0:
            raise PeerFailed(f"helm {' '.join(map(str, arguments))}: {ran.stderr}{ran.stdout}")
        return ran.stdout

    def _start_programs(self) -> None:
        folder = where("kubernetes")
        assert folder is not None
        store = f"http://127.0.0.1:{self._etcd_port}"
        peers = f"http://127.0.0.1:{self._etcd_peer_port}"
        self._start(
            "etcd",
            [
                *("etcd", "--data-dir=etcd", f"--listen-client-urls={store}", f"--advertise-client-urls={store}"),
                *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
                f"--initial-cluster=default={peers}",
            ],
        )
        self._start(
            "kube-apiserver",
            [
                str(folder / "kube-apiserver"),
                f"--etcd-servers={store}",
                *(f"--bind-address={self._address}", f"--advertise-address={self._address}"),
                *(f"--secure-port={self._port}", "--cert-dir=certs"),
                # Nothing outside reaches a loopback address, so it may not stand in the Service `kubernetes`.
                f"--endpoint-reconciler-type={'none' if self._address.startswith('127.') else 'lease'}",
                *("--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key"),
                *("--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file=tokens.csv"),
                *("--authorization-mode=RBAC", f"--service-cluster-ip-range={self._services}"),
            ],
        )
        self._until(lambda: self._answers("/readyz"), "the API server's /readyz")
        client = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        client += ["--kube-api-qps=200", "--kube-api-burst=400"]
        self._start(
            "kube-controller-manager",
            [
                *(str(folder / "kube-controller-manager"), *client, f"--controllers={_CONTROLLERS}"),
                *("--use-service-account-credentials=false", "--service-account-private-key-file=sa.key"),
                f"--root-ca-file={self.authority}",
            ],
        )
        # Once it missed that a claim was bound. It looks at such pods again after five minutes: longer than tests wait.
        again = "--pod-max-in-unschedulable-pods-duration=10s"
        self._start("kube-scheduler", [str(folder / "kube-scheduler"), *client, again])
        self._until(
            lambda: (
                self._answers("/api/v1/namespaces/default/serviceaccounts/default")
                and self._answers("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
            ),
            "what the controllers make of a namespace",
        )

    def _start(self, name: str, command: Sequence[str]) -> None:
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        self._processes[name] = process
        keep_log(process.stdout, self.directory / f"{name}.log")

    def _answers(self, path: str) -> bool:
        with suppress(PeerFailed, OSError, ValueError):  # not listening yet, or not far enough
            self.call("GET", path)
            return True
        return False

    def _until(self, condition: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not (value := condition()):
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise PeerFailed(f"{name} ended by itself:\n{self._log_tail(name)}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"not within {READY_SECONDS_MAX:.0f} s: {what}; see {self.directory}")
            time.sleep(0.1)
        return value

    def _log_tail(self, name: str, lines: int = 30) -> str:
        return "\n".join((self.directory / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def control_plane(
    directory: Path, address: str = "127.0.0.1", services: str = SERVICE_ADDRESSES
) -> Iterator[ControlPlane]:
    """Run a control plane while the context lasts."""
    plane = ControlPlane(directory, address, services)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
