"""The Kubernetes of other tests: its server is real, and what stands in for kubelets is honest."""

import itertools
import time
from typing import Any

import httpx
import pytest

from support.kubelets import QUEUE, ROTA_IMAGE
from support.kubernetes import Kubernetes
from support.pod_placing import GPU

NAMESPACES = (f"lab-{number}" for number in itertools.count())
PATIENCE_S = 60.0
HOST = "kubernetes.io/hostname"


class Lab:
    """A namespace of a Kubernetes."""

    def __init__(self, cluster: Kubernetes) -> None:
        self.cluster, self.namespace = cluster, next(NAMESPACES)
        cluster.add_namespace(self.namespace)

    def begin(self, name: str, script: str, about: dict[str, Any] | None = None, **spec: Any):
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
        container |= spec.pop("container", {})
        whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30, **spec}
        body = {"metadata": {"name": name, **(about or {})}}
        body["spec"] = {"containers": [container], **whole}
        self.cluster.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)

    def delete(self, name: str, grace_s: int) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.cluster.call("DELETE", path, {"gracePeriodSeconds": grace_s})

    def status(self, name: str) -> dict[str, Any]:
        return self.cluster.pod(self.namespace, name)["status"]

    def state(self, name: str) -> dict[str, Any]:
        found = self.status(name).get("containerStatuses", [{"state": {}}])
        return found[0]["state"]

    def condition(self, name: str) -> dict[str, str]:
        found = self.status(name).get("conditions", [])
        return next((each for each in found if each["type"] == "PodScheduled"), {})

    def log(self, name: str) -> str:
        return self.cluster.kubelets.log(self.namespace, name)

    def runs(self, name: str) -> bool:
        return self.status(name)["phase"] == "Running"


@pytest.fixture
def lab(kubernetes: Kubernetes):
    lab = Lab(kubernetes)
    yield lab
    kubernetes.kubelets.forget_queues()
    kubernetes.clear(lab.namespace)


def until(condition, what="it happens"):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def variable(name, **source):
    return {"name": name, "valueFrom": source}


def test_a_pod_runs_with_what_its_spec_says_and_its_exit_code_is_told(lab):
    path = f"/api/v1/namespaces/{lab.namespace}/secrets"
    lab.cluster.call("POST", path, {"metadata": {"name": "key"}, "stringData": {"word": "abc"}})
    env = [
        variable("NODE", fieldRef={"fieldPath": "spec.nodeName"}),
        variable("WORD", secretKeyRef={"name": "key", "key": "word"}),
    ]
    mounts = [{"name": "key", "mountPath": "/var/run/key"}, {"name": "own", "mountPath": "/own"}]
    volumes = [{"name": "key", "secret": {"secretName": "key"}}, {"name": "own", "emptyDir": {}}]
    script = "echo $$ $(id -u) $NODE $WORD $(cat /var/run/key/word); echo kept >/own/it; exit 3"
    container = {"env": env, "volumeMounts": mounts, "securityContext": {"runAsUser": 1234}}
    container |= {"terminationMessagePolicy": "FallbackToLogsOnError"}
    lab.begin("one", script, container=container, volumes=volumes, nodeSelector={HOST: "n2"})
    until(lambda: lab.status("one")["phase"] == "Failed")
    ended = lab.state("one")["terminated"]
    assert ended["exitCode"] == 3
    assert ended["message"] == "1 1234 n2 abc abc\n"
    assert lab.condition("one")["status"] == "True"


def test_a_pod_that_fits_nowhere_is_told_why(lab):
    lab.begin("big", "true", container={"resources": {"limits": {GPU: "5"}}})
    lab.begin("alien", "true", nodeSelector={HOST: "n9"})
    until(lambda: lab.condition("big") and lab.condition("alien"))
    assert lab.condition("big")["reason"] == "Unschedulable"
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    assert lab.condition("big")["message"] == words
    words = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity."
    assert lab.condition("alien")["message"] == words


def test_pods_that_repel_each_other_are_on_different_nodes(lab):
    labels = {"app": lab.namespace}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOST}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    for number in range(4):
        about = {"labels": labels}
        lab.begin(f"p{number}", "sleep 1000", about, affinity={"podAntiAffinity": terms})
    until(lambda: sum(map(lab.runs, ("p0", "p1", "p2", "p3"))) == 3)
    pods = lab.cluster.pods(lab.namespace)
    assert {pod["spec"].get("nodeName") for pod in pods} == {"n1", "n2", "n3", None}


def test_a_bound_pod_that_has_no_room_is_refused_by_its_node(lab):
    limits = {"resources": {"limits": {GPU: "3"}}}
    lab.begin("first", "sleep 1000", container=limits, nodeName="n1")
    until(lambda: lab.runs("first"))
    lab.begin("second", "true", container=limits, nodeName="n1")
    until(lambda: lab.status("second")["phase"] == "Failed")
    assert lab.status("second")["reason"] == f"OutOf{GPU}"


def test_a_pod_that_is_deleted_gets_a_term_first(lab):
    lab.begin("calm", "trap 'echo over; exit 0' TERM; echo on; while :; do sleep 0.05; done")
    until(lambda: "on" in lab.log("calm"))
    lab.delete("calm", 1000)
    until(lambda: lab.cluster.pod(lab.namespace, "calm") is None)
    assert lab.log("calm").splitlines() == ["on", "over"]


def test_a_pod_that_ignores_a_term_is_killed(lab):
    lab.begin("stubborn", "trap '' TERM; echo on; while :; do sleep 0.05; done")
    until(lambda: "on" in lab.log("stubborn"))
    lab.delete("stubborn", 1)
    until(lambda: lab.cluster.pod(lab.namespace, "stubborn") is None)
    assert not lab.cluster.kubelets.containers(lab.namespace, "stubborn")


def test_a_container_that_fails_is_started_anew(lab):
    script = "echo run >>/own/runs; [ $(wc -l </own/runs) -eq 3 ]"
    mounts = {"volumeMounts": [{"name": "own", "mountPath": "/own"}]}
    volumes = [{"name": "own", "emptyDir": {}}]
    lab.begin("again", script, container=mounts, volumes=volumes, restartPolicy="OnFailure")
    until(lambda: lab.status("again")["phase"] == "Succeeded")
    assert lab.status("again")["containerStatuses"][0]["restartCount"] == 2


def test_an_image_that_is_not_there_is_waited_for(lab):
    name = "registry.invalid/none:1"
    lab.begin("late", "true", container={"image": name})
    until(lambda: lab.state("late").get("waiting", {}).get("reason") == "ImagePullBackOff")
    lab.cluster.kubelets.images[name] = lab.cluster.kubelets.images["busybox"]
    until(lambda: lab.status("late")["phase"] == "Succeeded")
    del lab.cluster.kubelets.images[name]


def test_pods_of_a_queue_wait_until_it_is_admitted(lab):
    lab.cluster.kubelets.holds_queues = True
    lab.begin("held", "sleep 1000", {"labels": {QUEUE: "team"}})
    until(lambda: lab.condition("held"))
    assert lab.condition("held")["reason"] == "SchedulingGated"
    lab.cluster.kubelets.admit(lab.namespace, "team")
    until(lambda: lab.runs("held"))


def test_nothing_is_heard_of_a_node_without_power(lab):
    kubelets = lab.cluster.kubelets
    lab.begin("lost", "sleep 1000", nodeSelector={HOST: "n3"})
    until(lambda: lab.runs("lost"))
    kubelets.cut_power("n3")
    try:
        lab.cluster.lose("n3")
        assert lab.runs("lost")
        assert not kubelets.containers(lab.namespace, "lost")
        lab.begin("next", "true", nodeSelector={HOST: "n3"})
        until(lambda: lab.condition("next"))
        assert "1 node(s) had taint" in lab.condition("next")["message"]
    finally:
        kubelets.mend("n3")
        lab.cluster.take_back("n3")
    until(lambda: lab.status("lost")["phase"] == "Failed")
    until(lambda: lab.status("next")["phase"] == "Succeeded")


def test_pods_run_on_where_their_node_is_cut_off(lab):
    kubelets = lab.cluster.kubelets
    lab.begin("far", "trap 'echo over; exit' TERM; while :; do sleep 0.05; done", nodeName="n3")
    until(lambda: lab.runs("far"))
    kubelets.cut_off("n3")
    try:
        lab.delete("far", 0)
        assert lab.cluster.pod(lab.namespace, "far") is None
        assert kubelets.containers(lab.namespace, "far")
    finally:
        kubelets.mend("n3")
    until(lambda: not kubelets.containers(lab.namespace, "far"))


def test_pods_run_on_while_the_server_is_away(lab, tmp_path):
    mounts = {"volumeMounts": [{"name": "gate", "mountPath": "/gate"}]}
    volumes = [{"name": "gate", "hostPath": {"path": str(tmp_path)}}]
    script = "while [ ! -e /gate/open ]; do sleep 0.05; done; exit 4"
    lab.begin("steady", script, container=mounts, volumes=volumes)
    until(lambda: lab.runs("steady"))
    lab.cluster.stop_server()
    (tmp_path / "open").touch()
    until(lambda: not lab.cluster.kubelets.containers(lab.namespace, "steady"))
    lab.cluster.start_server()
    until(lambda: lab.status("steady")["phase"] == "Failed")
    assert lab.state("steady")["terminated"]["exitCode"] == 4


def test_a_token_allows_what_its_account_may_and_nothing_else(lab):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    token = lab.cluster.add_account(lab.namespace, "reader", rules)
    with lab.cluster.client(token) as client:
        own = f"/api/v1/namespaces/{lab.namespace}"
        assert client.get(f"{own}/pods").status_code == httpx.codes.OK
        assert client.get(f"{own}/secrets").status_code == httpx.codes.FORBIDDEN
        assert client.get("/api/v1/pods").status_code == httpx.codes.FORBIDDEN


def test_the_official_client_in_a_pod_has_the_rights_of_the_pods_account(lab):
    script = (
        "from kubernetes import client, config; config.load_incluster_config()\n"
        "try: client.CoreV1Api().list_namespaced_pod('default')\n"
        "except client.ApiException as error: print(error.status)\n"
    )
    container = {"image": ROTA_IMAGE, "command": ["python", "-c", script]}
    lab.begin("client", "", container=container)
    until(lambda: lab.status("client")["phase"] == "Succeeded", lab.log("client"))
    assert lab.log("client") == "403\n"
