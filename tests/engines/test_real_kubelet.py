"""A cluster on a Kubernetes of real parts: kubelet, containerd and runc run the pods of its agents.

It is slow, and runs only if ROTA_REAL_KUBELET is set: see CONTRIBUTING.md.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.test_kubernetes import RULES, left
from tests.process.conftest import Cluster, until

from rota.live.provider.kubernetes_pods import USER
from support import real_kubelet
from support.kubernetes import free_port
from support.real_kubelet import RealKubernetes

NAMESPACE = "ml"
ASKED = ("--on", "kubernetes", "--image", real_kubelet.ROTA_IMAGE, "--nodes", "1")
# The only host has no second pod before the first one has ended, which takes its whole grace.
ROOM = ("--pod-cpus", "1", "--pod-memory", "2GiB", "--grace", "20s")
SECCOMP_FILTER = "2"  # in /proc/PID/status


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKubernetes]:
    """A Kubernetes with a real node."""
    if reason := real_kubelet.why_none():
        pytest.skip(reason)
    with real_kubelet.real_kubernetes(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(
    kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    kubernetes.add_namespace(NAMESPACE)
    token = kubernetes.add_account(NAMESPACE, "rota", RULES)
    config = kubernetes.write_config(tmp_path_factory.mktemp("config") / "c", token, NAMESPACE)
    listen = ("--listen", f"{real_kubelet.HOST}:{free_port()}")
    made = Cluster(tmp_path_factory.mktemp("lab"), options=(*ASKED, *ROOM, *listen))
    made.environment |= {"KUBECONFIG": str(config)}
    made.up()
    yield made
    made.close()
    # The Secret goes with its pod, once the garbage collector has seen that this is gone.
    until(lambda: left(kubernetes) == [], "nothing of it is left in Kubernetes")


def submit(cluster: Cluster, words: str, **more: Any) -> str:
    return cluster.submit(words, gpus=1, workdir="/tmp", **more)


def pod_of(kubernetes: RealKubernetes, cluster: Cluster, job: str) -> dict[str, Any]:
    found = kubernetes.pod(NAMESPACE, cluster.show(job)["gpus"][0]["node"])
    assert found is not None
    return found


def test_a_job_runs_in_a_real_pod_as_a_user_without_rights(kubernetes, cluster):
    job = submit(cluster, "id -u; awk '/^(CapBnd|Seccomp):/ { print $2 }' /proc/self/status")
    assert cluster.ends(job)["attempt"] == 1
    wanted = [str(USER), f"{0:016x}", SECCOMP_FILTER]

    def said() -> list[str]:
        return "".join(cluster.client.logs(job)).split()

    until(lambda: said() == wanted, f"it prints {wanted}, not {said()}")
    (pod,) = kubernetes.pods(NAMESPACE)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"] != real_kubelet.HOST


def test_a_job_goes_on_in_the_next_pod_when_its_own_is_deleted(kubernetes, cluster):
    words = 'echo begun; [ "$ROTA_ATTEMPT" -gt 1 ] || sleep 1000'
    job = submit(cluster, words, suspend="restart")
    until(lambda: "begun" in "".join(cluster.client.logs(job)), "it has begun")
    first = pod_of(kubernetes, cluster, job)["metadata"]
    kubernetes.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{first['name']}")
    assert cluster.until_state(job, "SUSPENDED")["attempt"] == 1  # it leaves at once
    assert kubernetes.pod(NAMESPACE, first["name"])["metadata"]["uid"] == first["uid"]
    assert cluster.ends(job)["attempt"] == 2
    until(lambda: kubernetes.pod(NAMESPACE, first["name"]) is None, "the first pod is gone")
    (second,) = kubernetes.pods(NAMESPACE)
    assert second["status"]["phase"] == "Running"
