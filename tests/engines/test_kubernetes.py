"""A cluster on Kubernetes: its jobs run in pods of agents, whatever becomes of these."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.process.conftest import SCRIPTS, Cluster, Stops, cancel_everything, until

from rota.client.client import Client
from rota.errors import RotaError
from rota.folder import Folder
from rota.server.kubernetes import KUEUE, RIGHTS
from support.kubelets import GPU, ROTA_IMAGE
from support.kubernetes import Kubernetes

NAMESPACE = "ml"
ASKED = ("--on", "kubernetes", "--image", ROTA_IMAGE, "--volume", "lab:/lab", "--lease", "10s")
GATED = "echo begun; until [ -e /lab/{gate} ]; do sleep 0.05; done; echo over"
RULES = [
    {"apiGroups": [group], "resources": [kind], "verbs": verbs}
    for (group, kind), verbs in RIGHTS.items()
]
IN_LAB = {"workdir": "/lab"}
QUEUE_RULES = [{"apiGroups": [KUEUE], "resources": ["localqueues"], "verbs": ["get"]}]
OTHERS = (f"other-{number}" for number in itertools.count())
CORE = f"/api/v1/namespaces/{NAMESPACE}"


@pytest.fixture(scope="module")
def config(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kubeconfig that lets one do in a namespace what a controller needs, and nothing else."""
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.add_claim(NAMESPACE, "lab")
    token = kubernetes.add_account(NAMESPACE, "rota", RULES)
    path = tmp_path_factory.mktemp("config") / "rota.yaml"
    return str(kubernetes.write_config(path, token, NAMESPACE))


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Stops:
    return Stops(tmp_path_factory.mktemp("stops") / "points")


@pytest.fixture(scope="module")
def cluster(
    kubernetes: Kubernetes, config: str, stops: Stops, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("lab"), options=(*ASKED, "--nodes", "1..3"))
    made.environment |= {"KUBECONFIG": config, **stops.environment}
    made.up()
    yield made
    made.close()
    assert left(kubernetes) == []


@pytest.fixture(autouse=True)
def clean(kubernetes: Kubernetes, cluster: Cluster) -> Iterator[None]:
    yield
    kubernetes.kubelets.forget_queues()
    cancel_everything(cluster)


class Job:
    """A job of both slots of a node, which ends when it is let."""

    def __init__(
        self,
        cluster: Cluster,
        kubernetes: Kubernetes,
        name: str,
        namespace: str = NAMESPACE,
        **more: Any,
    ) -> None:
        self.cluster = cluster
        self.gate = kubernetes.kubelets.claim(namespace, "lab") / f"gate-{name}"
        self.gate.unlink(missing_ok=True)
        self.id = cluster.submit(GATED.format(gate=self.gate.name), gpus=2, **IN_LAB, **more)

    @property
    def now(self) -> dict[str, Any]:
        return self.cluster.show(self.id)

    @property
    def node(self) -> str:
        return str(self.now["gpus"][0]["node"])

    def until_begun(self, attempt: int = 1) -> "Job":
        def has_begun() -> bool:
            now = self.now
            return now["state"] == "RUNNING" and now["attempt"] == attempt

        until(has_begun, f"it runs: {self.now}")
        until(lambda: "begun" in "".join(self.cluster.client.logs(self.id)), "it has printed")
        return self

    def ends(self, attempt: int = 1) -> None:
        self.gate.touch()
        assert self.cluster.until_state(self.id, "SUCCEEDED")["attempt"] == attempt
        assert "".join(self.cluster.client.logs(self.id)) == "begun\nover\n"


def name(cluster: Cluster) -> str:
    """The cluster's name in Kubernetes."""
    told = json.loads((cluster.folder.path / "kubernetes-cluster.json").read_text())
    return str(told["name"])


def node(cluster: Cluster, name: str) -> dict[str, Any]:
    (found,) = [each for each in cluster.client.nodes() if each["name"] == name]
    return found


def agents(kubernetes: Kubernetes, cluster: Cluster, namespace: str = NAMESPACE) -> list[str]:
    """The pods of a cluster that have yet to end."""
    return [
        pod["metadata"]["name"]
        for pod in kubernetes.pods(namespace)
        if pod["metadata"]["labels"].get("app.kubernetes.io/instance") == name(cluster)
        and pod["status"]["phase"] in ("Pending", "Running")
    ]


def left(kubernetes: Kubernetes, namespace: str = NAMESPACE) -> list[str]:
    """What a namespace has of Rota's."""
    paths = [f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("pods", "secrets")]
    paths.append(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    return [
        f"{path} {each['metadata']['name']}"
        for path in paths
        for each in kubernetes.call("GET", path)["items"]
        if "app.kubernetes.io/name" in each["metadata"].get("labels", {})
    ]


def delete(kubernetes: Kubernetes, pod: str, **options: Any) -> None:
    kubernetes.call("DELETE", f"{CORE}/pods/{pod}", options or None)


def said(cluster: Cluster, words: str) -> bool:
    return words in (cluster.base / "up.log").read_text()


def up(cluster_folder: Path, config: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A call that is refused."""
    return subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "up", "--home", cluster_folder, *words],
        env=os.environ | {"KUBECONFIG": config},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_job_runs_in_a_pod_of_which_node_and_grace_are_told(cluster, kubernetes):
    job = Job(cluster, kubernetes, "first").until_begun()
    pod = kubernetes.pod(NAMESPACE, job.node)
    about = f"pod {job.node} on {pod['spec']['nodeName']}, grace 150 s"
    until(lambda: node(cluster, job.node)["about"] == about, "it is told")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: "2"}
    (container,) = kubernetes.kubelets.containers(NAMESPACE, job.node)
    assert {process.uids().real for process in container.processes()} == {1000}
    job.ends()


def test_a_training_runs_in_a_pod(cluster, kubernetes):
    out = kubernetes.kubelets.claim(NAMESPACE, "lab") / "trained"
    out.mkdir()
    out.chmod(0o777)
    words = f"python {SCRIPTS}/train.py --out /lab/trained --steps 3"
    trained = cluster.submit(words, gpus=2, **IN_LAB)
    assert cluster.ends(trained)["attempt"] == 1


@pytest.fixture
def full(kubernetes: Kubernetes, cluster: Cluster) -> Iterator[str]:
    """Other pods have the GPUs of two nodes; the name of the one that is left."""
    until(lambda: len(agents(kubernetes, cluster)) == 1, "surplus nodes are given back")
    (own,) = agents(kubernetes, cluster)
    host = kubernetes.pod(NAMESPACE, own)["spec"]["nodeName"]
    others = sorted({"n1", "n2", "n3"} - {host})
    container = {"name": "main", "image": "busybox", "command": ["sleep", "1000"]}
    container["resources"] = {"limits": {GPU: "4"}}
    for each in others:
        spec = {"nodeName": each, "containers": [container], "terminationGracePeriodSeconds": 1}
        body = {"metadata": {"name": f"other-{each}", "labels": {}}, "spec": spec}
        kubernetes.call("POST", f"{CORE}/pods", body)
    yield own
    for each in others:
        delete(kubernetes, f"other-{each}", gracePeriodSeconds=0)


def why(job: Job, words: str) -> bool:
    return words in "\n".join(job.cluster.client.explain(job.id)["awaited"])


@pytest.mark.usefixtures("full")
def test_awaited_nodes_are_explained_in_kubernetes_words_and_block_nothing(cluster, kubernetes):
    first = Job(cluster, kubernetes, "one").until_begun()
    second = Job(cluster, kubernetes, "two")
    words = "Kubernetes: 0/3 nodes are available: "
    until(lambda: why(second, words), "Kubernetes' words are told")
    assert why(second, "Insufficient nvidia.com/gpu, 1 of 2 nodes held")
    first.ends()
    second.until_begun().ends()  # on the node that was there


def test_a_queue_gets_as_many_nodes_as_were_allowed_each_on_another_host(cluster, kubernetes):
    jobs = [Job(cluster, kubernetes, f"of-four-{number}") for number in range(4)]
    for job in jobs[:3]:
        job.until_begun()
    hosts = {kubernetes.pod(NAMESPACE, job.node)["spec"]["nodeName"] for job in jobs[:3]}
    assert hosts == {"n1", "n2", "n3"}
    assert len(agents(kubernetes, cluster)) == 3
    for job in jobs:
        job.until_begun().ends()


def test_jobs_leave_a_pod_that_somebody_deletes_before_it_is_gone(cluster, kubernetes):
    job = Job(cluster, kubernetes, "evicted", suspend="restart").until_begun()
    first = job.node
    delete(kubernetes, first)
    until(lambda: job.now["state"] == "RUNNING" and job.node != first, f"it has left: {job.now}")
    assert len(agents(kubernetes, cluster)) <= 3
    until(
        lambda: kubernetes.pod(NAMESPACE, first) is None, "its pod is gone, long before its grace"
    )
    job.gate.touch()
    cluster.until_state(job.id, "SUCCEEDED")


def test_a_pod_whose_kubelet_tells_its_end_is_lost_at_once(cluster, kubernetes):
    job = Job(cluster, kubernetes, "killed").until_begun()
    lost = job.node
    (container,) = kubernetes.kubelets.containers(NAMESPACE, lost)
    container.send(signal.SIGKILL)
    job.until_begun(attempt=2)
    until(lambda: said(cluster, f"pod {lost} on "), "it is told")
    assert not said(cluster, f"node {lost} has not been heard for its whole lease")
    job.ends(attempt=2)


def test_a_pod_that_is_deleted_by_force_is_left_to_its_lease(cluster, kubernetes):
    """Nobody knows what runs there: its agent is told to end, and nothing runs twice."""
    job = Job(cluster, kubernetes, "forced").until_begun()
    lost = job.node
    host = kubernetes.pod(NAMESPACE, lost)["spec"]["nodeName"]
    kubernetes.kubelets.cut_off(host)
    kubernetes.lose(host)
    delete(kubernetes, lost, gracePeriodSeconds=0)
    try:
        job.until_begun(attempt=2)
        assert job.node != lost
        living = [
            word
            for container in kubernetes.kubelets.containers(NAMESPACE, lost)
            for process in container.processes()
            for word in process.cmdline()
        ]
        assert not [word for word in living if job.gate.name in word]
        job.ends(attempt=2)
    finally:
        kubernetes.kubelets.mend(host)
        kubernetes.take_back(host)


def test_a_host_without_power_is_lost_when_its_lease_is_over(cluster, kubernetes):
    job = Job(cluster, kubernetes, "dark").until_begun()
    lost = job.node
    host = kubernetes.pod(NAMESPACE, lost)["spec"]["nodeName"]
    kubernetes.kubelets.cut_power(host)
    kubernetes.lose(host)
    delete(kubernetes, lost, gracePeriodSeconds=1)  # as the controller of nodes does in the end
    try:
        job.until_begun(attempt=2)
        assert job.node != lost
        job.ends(attempt=2)
    finally:
        kubernetes.kubelets.mend(host)
        kubernetes.take_back(host)
    until(lambda: kubernetes.pod(NAMESPACE, lost) is None, "its kubelet has told the end")


def test_while_the_api_server_is_away_jobs_go_on_and_begin(cluster, kubernetes):
    job = Job(cluster, kubernetes, "away").until_begun()
    kubernetes.stop_server()
    try:
        until(lambda: said(cluster, "Kubernetes does not answer: "), "it is told")
        job.ends()
        Job(cluster, kubernetes, "meanwhile").until_begun().ends()
    finally:
        kubernetes.start_server()
    jobs = [Job(cluster, kubernetes, f"after-{number}") for number in range(2)]
    for job in jobs:
        job.until_begun()
    for job in jobs:
        job.ends()


def test_another_controller_waits_for_the_lease_and_asks_for_nothing(
    cluster, config, kubernetes, tmp_path
):
    """It has the same name, as one with a copy of the state folder has."""
    told = (cluster.folder.path / "kubernetes-cluster.json").read_text()
    other = Cluster(tmp_path, options=(*ASKED, "--nodes", "1..3"))
    other.environment |= {"KUBECONFIG": config}
    other.folder.create()
    (other.folder.path / "kubernetes-cluster.json").write_text(told)
    before = agents(kubernetes, cluster)
    other.start()
    words = f"the Lease {name(cluster)} is held by {socket.gethostname()}:{cluster.folder.path}: "
    try:
        until(lambda: said(other, f"{words}this controller waits"), "it is told")
        assert set(agents(kubernetes, cluster)) <= set(before)
    finally:
        other.process.kill()
        other.process.wait()
        Cluster.up_now.remove(other)
        other.client.close()


def test_a_lease_that_is_not_renewed_is_taken_over(cluster, kubernetes):
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name(cluster)}"
    cluster.kill_controller()
    held = kubernetes.call("GET", lease)
    spec = held["spec"] | {"holderIdentity": "elsewhere", "leaseDurationSeconds": 5}
    kubernetes.call("PUT", lease, held | {"spec": spec})
    cluster.up()
    assert said(cluster, f"the Lease {name(cluster)} is held by elsewhere: this controller waits")
    assert kubernetes.call("GET", lease)["spec"]["holderIdentity"] != "elsewhere"


class Another:
    """A cluster that is yet to begin, in a namespace of its own."""

    def __init__(self, kubernetes: Kubernetes, base: Path) -> None:
        self.namespace, self.cluster = next(OTHERS), Cluster(base)
        kubernetes.add_namespace(self.namespace)
        kubernetes.add_claim(self.namespace, "lab")
        token = kubernetes.add_account(self.namespace, "rota", [*RULES, *QUEUE_RULES])
        self.config = str(kubernetes.write_config(base / "rota.yaml", token, self.namespace))
        self.cluster.environment["KUBECONFIG"] = self.config

    def begin(self, *options: str) -> Cluster:
        self.cluster.options = ("--on", "kubernetes", "--nodes", "1..2", *options)
        return self.cluster.up(connected=False)


@pytest.fixture
def another(kubernetes: Kubernetes, tmp_path: Path) -> Iterator[Another]:
    made = Another(kubernetes, tmp_path)
    yield made
    made.cluster.close()
    assert left(kubernetes, made.namespace) == []


def awaited(cluster: Cluster, *words: str) -> bool:
    told = [each["why"] for each in cluster.client.awaited_nodes()]
    return any(all(word in each for word in words) for each in told)


def test_an_image_that_is_not_there_is_told_in_kubernetes_words(another):
    cluster = another.begin("--image", "registry.lab/none:1")
    until(lambda: awaited(cluster, "Kubernetes: ", "registry.lab/none:1", ", 0 of 1"), "it is told")


def add_queue(kubernetes: Kubernetes, namespace: str, name: str) -> None:
    """Have Kueue's kind of queues, and one of them."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": schema}
    names = {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue"}
    spec = {"group": KUEUE, "scope": "Namespaced", "names": names, "versions": [version]}
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    kubernetes.call("POST", kinds, {"metadata": {"name": f"localqueues.{KUEUE}"}, "spec": spec})
    path = f"/apis/{KUEUE}/v1beta1/namespaces/{namespace}/localqueues"
    queue = {"apiVersion": f"{KUEUE}/v1beta1", "kind": "LocalQueue", "metadata": {"name": name}}

    def is_made() -> bool:
        with contextlib.suppress(httpx.HTTPStatusError):  # its kind is not known at once
            return bool(kubernetes.call("POST", path, queue))
        return False

    until(is_made, "the queue is there")


@pytest.mark.parametrize("point", ["secret_kubernetes-before", "ask_kubernetes-after"])
def test_a_controller_killed_before_it_notes_the_answer_finds_what_it_asked_for(
    point, another, stops, kubernetes
):
    another.cluster.environment |= stops.environment
    cluster = another.begin("--image", ROTA_IMAGE, "--volume", "lab:/lab")
    first = Job(cluster, kubernetes, "before", another.namespace).until_begun()
    stops.arm("controller", point)
    second = Job(cluster, kubernetes, "asked", another.namespace)
    cluster.kill(stops.until_at(point))
    asked = agents(kubernetes, cluster, another.namespace)
    assert len(asked) == 2
    cluster.up(connected=False)
    second.until_begun().ends()
    first.ends()
    assert agents(kubernetes, cluster, another.namespace) == asked


def test_what_kubernetes_refuses_later_is_told_and_asked_for_again(another, kubernetes):
    cluster = another.begin("--image", ROTA_IMAGE)
    until(lambda: cluster.client.nodes(), "its first node is there")
    quotas = f"/api/v1/namespaces/{another.namespace}/resourcequotas"
    room = {"pods": "1"}
    kubernetes.call("POST", quotas, {"metadata": {"name": "few"}, "spec": {"hard": room}})
    # The API server has no controller here that counts what is used.
    kubernetes.call("PATCH", f"{quotas}/few/status", {"status": {"hard": room, "used": room}})
    for _ in range(2):
        cluster.submit("until false; do sleep 1; done", gpus=2, workdir="/")
    until(lambda: awaited(cluster, "Kubernetes refuses it: ", "exceeded quota: few"), "it is told")
    kubernetes.call("DELETE", f"{quotas}/few")
    until(lambda: len(cluster.client.nodes()) == 2, "it is asked for again")


def test_kueue_admits_pods_as_it_admits_any(another, kubernetes):
    kubernetes.kubelets.holds_queues = True
    asked = ("--on", "kubernetes", "--image", ROTA_IMAGE, "--queue", "none")
    done = up(another.cluster.base / "home2", another.config, *asked)
    assert "--queue: none is a queue of Kueue, which this cluster does not have" in done.stderr
    add_queue(kubernetes, another.namespace, "vision")
    cluster = another.begin("--image", ROTA_IMAGE, "--queue", "vision")
    until(lambda: awaited(cluster, "(Kueue queue vision), 0 of 1 nodes held"), "it is told")
    kubernetes.kubelets.admit(another.namespace, "vision")
    until(lambda: cluster.client.nodes(), "its pod is admitted")
    assert ", Kueue queue vision, grace 150 s" in cluster.client.nodes()[0]["about"]
    done = up(cluster.base / "home2", another.config, *asked)
    assert "--queue: Kueue has no LocalQueue none in namespace" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--namespace", "nope"], "--namespace: nope: Kubernetes does not let you get pods"),
        (["--context", "nope"], "set KUBECONFIG to the file of your cluster"),
        (["--volume", "no"], "--volume: 'no' is not of the form CLAIM:PATH"),
        (["--name", "Rota"], "--name: 'Rota' is no name for pods"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_asked_for(words, said, config, tmp_path):
    done = up(tmp_path / "home", config, "--on", "kubernetes", "--image", ROTA_IMAGE, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_namespace_that_is_not_there_or_has_no_quota_left_is_told(kubernetes, tmp_path):
    admin = kubernetes.environment["KUBECONFIG"]
    asked = ("--on", "kubernetes", "--image", ROTA_IMAGE, "--gpus", "2")
    done = up(tmp_path / "home", admin, *asked, "--namespace", "nowhere")
    assert done.returncode == 2
    assert 'namespaces "nowhere" not found; make it' in done.stderr
    kubernetes.add_namespace("poor")
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {f"requests.{GPU}": "1"}}}
    kubernetes.call("POST", "/api/v1/namespaces/poor/resourcequotas", quota)

    def is_told() -> bool:
        done = up(tmp_path / "home", admin, *asked, "--namespace", "poor")
        assert done.returncode == 2
        return "exceeded quota: few, requested" in done.stderr and "ask for less" in done.stderr

    # The API server has no controller here that counts what is used.
    counted = {"status": {"hard": quota["spec"]["hard"], "used": {f"requests.{GPU}": "0"}}}
    kubernetes.call("PATCH", "/api/v1/namespaces/poor/resourcequotas/few/status", counted)
    until(is_told, "the quota is told")
    assert not (tmp_path / "home").exists()


def test_the_end_by_force_leaves_nothing(cluster, kubernetes):
    job = Job(cluster, kubernetes, "by-force").until_begun()
    cluster.kill(cluster.process.pid)
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "down", "--now", "--home", cluster.folder.path],
        env=os.environ | {"KUBECONFIG": cluster.environment["KUBECONFIG"]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert left(kubernetes) == []
    cluster.up()
    job.until_begun(attempt=2).ends(attempt=2)


# -- as a pod --------------------------------------------------------------------------------------


class Inside:
    """A controller that runs as a pod, by its manifest."""

    NAMESPACE, POD = "inside", "rota-controller-0"

    def __init__(self, kubernetes: Kubernetes, *words: str) -> None:
        self.kubernetes = kubernetes
        kubernetes.add_namespace(self.NAMESPACE)
        kubernetes.add_claim(self.NAMESPACE, "lab")
        command = [sys.executable, "-m", "rota.cli.main", "up", *ASKED]
        command += ["--namespace", self.NAMESPACE, "--nodes", "1..3", "--gpus", "2", *words]
        done = subprocess.run([*command, "--manifest"], capture_output=True, text=True, check=True)
        self.objects = [*yaml.safe_load_all(done.stdout)]
        for each in self.objects:
            self.apply(each)
        (self.controller,) = [each for each in self.objects if each["kind"] == "StatefulSet"]
        self.begin()

    def apply(self, told: dict[str, Any]) -> Any:
        version = told["apiVersion"]
        group = "/api/v1" if version == "v1" else f"/apis/{version}"
        path = f"{group}/namespaces/{self.NAMESPACE}/{told['kind'].lower()}s"
        return self.kubernetes.call("POST", path, told)

    def begin(self) -> None:
        """Do what the controller of stateful sets does."""
        (claim,) = self.controller["spec"]["volumeClaimTemplates"]
        own = f"{claim['metadata']['name']}-{self.POD}"
        path = f"/api/v1/namespaces/{self.NAMESPACE}/persistentvolumeclaims"
        self.kubernetes.call("POST", path, claim | {"metadata": {"name": own}})
        path = f"/apis/apps/v1/namespaces/{self.NAMESPACE}/statefulsets/rota-controller"
        self.uid = self.kubernetes.call("GET", path)["metadata"]["uid"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "rota-controller"}
        template = self.controller["spec"]["template"]
        about = template["metadata"] | {"name": self.POD}
        about["ownerReferences"] = [owner | {"uid": self.uid, "controller": True}]
        volume = {"name": "state", "persistentVolumeClaim": {"claimName": own}}
        spec = template["spec"] | {"volumes": [volume]}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
        self.folder = Folder(self.kubernetes.kubelets.claim(self.NAMESPACE, own))

    def client(self) -> Client:
        def answers() -> Client | None:
            try:
                client = Client(folder=self.folder)
                client.policies()
            except (RotaError, OSError, ValueError):
                return None
            return client

        def log() -> str:
            return self.kubernetes.kubelets.log(self.NAMESPACE, self.POD)

        return until(answers, f"the controller answers: {log()}")


def test_a_controller_runs_as_a_pod_by_its_manifest(kubernetes):
    inside = Inside(kubernetes)
    client = inside.client()
    job = {"run": "echo ran", "resources": {"gpus": 2}, **IN_LAB}
    number = client.submit(job)["id"]
    until(lambda: client.job(number)["state"] == "SUCCEEDED", f"it ends: {client.job(number)}")
    pod = kubernetes.pod(Inside.NAMESPACE, "rota-1")
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("StatefulSet", inside.uid)
    client.close()
    inside.kubernetes.clear(Inside.NAMESPACE)
