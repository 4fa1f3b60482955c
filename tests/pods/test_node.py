"""The node that stands in for kubelet and service proxy does what the tests of the chart rely on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, Final

from pods_support import Cluster, ready

NAMESPACE: Final = "default"
_CLAIM: Final = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_LOOK: Final = """
import json, os, pathlib
def writable(place):
    try:
        pathlib.Path(place, "x").write_text("x")
    except OSError as error:
        return error.strerror
    return "yes"
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "pid": os.getpid(), "cwd": os.getcwd(),
    "capabilities": status["CapBnd"], "no_new_privileges": status["NoNewPrivs"], "root": writable("/"),
    "data": writable("/data"), "scratch": writable("/scratch"), "host": os.path.exists("/root/.bashrc"),
    "name": os.uname().nodename, "files": {str(p): p.read_text() for p in pathlib.Path("/settings").glob("[!.]*")},
    "token": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    "environment": dict(os.environ),
}), flush=True)
"""


def _pod(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "python", "command": command} | spec.pop("container", {})
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": [container], **spec}}


def _make(kubernetes: Cluster, path: str, body: dict[str, Any]) -> None:
    kubernetes.call("POST", f"/api/v1/namespaces/{NAMESPACE}/{path}", body)


def _phase(kubernetes: Cluster, name: str) -> str:
    return str(kubernetes.pod(NAMESPACE, name)["status"].get("phase"))


def _remove(kubernetes: Cluster, name: str) -> None:
    kubernetes.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    kubernetes.until(lambda: name not in kubernetes.pods(NAMESPACE), f"the end of {name}")


def test_a_container_has_the_user_the_root_and_the_files_that_its_pod_asks_for(kubernetes: Cluster) -> None:
    _make(kubernetes, "configmaps", {"metadata": {"name": "settings"}, "data": {"color": "blue"}})
    _make(kubernetes, "secrets", {"metadata": {"name": "hidden"}, "stringData": {"word": "secret"}})
    _make(kubernetes, "persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": _CLAIM})
    mounts = {"data": "/data", "scratch": "/scratch", "settings": "/settings"}
    pod = _pod(
        "looks",
        ["python", "-c", _LOOK],
        restartPolicy="Never",
        securityContext={"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456, "runAsNonRoot": True},
        volumes=[
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "settings", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
        ],
        container={
            "env": [
                {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
                {"name": "WORDS", "value": "the $(WORD) $(OTHER)"},
                {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "securityContext": {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
        },
    )
    _make(kubernetes, "pods", pod)
    kubernetes.until(lambda: _phase(kubernetes, "looks") in ("Succeeded", "Failed"), "the pod's end")
    made = kubernetes.pod(NAMESPACE, "looks")
    seen = json.loads(kubernetes.log(made, "main"))
    environment = seen.pop("environment")
    assert seen == {
        "uid": 1234,
        "gid": 2345,
        "groups": [3456],
        "pid": 1,
        "cwd": "/",
        "capabilities": "0000000000000000",
        "no_new_privileges": "1",
        "root": "Read-only file system",
        "data": "yes",
        "scratch": "yes",
        "host": False,
        "name": "looks",
        "files": {"/settings/color": "blue"},
        "token": True,
    }
    assert environment["WORDS"] == "the secret $(OTHER)"
    assert environment["ADDRESS"] == made["status"]["podIP"]
    assert environment["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    _remove(kubernetes, "looks")


_SERVE: Final = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')"
_ASK: Final = """
import urllib.request
for name in ("site.default.svc", "site"):
    print(urllib.request.urlopen(f"http://{name}", timeout=20).status)
"""


def test_a_service_reaches_the_pods_that_are_ready_by_its_name(kubernetes: Cluster) -> None:
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 10}
    web = _pod("web", ["python", "-c", _SERVE], terminationGracePeriodSeconds=1, container={"readinessProbe": probe})
    _make(kubernetes, "pods", web)
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    _make(kubernetes, "services", {"metadata": {"name": "site"}, "spec": service})
    kubernetes.until(lambda: ready(kubernetes.pod(NAMESPACE, "web")), "the pod web")
    # Until the controllers have written that it is ready, connections end at once: then it asks again.
    _make(kubernetes, "pods", _pod("asks", ["python", "-c", _ASK], restartPolicy="OnFailure"))
    kubernetes.until(lambda: _phase(kubernetes, "asks") == "Succeeded", "the answer")
    assert kubernetes.log(kubernetes.pod(NAMESPACE, "asks"), "main") == "200\n200\n"
    for name in ("web", "asks"):
        _remove(kubernetes, name)
    kubernetes.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/services/site")


_END_THEN_FALL_SICK: Final = """
rm -f /scratch/sick
if [ ! -e /scratch/second ]; then touch /scratch/second; exit 7; fi
sleep 1; touch /scratch/sick; sleep 600
"""


def test_a_container_that_ends_or_fails_its_liveness_probe_is_started_again(kubernetes: Cluster) -> None:
    times = {"periodSeconds": 1, "timeoutSeconds": 20, "failureThreshold": 1}
    probe = {"exec": {"command": ["test", "!", "-e", "/scratch/sick"]}, **times}
    pod = _pod(
        "restarts",
        ["sh", "-c", _END_THEN_FALL_SICK],
        terminationGracePeriodSeconds=1,
        volumes=[{"name": "scratch", "emptyDir": {}}],
        container={"livenessProbe": probe, "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
    )
    _make(kubernetes, "pods", pod)

    def status_of_end(number: int) -> Any:
        for status in kubernetes.pod(NAMESPACE, "restarts")["status"].get("containerStatuses", ()):
            if status["restartCount"] == number:
                return status["lastState"]["terminated"]["exitCode"]
        return None

    assert kubernetes.until(lambda: status_of_end(1), "its first restart") == 7
    # The first process of a container does not heed a SIGTERM that it has no handler for: so it was killed.
    assert kubernetes.until(lambda: status_of_end(2), "its second restart") == 128 + signal.SIGKILL
    _remove(kubernetes, "restarts")


def test_containers_before_a_pods_own_are_run_in_turn_until_each_succeeds(kubernetes: Cluster) -> None:
    """The first one fails once; the next ones find what it left behind."""
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    again = "test -e /scratch/tried || { touch /scratch/tried; exit 3; }"
    before = {"first": again, "second": "cp /scratch/tried /scratch/second"}
    pod = _pod(
        "prepared",
        ["sh", "-c", "ls /scratch; sleep 600"],
        terminationGracePeriodSeconds=1,
        volumes=[{"name": "scratch", "emptyDir": {}}],
        initContainers=[
            {"name": name, "image": "python", "command": ["sh", "-c", script], "volumeMounts": mounts}
            for name, script in before.items()
        ],
        container={"volumeMounts": mounts},
    )
    _make(kubernetes, "pods", pod)
    kubernetes.until(lambda: _phase(kubernetes, "prepared") == "Running", "the pod's own container")
    running = kubernetes.pod(NAMESPACE, "prepared")
    kubernetes.until(lambda: kubernetes.log(running, "main").split() == ["second", "tried"], "what was left behind")
    _remove(kubernetes, "prepared")


def test_files_of_a_configmap_follow_it(kubernetes: Cluster) -> None:
    settings = {"metadata": {"name": "moves"}, "data": {"color": "blue", "old": "x"}}
    _make(kubernetes, "configmaps", settings)
    script = 'until [ "$(cat /settings/color)" = red ]; do sleep 0.2; done; ls /settings'
    pod = _pod(
        "follows",
        ["sh", "-c", script],
        restartPolicy="Never",
        volumes=[{"name": "settings", "configMap": {"name": "moves"}}],
        container={"volumeMounts": [{"name": "settings", "mountPath": "/settings", "readOnly": True}]},
    )
    _make(kubernetes, "pods", pod)
    kubernetes.until(lambda: _phase(kubernetes, "follows") == "Running", "the pod")
    changed = {**settings, "data": {"color": "red"}}
    kubernetes.call("PUT", f"/api/v1/namespaces/{NAMESPACE}/configmaps/moves", changed)
    kubernetes.until(lambda: _phase(kubernetes, "follows") == "Succeeded", "that the pod sees the change")
    assert kubernetes.log(kubernetes.pod(NAMESPACE, "follows"), "main") == "color\n"
    _remove(kubernetes, "follows")


_TAKE_TIME_TO_END: Final = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(2)
    pathlib.Path("/data/done").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path("/data/up").touch()
time.sleep(600)
"""


def test_a_deleted_pod_has_its_grace_period(kubernetes: Cluster) -> None:
    _make(kubernetes, "persistentvolumeclaims", {"metadata": {"name": "grace"}, "spec": _CLAIM})
    probe = {"exec": {"command": ["test", "-e", "/data/up"]}, "periodSeconds": 1, "timeoutSeconds": 20}
    pod = _pod(
        "graceful",
        ["python", "-c", _TAKE_TIME_TO_END],
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "grace"}}],
        container={"readinessProbe": probe, "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    )
    _make(kubernetes, "pods", pod)
    kubernetes.until(lambda: ready(kubernetes.pod(NAMESPACE, "graceful")), "the pod")
    _remove(kubernetes, "graceful")
    claim = kubernetes.call("GET", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/grace")
    volume = kubernetes.call("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    assert Path(volume["spec"]["hostPath"]["path"], "done").exists()
