"""Stands in for what Debian has not of Kubernetes: kubelets, a scheduler, and controllers.

It binds pods to nodes, runs their containers as real processes, and tells the API server of them,
in the words of Kubernetes 1.20. It knows of a pod's spec what the tests of a provider need:

* of the scheduler, requests, ``nodeSelector``, required node affinity, required pod anti-affinity,
  taints, cordons, priorities without preemption;
* of the kubelet, commands, environments, volumes, users, restarts, graceful ends, images that are
  not there. Probes, hooks and init containers are none of it, and limits are not enforced;
* of the controllers, each namespace's default account, and the CA that pods get.
"""

import base64
import contextlib
import datetime
import http
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from support.containers import Command, Container, Mount

TURN_S = 0.1
BEAT_S = 5.0  # between two words of a node
RETRY_S = 0.5  # to look again for an image, a secret or a claim
RESTART_S, MOST_RESTART_S = 0.5, 30.0  # a real kubelet waits 10 s first, and at most 300 s
LEAST_GRACE_S = 2.0
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROTA_IMAGE = "rota:test"  # has the Python that runs the tests
GPU = "nvidia.com/gpu"
TOKEN_MODE = 0o600
QUEUE = "kueue.x-k8s.io/queue-name"
OVER = ("Succeeded", "Failed")
KUBE_API_ERRORS = (httpx.HTTPError,)
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
UNITS = {"": 1, "m": Decimal("0.001")} | {
    f"{letter}{end}": base**power
    for end, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kMGTPE" if not end else "KMGTPE", 1)
}

Told = dict[str, Any]  # an object of the API


@contextlib.contextmanager
def refuse(*statuses: int) -> Iterator[None]:
    """Passes over such answers of the server."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in statuses:
            raise


gone_or_changed = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


class Image:
    """What an image brings: its environment, and its command if a container names none."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] = (),
        user: int = 0,
    ) -> None:
        self.environment = {"PATH": PATHS} | dict(environment or {})
        self.entrypoint, self.user = entrypoint, user


class Node:
    """What a kubelet knows of itself."""

    def __init__(self, name: str, address: str, gpus: int) -> None:
        self.name, self.address, self.gpus = name, address, gpus
        self.has_power = self.is_connected = True
        self.next_beat = 0.0


class Run:
    """A container of a pod: its current run, and what is known of those before."""

    def __init__(self, spec: Told) -> None:
        self.name, self.spec = spec["name"], spec
        self.container: Container | None = None
        self.waits: Told = {"reason": "ContainerCreating"}
        self.began = ""
        self.ended: Told | None = None  # the state of the run that is over
        self.last: Told | None = None  # and of the one before
        self.restarts = 0
        self.next_s = 0.0  # when to start it, at the earliest

    def state(self) -> Told:
        if self.waits:
            return {"waiting": self.waits}
        return {"terminated": self.ended} if self.ended else {"running": {"startedAt": self.began}}


class Pod:
    """A pod on a node, from when its kubelet hears of it until nothing of it is left."""

    def __init__(self, told: Told, node: Node, folder: Path) -> None:
        self.told, self.node, self.folder = told, node, folder
        self.namespace, self.name = told["metadata"]["namespace"], told["metadata"]["name"]
        self.uid = told["metadata"]["uid"]
        self.runs = [Run(spec) for spec in told["spec"]["containers"]]
        self.began = _now()
        self.gpus: list[int] = []
        self.refused: Told | None = None  # the status of a pod that does not fit
        self.is_deleted = False  # without grace: the server knows it no more
        self.must_end_s: float | None = None
        self.said: Told = {}

    def is_running(self) -> bool:
        return any(run.container is not None for run in self.runs)

    def is_over(self) -> bool:
        """True if no container runs, or will again."""
        return self.refused is not None or all(self._is_over(run) for run in self.runs)

    def _is_over(self, run: Run) -> bool:
        if run.container is not None or run.ended is None:
            return False
        policy = self.told["spec"].get("restartPolicy", "Always")
        again = policy == "Always" or (policy == "OnFailure" and run.ended["exitCode"] != 0)
        return self.must_end_s is not None or not again


class Kubelets:
    """All nodes, and the scheduler; ``images`` may be changed at any time.

    While ``holds_queues``, pods with a queue's label wait until ``admit`` is called for it, as they
    do for Kueue.
    """

    def __init__(self, base: Path, client: httpx.Client, ca: Path) -> None:
        base.mkdir()
        self._base, self._client, self._ca = base, client, ca
        python = {"PATH": f"{Path(sys.executable).parent}:{PATHS}"}
        self.images = {"busybox": Image(), ROTA_IMAGE: Image(python)}
        self.holds_queues = False
        self._admitted: set[tuple[str, str]] = set()  # namespaces and queues
        self._nodes: dict[str, Node] = {}
        self._told: dict[str, Told] = {}  # pods as the server has them, by uid
        self._told_nodes: dict[str, Told] = {}
        self._pods: dict[str, Pod] = {}
        self._lock = threading.RLock()
        self._wake, self._stops = threading.Event(), threading.Event()
        self._faults: list[str] = []
        watched = [("/api/v1/pods", self._hear_pods), ("/api/v1/nodes", self._hear_nodes)]
        watched.append(("/api/v1/namespaces", self._hear_namespaces))
        self._threads = [
            threading.Thread(target=self._watch, args=each, daemon=True) for each in watched
        ]
        self._threads.append(threading.Thread(target=self._turns, daemon=True))

    def start(self) -> None:
        """Returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when no container runs any more; the server may be stopped then."""
        self._stops.set()
        self._wake.set()
        self._threads[-1].join()
        for pod in self._pods.values():
            for run in pod.runs:
                if run.container is not None:
                    run.container.kill()

    def close(self) -> None:
        """Ends with the server; tells what went wrong in between."""
        for thread in self._threads:
            thread.join()
        self._client.close()
        assert not self._faults, self._faults[0]

    # What tests do.

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The server's answer; raises ``httpx.HTTPStatusError`` if it refuses."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._client.request(
            method,
            path,
            params={key: str(value) for key, value in query.items()},
            content=None if body is None else json.dumps(body),
            headers={"Content-Type": kind},
        )
        if answer.is_error:
            words = f"{method} {path}: {answer.text}"
            raise httpx.HTTPStatusError(words, request=answer.request, response=answer)
        return answer.json()

    def add_node(self, name: str, address: str, gpus: int) -> None:
        """Have a node that the server knows run pods."""
        with self._lock:
            self._nodes[name] = Node(name, address, gpus)

    def admit(self, namespace: str, queue: str) -> None:
        """Have pods of a queue run, those that come later too."""
        with self._lock:
            self._admitted.add((namespace, queue))
        self._wake.set()

    def forget_queues(self) -> None:
        """Hold no pods, and have admitted none."""
        with self._lock:
            self.holds_queues = False
            self._admitted.clear()
        self._wake.set()

    def cut_power(self, name: str) -> None:
        """Kill all that runs on a node; the server hears no more of it."""
        with self._lock:
            node = self._nodes[name]
            node.has_power = False
            runs = [
                run
                for pod in self._pods.values()
                if pod.node is node
                for run in pod.runs
                if run.container is not None
            ]
            for run in runs:
                run.container.send(signal.SIGKILL)
            for run in runs:
                run.container.kill()
                self._end(run, 255, reason="Unknown")

    def cut_off(self, name: str) -> None:
        """A node's pods run on, and its kubelet hears and tells nothing."""
        with self._lock:
            self._nodes[name].is_connected = False

    def mend(self, name: str) -> None:
        """A node has power, and is connected."""
        with self._lock:
            node = self._nodes[name]
            node.has_power = node.is_connected = True
            node.next_beat = 0.0
        self._wake.set()

    def kills(self, namespace: str) -> bool:
        """True if pods of a namespace that are deleted have processes, on connected nodes."""
        with self._lock:
            return any(
                pod.namespace == namespace and pod.node.is_connected and pod.node.has_power
                for pod in self._pods.values()
            )

    def log(self, namespace: str, name: str) -> str:
        """What the containers of the pods of a name have printed, in all their runs."""
        files = sorted(self._base.glob(f"{namespace}_{name}_*/*/*/log"), key=os.path.getmtime)
        return "".join(file.read_text(errors="replace") for file in files)

    def containers(self, namespace: str, name: str) -> list[Container]:
        """The running containers of a pod."""
        with self._lock:
            return [
                run.container
                for pod in self._pods.values()
                if (pod.namespace, pod.name) == (namespace, name)
                for run in pod.runs
                if run.container is not None
            ]

    def beat(self, name: str) -> None:
        """Tell that a node is ready."""
        words = {"status": "True", "reason": "KubeletReady"}
        words["message"] = "kubelet is posting ready status"
        self.tell_condition(name, words)

    def tell_condition(self, name: str, words: Mapping[str, str]) -> None:
        """Tell whether a node is ready."""
        now = _now()
        path = f"/api/v1/nodes/{name}"
        old = _condition(self.call("GET", path), "Ready")
        condition = {"type": "Ready", "lastHeartbeatTime": now, "lastTransitionTime": now, **words}
        if old and old["status"] == words["status"]:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
        if words["status"] == "Unknown" and old:
            condition["lastHeartbeatTime"] = old["lastHeartbeatTime"]
        self.call("PATCH", f"{path}/status", {"status": {"conditions": [condition]}})

    def tell_pod_is_not_ready(self, pod: Told) -> None:
        """As the controller of nodes does when a pod's node is lost."""
        self._tell_conditions(pod, {"Ready": ("False", "", "")})

    # What the server tells.

    def _watch(self, path: str, hear: Callable[[str, Sequence[Told]], None]) -> None:
        while not self._stops.is_set():
            with contextlib.suppress(*KUBE_API_ERRORS):
                found = self.call("GET", path)
                hear("ALL", found["items"])
                since = {"watch": "true", "resourceVersion": found["metadata"]["resourceVersion"]}
                with self._client.stream("GET", path, params=since, timeout=None) as stream:
                    for line in stream.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        hear(event["type"], [event["object"]])
            self._stops.wait(TURN_S)

    def _hear_pods(self, event: str, pods: Sequence[Told]) -> None:
        with self._lock:
            _take_in(self._told, event, pods, "uid")
            for uid, pod in self._pods.items():
                pod.is_deleted = uid not in self._told
                pod.told = self._told.get(uid, pod.told)
        self._wake.set()

    def _hear_nodes(self, event: str, nodes: Sequence[Told]) -> None:
        with self._lock:
            _take_in(self._told_nodes, event, nodes, "name")
        self._wake.set()

    def _hear_namespaces(self, event: str, namespaces: Sequence[Told]) -> None:
        if event == "DELETED":
            return
        for namespace in namespaces:
            path = f"/api/v1/namespaces/{namespace['metadata']['name']}"
            certificate = {
                "metadata": {"name": "kube-root-ca.crt"},
                "data": {"ca.crt": self._ca.read_text()},
            }
            with refuse(http.HTTPStatus.CONFLICT, http.HTTPStatus.FORBIDDEN):
                self.call("POST", f"{path}/configmaps", certificate)
            with refuse(http.HTTPStatus.CONFLICT, http.HTTPStatus.FORBIDDEN):
                self.call("POST", f"{path}/serviceaccounts", {"metadata": {"name": "default"}})

    # What they do.

    def _turns(self) -> None:
        while not self._stops.is_set():
            self._wake.wait(TURN_S)
            self._wake.clear()
            try:
                with self._lock:
                    self._turn()
            except httpx.TransportError:
                self._stops.wait(TURN_S)
            except Exception:
                self._faults.append(traceback.format_exc())
                self._stops.wait(RETRY_S)

    def _turn(self) -> None:
        self._schedule()
        for uid, told in self._told.items():
            node = self._nodes.get(told["spec"].get("nodeName", ""))
            phase = told["status"].get("phase")
            if node and _works(node) and uid not in self._pods and phase not in OVER:
                about = told["metadata"]
                name = f"{about['namespace']}_{about['name']}_{uid}"
                self._pods[uid] = Pod(told, node, self._base / name)
                self._accept(self._pods[uid])
        for uid, pod in list(self._pods.items()):
            if _works(pod.node):
                with refuse(*gone_or_changed):
                    self._tend(pod)
                if pod.is_deleted and not pod.is_running():
                    del self._pods[uid]
                    self._keep_logs(pod)
        for node in self._nodes.values():
            if _works(node) and time.monotonic() >= node.next_beat:
                node.next_beat = time.monotonic() + BEAT_S
                with refuse(*gone_or_changed):
                    self.beat(node.name)

    def _keep_logs(self, pod: Pod) -> None:
        """The folders that it had are none of any other pod's."""
        shutil.rmtree(pod.folder / "volumes", ignore_errors=True)

    # The scheduler.

    def _schedule(self) -> None:
        waiting = [
            pod
            for pod in self._told.values()
            if not pod["spec"].get("nodeName")
            and pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"
            and pod["status"].get("phase") not in OVER
            and "deletionTimestamp" not in pod["metadata"]
        ]
        waiting.sort(
            key=lambda pod: (-pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"])
        )
        for pod in waiting:
            about = pod["metadata"]
            path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
            if self._is_held(pod):
                words = "Scheduling is blocked due to non-empty scheduling gates"
                self._tell_conditions(pod, {"PodScheduled": ("False", "SchedulingGated", words)})
                continue
            node, words = self._place(pod)
            if node is None:
                self._tell_conditions(pod, {"PodScheduled": ("False", "Unschedulable", words)})
                continue
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            with refuse(*gone_or_changed):
                body = {"metadata": {"name": about["name"], "uid": about["uid"]}, "target": target}
                self.call("POST", f"{path}/binding", body)
                self._told[about["uid"]] = self.call("GET", path)

    def _is_held(self, pod: Told) -> bool:
        about = pod["metadata"]
        queue = about.get("labels", {}).get(QUEUE)
        wanted = (about["namespace"], queue)
        return self.holds_queues and queue is not None and wanted not in self._admitted

    def _place(self, pod: Told) -> tuple[str | None, str]:
        """The node for a pod, with most GPUs free, then CPUs; or None, and why."""
        fitting, why = [], []
        for name, node in self._told_nodes.items():
            found = self._why_not(pod, node)
            why += found
            if not found:
                free = self._free(node)
                fitting.append((-free.get(GPU, 0), -free.get("cpu", 0), name))
        if fitting:
            return min(fitting)[2], ""
        if not self._told_nodes:
            return None, "no nodes available to schedule pods"
        counts = sorted(f"{why.count(reason)} {reason}" for reason in set(why))
        total = len(self._told_nodes)
        return None, f"0/{total} nodes are available: {', '.join(counts)}."

    def _why_not(self, pod: Told, node: Told) -> list[str]:
        """Why a pod can't be on a node: the first kind of reason, as the scheduler stops there."""
        tolerations = pod["spec"].get("tolerations", [])
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        if node["spec"].get("unschedulable") and not _tolerates(tolerations, cordon):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints", []):
            if taint["effect"] != "PreferNoSchedule" and not _tolerates(tolerations, taint):
                named = f"{{{taint['key']}: {taint.get('value', '')}}}"
                return [f"node(s) had taint {named}, that the pod didn't tolerate"]
        if not _selects_node(pod, node):
            return ["node(s) didn't match Pod's node affinity"]
        if lacking := self._lacking(pod, node):
            return [f"Insufficient {name}" for name in lacking]
        if self._repels(pod, node):
            return ["node(s) didn't match pod affinity/anti-affinity"]
        return []

    def _free(self, node: Told, but: str = "") -> dict[str, Decimal]:
        free = {key: _amount(each) for key, each in node["status"].get("allocatable", {}).items()}
        for uid, pod in self._told.items():
            here = pod["spec"].get("nodeName") == node["metadata"]["name"]
            if here and pod["status"].get("phase") not in OVER and uid != but:
                for key, amount in _requests(pod).items():
                    free[key] = free.get(key, Decimal(0)) - amount
        return free

    def _lacking(self, pod: Told, node: Told) -> list[str]:
        free = self._free(node, pod["metadata"]["uid"])
        wanted = _requests(pod).items()
        return [key for key, amount in wanted if amount and amount > free.get(key, Decimal(0))]

    def _repels(self, pod: Told, node: Told) -> bool:
        """True if required anti-affinity keeps it from a node: its own, or that of pods there."""
        labels = node["metadata"].get("labels", {})
        for other in self._told.values():
            there = self._told_nodes.get(other["spec"].get("nodeName", ""))
            if there is None or other["status"].get("phase") in OVER:
                continue
            for one, two in ((pod, other), (other, pod)):
                for term in _anti_affinity(one):
                    key = term["topologyKey"]
                    near = there["metadata"].get("labels", {}).get(key)
                    if key in labels and near == labels[key] and _is_meant(term, one, two):
                        return True
        return False

    def _tell_conditions(self, pod: Told, wanted: Mapping[str, tuple[str, str, str]]) -> None:
        """Set conditions of a pod: status, reason and message by type; others stay."""
        conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
        is_new = False
        for kind, (status, reason, message) in wanted.items():
            new = {"type": kind, "status": status, "reason": reason, "message": message}
            old = conditions.get(kind, {})
            if any(old.get(key, "") != value for key, value in new.items()):
                is_new = True
                moved = old.get("status") != status
                new["lastTransitionTime"] = _now() if moved else old["lastTransitionTime"]
                conditions[kind] = {key: value for key, value in new.items() if value}
        if is_new:
            self._tell_status(pod, {"conditions": [*conditions.values()]})

    def _tell_status(self, pod: Told, status: Told) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/status"
        with refuse(*gone_or_changed):
            body = {"metadata": {"uid": about["uid"]}, "status": status}
            told = self.call("PATCH", path, body)
            pod["status"] = told["status"]

    # The kubelet.

    def _accept(self, pod: Pod) -> None:
        """Take a pod that was bound here, unless it does not fit."""
        node = self._told_nodes[pod.node.name]
        if lacking := self._lacking(pod.told, node):
            name = lacking[0]
            used = _amount(node["status"]["allocatable"].get(name, "0"))
            free = self._free(node, pod.uid).get(name, Decimal(0))
            wanted = _requests(pod.told)[name]
            words = f"Pod Node didn't have enough resource: {name}, requested: {wanted}, "
            words += f"used: {used - free}, capacity: {used}"
            pod.refused = {"phase": "Failed", "reason": f"OutOf{name}", "message": words}
            return
        taken = {
            each
            for other in self._pods.values()
            if other.node is pod.node and not other.is_over()
            for each in other.gpus
        }
        free_gpus = [each for each in range(pod.node.gpus) if each not in taken]
        pod.gpus = free_gpus[: int(_requests(pod.told).get(GPU, 0))]

    def _tend(self, pod: Pod) -> None:
        ends = pod.is_deleted or "deletionTimestamp" in pod.told["metadata"]
        now = time.monotonic()
        for run in pod.runs:
            if run.container is not None and (code := run.container.exit_code()) is not None:
                self._end(run, code)
        if ends:
            self._end_gracefully(pod, now)
        elif pod.refused is None:
            for run in pod.runs:
                if run.container is None and now >= run.next_s:
                    self._begin(pod, run, now)
        if not pod.is_deleted:
            self._tell_pod(pod)
            if ends and not pod.is_running():
                about = pod.told["metadata"]
                path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": about["uid"]}}
                self.call("DELETE", path, options)

    def _end_gracefully(self, pod: Pod, now: float) -> None:
        about, spec = pod.told["metadata"], pod.told["spec"]
        grace = about.get("deletionGracePeriodSeconds", spec["terminationGracePeriodSeconds"])
        ends = now + max(float(grace), LEAST_GRACE_S)
        if pod.must_end_s is None:
            pod.must_end_s = ends
            number = signal.SIGTERM
        elif now >= min(pod.must_end_s, ends):
            number = signal.SIGKILL
        else:
            return
        for run in pod.runs:
            if run.container is not None:
                run.container.send(number)

    def _end(self, run: Run, code: int, reason: str = "") -> None:
        container, run.container = run.container, None
        run.ended = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "startedAt": run.began,
            "finishedAt": _now(),
        }
        if container and (words := container.message()):
            run.ended["message"] = words
        wait = min(RESTART_S * 2 ** max(run.restarts - 1, 0), MOST_RESTART_S)
        run.next_s = time.monotonic() + (wait if run.restarts else 0.0)

    def _begin(self, pod: Pod, run: Run, now: float) -> None:
        """Start a container, unless it is over, must wait, or lacks something."""
        if run.ended is not None:
            policy = pod.told["spec"]["restartPolicy"]
            code = run.ended["exitCode"]
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return
        image = self.images.get(run.spec["image"])
        if image is None:
            named = run.spec["image"]
            if run.waits.get("reason") == "ErrImagePull":
                words = f'Back-off pulling image "{named}"'
                run.waits = {"reason": "ImagePullBackOff", "message": words}
            elif run.waits.get("reason") != "ImagePullBackOff":
                words = (
                    f'rpc error: code = NotFound desc = failed to pull and unpack image "{named}"'
                )
                words += f': failed to resolve reference "{named}": {named}: not found'
                run.waits = {"reason": "ErrImagePull", "message": words}
            run.next_s = now + RETRY_S
            return
        try:
            command = self._command(pod, run, image)
        except Lacks as lack:
            run.waits = {"reason": lack.reason}
            if lack.reason != "ContainerCreating":
                run.waits["message"] = str(lack)
            run.next_s = now + RETRY_S
            return
        if run.ended is not None:
            run.restarts += 1
            run.last, run.ended = run.ended, None
        run.container = Container(pod.folder / run.name / str(run.restarts), command)
        run.waits, run.began = {}, _now()

    def _tell_pod(self, pod: Pod) -> None:
        """Tell the server what has changed."""
        if pod.refused is not None:
            status = dict(pod.refused)
        else:
            states = [_container_status(run, self._waits(pod, run)) for run in pod.runs]
            status = {"phase": _phase(pod), "containerStatuses": states}
            status |= {"hostIP": pod.node.address, "startTime": pod.began}
            if any(run.began for run in pod.runs):
                address = pod.node.address
                status |= {"podIP": address, "podIPs": [{"ip": address}]}
        if status == pod.said:
            return
        pod.said = status
        is_ready = pod.refused is None and all(run.container for run in pod.runs)
        reason = "" if is_ready else "ContainersNotReady"
        if status["phase"] == "Succeeded":
            reason = "PodCompleted"
        now = _now()
        conditions = {each["type"]: each for each in pod.told["status"].get("conditions", [])}
        for kind in ("Initialized", "Ready", "ContainersReady"):
            true = kind == "Initialized" or is_ready
            new = {"type": kind, "status": "True" if true else "False", "lastTransitionTime": now}
            if kind != "Initialized" and reason:
                new["reason"] = reason
            old = conditions.get(kind)
            if old and old["status"] == new["status"]:
                new["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[kind] = new
        self._tell_status(pod.told, status | {"conditions": [*conditions.values()]})

    def _waits(self, pod: Pod, run: Run) -> Told:
        """Why a container does not run that will: until it is started anew, that it is again."""
        if run.ended is None or pod.is_over() or run.container or not run.restarts:
            return run.state()
        wait = max(run.next_s - time.monotonic(), 0.0)
        words = f"back-off {wait:.0f}s restarting failed container={run.name} pod={pod.name}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": words}}

    def _command(self, pod: Pod, run: Run, image: Image) -> Command:
        spec, whole = run.spec, pod.told["spec"]
        security = {**whole.get("securityContext", {}), **spec.get("securityContext", {})}
        user = security.get("runAsUser", image.user)
        if security.get("runAsNonRoot") and user == 0:
            words = "container has runAsNonRoot and image will run as root"
            raise Lacks("CreateContainerConfigError", words)
        group = security.get("runAsGroup", 0)
        owner = whole.get("securityContext", {}).get("fsGroup")
        others = [*security.get("supplementalGroups", []), *([] if owner is None else [owner])]
        volumes = {each["name"]: each for each in whole.get("volumes", [])}
        sources = {
            name: self._volume(pod, volumes[name], user, owner)
            for name in {each["name"] for each in spec.get("volumeMounts", [])}
        }
        mounts = []
        for each in spec.get("volumeMounts", []):
            source, is_fixed = sources[each["name"]]
            if part := each.get("subPath"):
                source = source / part
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append(Mount(source, each["mountPath"], is_fixed or each.get("readOnly", False)))
        environment = self._environment(pod, run, image, user)
        words = spec.get("command", [*image.entrypoint]) or []
        words = [_expand(word, environment) for word in (*words, *spec.get("args", []))]
        return Command(
            words=words,
            environment=environment,
            folder=spec.get("workingDir", "/"),
            user=user,
            group=group,
            other_groups=others,
            mounts=mounts,
            has_read_only_root=security.get("readOnlyRootFilesystem", False),
            message_path=spec["terminationMessagePath"],
            has_message_from_log=spec["terminationMessagePolicy"] == "FallbackToLogsOnError",
        )

    def _environment(self, pod: Pod, run: Run, image: Image, user: int) -> dict[str, str]:
        url = self._client.base_url
        found = {**image.environment, "HOSTNAME": pod.name}
        found.setdefault("HOME", "/" if user else "/root")
        found |= {"KUBERNETES_SERVICE_HOST": url.host, "KUBERNETES_SERVICE_PORT": str(url.port)}
        if pod.gpus:
            found["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, pod.gpus))
        for each in run.spec.get("envFrom", []):
            for kind, source in each.items():
                if kind != "prefix":
                    data = self._data(pod, kind.removesuffix("Ref"), source, "name")
                    start = each.get("prefix", "")
                    found |= {f"{start}{key}": value.decode() for key, value in data.items()}
        for each in run.spec.get("env", []):
            source = each.get("valueFrom")
            if source is None:
                found[each["name"]] = _expand(each.get("value", ""), found)
            elif "fieldRef" in source:
                found[each["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
            else:
                ((kind, key),) = source.items()
                data = self._data(pod, kind.removesuffix("KeyRef"), key, "name")
                if key["key"] in data:
                    found[each["name"]] = data[key["key"]].decode()
                elif not key.get("optional"):
                    named = "Secret" if kind == "secretKeyRef" else "ConfigMap"
                    words = f"couldn't find key {key['key']} in {named} "
                    words += f"{pod.namespace}/{key['name']}"
                    raise Lacks("CreateContainerConfigError", words)
        return found

    def _data(self, pod: Pod, kind: str, source: Told, key: str) -> dict[str, bytes]:
        """What a secret or a config map holds."""
        name = source[key]
        path = f"/api/v1/namespaces/{pod.namespace}/{kind.lower()}s/{name}"
        try:
            told = self.call("GET", path)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != http.HTTPStatus.NOT_FOUND:
                raise
            if source.get("optional"):
                return {}
            lack = "CreateContainerConfigError" if key == "name" else "ContainerCreating"
            raise Lacks(lack, f'{kind.lower()} "{name}" not found') from None
        if kind == "secret":
            return {key: base64.b64decode(each) for key, each in told.get("data", {}).items()}
        return {key: each.encode() for key, each in told.get("data", {}).items()}

    def _volume(self, pod: Pod, volume: Told, user: int, owner: int | None) -> tuple[Path, bool]:
        """The folder of a volume, and whether it can't be written to."""
        name = volume["name"]
        ((kind, source),) = ((key, each) for key, each in volume.items() if key != "name")
        if kind == "hostPath":
            return Path(source["path"]), False
        if kind == "persistentVolumeClaim":
            return self._claimed(pod, source["claimName"]), source.get("readOnly", False)
        folder = pod.folder / "volumes" / name
        if kind == "emptyDir":
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o777)
                if owner is not None:
                    os.chown(folder, -1, owner)
                    folder.chmod(0o2777)
            return folder, False
        mode = source.get("defaultMode", 0o644)
        for path, (data, own) in self._projected(pod, kind, source).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod((own or mode) | (0o040 if owner is not None else 0))
            # A token is the user's alone, and its mode the only one that is that strict.
            os.chown(file, user if own == TOKEN_MODE else 0, 0 if owner is None else owner)
        folder.mkdir(parents=True, exist_ok=True)
        return folder, True

    def _claimed(self, pod: Pod, claim: str) -> Path:
        """The folder of a claim, the same on all nodes."""
        path = f"/api/v1/namespaces/{pod.namespace}/persistentvolumeclaims/{claim}"
        try:
            self.call("GET", path)
        except httpx.HTTPStatusError:
            words = f'persistentvolumeclaim "{claim}" not found'
            raise Lacks("ContainerCreating", words) from None
        folder = self._base / "claims" / pod.namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def _projected(self, pod: Pod, kind: str, source: Told) -> dict[str, tuple[bytes, int]]:
        """The files of a volume that is made from the API: data and mode, 0 for the volume's."""
        if kind == "projected":
            files: dict[str, tuple[bytes, int]] = {}
            for part in source["sources"]:
                ((each, own),) = part.items()
                files |= self._projected(pod, each, own)
            return files
        if kind == "downwardAPI":
            return {
                item["path"]: (_field(pod, item["fieldRef"]["fieldPath"]).encode(), 0)
                for item in source["items"]
            }
        if kind == "serviceAccountToken":
            account = pod.told["spec"]["serviceAccountName"]
            path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token"
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
            audiences = [source["audience"]] if "audience" in source else []
            asked = {"expirationSeconds": source["expirationSeconds"], "boundObjectRef": bound}
            told = self.call("POST", path, {"spec": asked | {"audiences": audiences}})
            return {source["path"]: (told["status"]["token"].encode(), TOKEN_MODE)}
        key = "secretName" if kind == "secret" and "secretName" in source else "name"
        data = self._data(pod, kind, source | {"volume": source[key]}, "volume")
        if "items" not in source:
            return {name: (each, 0) for name, each in data.items()}
        return {
            item["path"]: (data[item["key"]], item.get("mode", 0))
            for item in source["items"]
            if item["key"] in data
        }


class Lacks(Exception):
    """A container can't be started yet: the reason as its status tells it."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _works(node: Node) -> bool:
    return node.has_power and node.is_connected


def _take_in(known: dict[str, Told], event: str, told: Sequence[Told], key: str) -> None:
    if event == "ALL":
        known.clear()
    for each in told:
        if event == "DELETED":
            known.pop(each["metadata"][key], None)
        else:
            known[each["metadata"][key]] = each


def _condition(told: Told, kind: str) -> Told | None:
    found = [each for each in told["status"].get("conditions", []) if each["type"] == kind]
    return found[0] if found else None


def _amount(text: str) -> Decimal:
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()
    return Decimal(number) * UNITS[unit]


def _requests(pod: Told) -> dict[str, Decimal]:
    total = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for key, each in container.get("resources", {}).get("requests", {}).items():
            total[key] = total.get(key, Decimal(0)) + _amount(each)
    return total


def _tolerates(tolerations: Sequence[Told], taint: Told) -> bool:
    return any(
        each.get("effect") in (None, "", taint["effect"])
        and each.get("key") in (None, "", taint["key"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _matches(labels: Mapping[str, str], expressions: Sequence[Told]) -> bool:
    for each in expressions:
        value, kind = labels.get(each["key"]), each["operator"]
        if kind in ("In", "NotIn"):
            if (value in each["values"]) != (kind == "In"):
                return False
        elif (value is not None) != (kind == "Exists"):
            return False
    return True


def _selects_node(pod: Told, node: Told) -> bool:
    spec, labels = pod["spec"], node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    return required is None or any(
        _matches(labels, term.get("matchExpressions", []))
        and _matches(fields, term.get("matchFields", []))
        for term in required["nodeSelectorTerms"]
    )


def _anti_affinity(pod: Told) -> list[Told]:
    affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    terms: list[Told] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return terms


def _is_meant(term: Told, of: Told, other: Told) -> bool:
    """True if a term of one pod's anti-affinity is about the other."""
    selector, labels = term.get("labelSelector"), other["metadata"].get("labels", {})
    namespaces = term.get("namespaces") or [of["metadata"]["namespace"]]
    return (
        selector is not None
        and other["metadata"]["namespace"] in namespaces
        and all(labels.get(key) == each for key, each in selector.get("matchLabels", {}).items())
        and _matches(labels, selector.get("matchExpressions", []))
    )


def _phase(pod: Pod) -> str:
    if pod.is_over():
        failed = any(run.ended is None or run.ended["exitCode"] for run in pod.runs)
        return "Failed" if failed else "Succeeded"
    return "Running" if all(run.began for run in pod.runs) else "Pending"


def _container_status(run: Run, state: Told) -> Told:
    last = {"terminated": run.last} if run.last else {}
    if "waiting" in state and run.ended:
        last = {"terminated": run.ended}
    return {
        "name": run.name,
        "image": run.spec["image"],
        "imageID": f"sha256:{run.spec['image']}" if run.began else "",
        "ready": run.container is not None,
        "started": run.container is not None,
        "restartCount": run.restarts,
        "state": state,
        "lastState": last,
    }


def _field(pod: Pod, path: str) -> str:
    """What the downward API tells of a pod."""
    known = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node.name,
        "spec.serviceAccountName": pod.told["spec"]["serviceAccountName"],
        "status.hostIP": pod.node.address,
        "status.podIP": pod.node.address,
    }
    if part := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        found: str = pod.told["metadata"].get(part[1], {}).get(part[2], "")
        return found
    return known[path]


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """A value or a word with ``$(NAME)`` replaced."""
    name = r"\$\(([A-Za-z_.][-A-Za-z0-9_.]*)\)"
    return re.sub(name, lambda found: environment.get(found[1], found[0]), text)
