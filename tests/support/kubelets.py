"""Stands in for what Debian has not of Kubernetes: kubelets, a scheduler, and controllers.

It binds pods to nodes, runs their containers as real processes, and tells the API server of them,
in the words of Kubernetes 1.20. It knows of a pod's spec what the tests of a provider need:

* of the scheduler, what ``support.pod_placing`` lists, and priorities without preemption;
* of the kubelet, commands, environments, volumes, users, restarts, graceful ends, and images that
  are not there. Probes and hooks are none of it, and limits are not enforced;
* of the controllers, each namespace's default account, and the CA that pods get.
"""

import contextlib
import http
import json
import os
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

from support.containers import Container
from support.pod_contents import PATHS, Contents, Image, Lacks
from support.pod_placing import GPU, OVER, Places, amount, requests
from support.pod_runs import Node, Pod, Run, moved, now

TURN_S = 0.1
BEAT_S = 5.0  # between two words of a node
RETRY_S = 0.5  # to look again for an image, a secret or a claim
ROTA_IMAGE = "rota:test"  # has the Python that runs the tests
QUEUE = "kueue.x-k8s.io/queue-name"
GONE_OR_CHANGED = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)
READY = {"status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}

Told = dict[str, Any]  # an object of the API


@contextlib.contextmanager
def passing_over(*statuses: int) -> Iterator[None]:
    """Passes over such answers of the server."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in statuses:
            raise


def ask(client: httpx.Client, method: str, path: str, body: object = None, **query: object) -> Any:
    """The server's answer; raises ``httpx.HTTPStatusError`` if it refuses."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = client.request(
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
        self._places = Places({}, {})  # pods and nodes as the server has them
        self._pods: dict[str, Pod] = {}  # that are on nodes
        self._contents = Contents(self.call, client.base_url, base / "claims")
        self._lock = threading.RLock()
        self._wake, self._stops = threading.Event(), threading.Event()
        self._faults: list[str] = []
        self._turning = threading.Thread(target=self._turns, daemon=True)
        self._watching = [
            threading.Thread(target=self._watch, args=each, daemon=True)
            for each in (
                ("/api/v1/pods", self._hear_pods),
                ("/api/v1/nodes", self._hear_nodes),
                ("/api/v1/namespaces", self._hear_namespaces),
            )
        ]

    def start(self) -> None:
        """Returns at once."""
        for thread in (*self._watching, self._turning):
            thread.start()

    def stop(self) -> None:
        """Returns when no container runs any more; the server may be stopped then."""
        self._stops.set()
        self._wake.set()
        self._turning.join()
        for pod in self._pods.values():
            pod.lose_power()

    def close(self) -> None:
        """Returns once the server has ended; tells what went wrong here before."""
        for thread in self._watching:
            thread.join()
        self._client.close()
        assert not self._faults, self._faults[0]

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The server's answer; raises ``httpx.HTTPStatusError`` if it refuses."""
        return ask(self._client, method, path, body, **query)

    # What tests do.

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [*self._nodes]

    def add_node(self, name: str, address: str, gpus: int) -> None:
        """Have a node that the server knows run pods."""
        with self._lock:
            self._nodes[name] = Node(name, address, gpus)

    def remove_node(self, name: str) -> None:
        """End a node with all that runs there."""
        with self._lock:
            self.cut_power(name)
            node = self._nodes.pop(name)
            for uid, pod in list(self._pods.items()):
                if pod.on is node:
                    del self._pods[uid]

    def cut_power(self, name: str) -> None:
        """Kill all that runs on a node; the server hears no more of it.

        The sockets of these processes are closed, as they would not be if a machine lost its power.
        """
        with self._lock:
            node = self._nodes[name]
            node.has_power = False
            for pod in self._pods.values():
                if pod.on is node:
                    pod.lose_power()

    def cut_off(self, name: str) -> None:
        """A node's pods run on, and its kubelet hears and tells nothing."""
        with self._lock:
            self._nodes[name].is_connected = False

    def mend(self, name: str) -> None:
        """A node has power, and is connected."""
        with self._lock:
            node = self._nodes[name]
            node.has_power = node.is_connected = True
            node.next_beat_s = 0.0
        self._wake.set()

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

    def kill(self, namespace: str) -> bool:
        """Kill all pods of a namespace; True if there were any."""
        with self._lock:
            found = [pod for pod in self._pods.values() if pod.namespace == namespace]
            for pod in found:
                pod.send(signal.SIGKILL)
        return bool(found)

    def claim(self, namespace: str, name: str) -> Path:
        """The folder of a persistent volume claim, the same on all nodes."""
        return self._contents.claim(namespace, name)

    def log(self, namespace: str, name: str) -> str:
        """What the containers of the pods of a name have printed, in all their runs."""
        files = sorted(self._base.glob(f"{namespace}_{name}_*/*/*/log"), key=os.path.getmtime)
        return "".join(file.read_text(errors="replace") for file in files)

    def containers(self, namespace: str, name: str) -> list[Container]:
        """The running containers of a pod."""
        with self._lock:
            return [
                container
                for pod in self._pods.values()
                if (pod.namespace, pod.name) == (namespace, name)
                for container in pod.running()
            ]

    def tell_node(self, name: str, words: Mapping[str, str]) -> None:
        """Tell whether a node is ready: the status, reason and message of that condition."""
        path = f"/api/v1/nodes/{name}"
        found = self.call("GET", path)["status"].get("conditions", [])
        old = next((each for each in found if each["type"] == "Ready"), None)
        heard = now() if words["status"] != "Unknown" or old is None else old["lastHeartbeatTime"]
        condition = moved(old, {"type": "Ready", "lastHeartbeatTime": heard, **words})
        self.call("PATCH", f"{path}/status", {"status": {"conditions": [condition]}})

    def tell_condition(self, pod: Told, kind: str, **words: str) -> None:
        """Set a condition of a pod: its status, reason and message."""
        found = {each["type"]: each for each in pod["status"].get("conditions", [])}
        old = found.get(kind)
        if old is None or any(old.get(key) != value for key, value in words.items()):
            found[kind] = moved(old, {"type": kind, **words})
            self._tell_status(pod, {"conditions": [*found.values()]})

    def _tell_status(self, pod: Told, status: Told) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/status"
        with passing_over(*GONE_OR_CHANGED):
            body = {"metadata": {"uid": about["uid"]}, "status": status}
            pod["status"] = self.call("PATCH", path, body)["status"]

    # What the server tells.

    def _watch(self, path: str, hear: Callable[[str, Sequence[Told]], None]) -> None:
        while not self._stops.is_set():
            try:
                found = self.call("GET", path)
                hear("ALL", found["items"])
                since = {"watch": "true", "resourceVersion": found["metadata"]["resourceVersion"]}
                with self._client.stream("GET", path, params=since, timeout=None) as stream:
                    for line in stream.iter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        hear(event["type"], [event["object"]])
            except httpx.HTTPError:  # the server ends, or has ended
                pass
            except Exception:
                self._faults.append(traceback.format_exc())
            self._stops.wait(TURN_S)

    def _hear_pods(self, event: str, pods: Sequence[Told]) -> None:
        with self._lock:
            known = _with(self._places.pods, event, {pod["metadata"]["uid"]: pod for pod in pods})
            self._places = Places(known, self._places.nodes)
            for uid, pod in self._pods.items():
                pod.is_deleted = uid not in known
                pod.told = known.get(uid, pod.told)
        self._wake.set()

    def _hear_nodes(self, event: str, nodes: Sequence[Told]) -> None:
        with self._lock:
            told = {node["metadata"]["name"]: node for node in nodes}
            self._places = Places(self._places.pods, _with(self._places.nodes, event, told))
        self._wake.set()

    def _hear_namespaces(self, event: str, namespaces: Sequence[Told]) -> None:
        for namespace in namespaces if event != "DELETED" else ():
            path = f"/api/v1/namespaces/{namespace['metadata']['name']}"
            certificate = {"ca.crt": self._ca.read_text()}
            authority = {"metadata": {"name": "kube-root-ca.crt"}, "data": certificate}
            account = {"metadata": {"name": "default"}}
            for kind, body in (("configmaps", authority), ("serviceaccounts", account)):
                with passing_over(*GONE_OR_CHANGED, http.HTTPStatus.FORBIDDEN):
                    self.call("POST", f"{path}/{kind}", body)

    # What they do.

    def _turns(self) -> None:
        while not self._stops.is_set():
            self._wake.wait(TURN_S)
            self._wake.clear()
            try:
                with self._lock:
                    self._turn()
            except httpx.TransportError:  # the server is away
                self._stops.wait(TURN_S)
            except Exception as error:
                if not (
                    isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
                ):
                    self._faults.append(traceback.format_exc())
                self._stops.wait(RETRY_S)

    def _turn(self) -> None:
        for pod in self._pods.values():  # without the server, nothing else can be done
            if pod.on.works():
                pod.look()
                if pod.ends():
                    pod.end()
        self._schedule()
        for uid, told in self._places.pods.items():
            node = self._nodes.get(told["spec"].get("nodeName", ""))
            is_new = uid not in self._pods and told["status"].get("phase") not in OVER
            if is_new and node and node.works() and node.name in self._places.nodes:
                about = told["metadata"]
                folder = self._base / f"{about['namespace']}_{about['name']}_{uid}"
                self._pods[uid] = Pod(told, node, folder)
                self._accept(self._pods[uid])
        for uid, pod in list(self._pods.items()):
            if pod.on.works():
                self._tend(pod)
                if pod.is_deleted and not pod.running():
                    del self._pods[uid]
                    shutil.rmtree(pod.folder / "volumes", ignore_errors=True)
        for node in self._nodes.values():
            if node.works() and time.monotonic() >= node.next_beat_s:
                node.next_beat_s = time.monotonic() + BEAT_S
                with passing_over(*GONE_OR_CHANGED):
                    self.tell_node(node.name, READY)

    def _schedule(self) -> None:
        """Bind all pods that fit somewhere, and tell of the others why they do not."""
        waiting = [
            pod
            for pod in self._places.pods.values()
            if not pod["spec"].get("nodeName")
            and pod["spec"]["schedulerName"] == "default-scheduler"
            and pod["status"].get("phase") not in OVER
            and "deletionTimestamp" not in pod["metadata"]
        ]
        waiting.sort(
            key=lambda pod: (-pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"])
        )
        for pod in waiting:
            node, why = None, "SchedulingGated"
            words = "Scheduling is blocked due to non-empty scheduling gates"
            if not self._is_held(pod):
                why = "Unschedulable"
                node, words = self._places.place(pod)
            if node is None:
                told = {"status": "False", "reason": why, "message": words}
                self.tell_condition(pod, "PodScheduled", **told)
            else:
                self._bind(pod, node)

    def _is_held(self, pod: Told) -> bool:
        about = pod["metadata"]
        queue = about.get("labels", {}).get(QUEUE)
        wanted = (about["namespace"], queue)
        return self.holds_queues and queue is not None and wanted not in self._admitted

    def _bind(self, pod: Told, node: str) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": about["name"], "uid": about["uid"]}, "target": target}
        with passing_over(*GONE_OR_CHANGED):
            self.call("POST", f"{path}/binding", body)
            bound = {about["uid"]: self.call("GET", path)}
            self._places = Places({**self._places.pods, **bound}, self._places.nodes)

    def _accept(self, pod: Pod) -> None:
        """Take a pod that was bound to a node, unless it does not fit there."""
        node = self._places.nodes[pod.node]
        wanted = requests(pod.told)
        for name in self._places.lacking(pod.told, node)[:1]:
            most = amount(node["status"]["allocatable"].get(name, "0"))
            used = most - self._places.free(node, pod.uid).get(name, Decimal(0))
            words = f"Pod Node didn't have enough resource: {name}, requested: {wanted[name]}, "
            words += f"used: {used}, capacity: {most}"
            pod.refused = {"phase": "Failed", "reason": f"OutOf{name}", "message": words}
            return
        taken = {
            gpu
            for other in self._pods.values()
            if other.on is pod.on and not other.is_over()
            for gpu in other.gpus
        }
        free = [gpu for gpu in range(pod.on.gpus) if gpu not in taken]
        pod.gpus = free[: int(wanted.get(GPU, 0))]

    def _tend(self, pod: Pod) -> None:
        """Start what is due of a pod, and tell the server what has changed."""
        if pod.refused is None and not pod.ends():
            for run in pod.runs:
                if run.container is None and not run.is_over(pod.policy):
                    self._begin(pod, run)
        if pod.is_deleted:
            return
        status = pod.status()
        if status != pod.said:
            self._tell_status(pod.told, status | {"conditions": pod.conditions(status)})
            pod.said = status
        if pod.ends() and not pod.running():
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
            with passing_over(*GONE_OR_CHANGED):
                self.call("DELETE", pod.path, options)

    def _begin(self, pod: Pod, run: Run) -> None:
        """Start a container, unless it must wait, or lacks something."""
        if time.monotonic() < run.next_s:
            return
        name = run.spec["image"]
        try:
            if name not in self.images:
                raise _no_image(name, run.waits.get("reason"))
            command = self._contents.command(pod, run.spec, self.images[name])
        except Lacks as lack:
            run.waits = {"reason": lack.reason, **({"message": str(lack)} if str(lack) else {})}
            run.next_s = time.monotonic() + RETRY_S
            return
        number = run.restarts + (run.ended is not None)
        run.begin(Container(pod.folder / run.name / str(number), command))


def _with(known: Mapping[str, Told], event: str, told: Mapping[str, Told]) -> dict[str, Told]:
    if event == "ALL":
        return dict(told)
    if event == "DELETED":
        return {key: each for key, each in known.items() if key not in told}
    return {**known, **told}


def _no_image(name: str, before: str | None) -> Lacks:
    """What is told of an image that is not there, at first and later."""
    if before in ("ErrImagePull", "ImagePullBackOff"):
        return Lacks("ImagePullBackOff", f'Back-off pulling image "{name}"')
    words = f'rpc error: code = NotFound desc = failed to pull and unpack image "{name}": '
    words += f'failed to resolve reference "{name}": {name}: not found'
    return Lacks("ErrImagePull", words)
