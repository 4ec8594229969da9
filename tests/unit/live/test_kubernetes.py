"""What Kubernetes is asked for, what it tells of pods, and who holds a Lease."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from rota.live.provider.kubernetes_api import ApiError
from rota.live.provider.kubernetes_lease import LASTS_S, RENEW_S, Lease
from rota.live.provider.kubernetes_pods import GPU, HOME, QUEUE, Agents, read
from rota.live.provider.kubernetes_watch import Watch

AGENTS = Agents(
    cluster="lab",
    state="s1",
    namespace="ml",
    image="rota:1",
    agent=["rota", "agent"],
    grace_s=150,
)


def container(agents: Agents) -> dict[str, Any]:
    (found,) = agents.pod("lab-1")["spec"]["containers"]
    return found


def test_a_pod_runs_as_a_user_and_has_nothing_of_its_host():
    spec = AGENTS.pod("lab-1")["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container(AGENTS)["securityContext"]
    assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not spec["automountServiceAccountToken"]
    kinds = {kind for volume in spec["volumes"] for kind in volume} - {"name"}
    assert kinds == {"emptyDir"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def test_agents_are_on_different_hosts():
    pod = AGENTS.pod("lab-1")
    (term,) = pod["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = term["labelSelector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert term["topologyKey"] == "kubernetes.io/hostname"


def test_a_pod_has_the_gpus_cores_and_memory_that_are_asked_for():
    assert container(AGENTS)["resources"] == {}
    asked = AGENTS._replace(gpus=4, cpus=8, memory="1024")
    room = {GPU: "4", "cpu": "8", "memory": "1024"}
    assert container(asked)["resources"] == {"requests": room, "limits": room}
    assert "tolerations" not in AGENTS.pod("lab-1")["spec"]
    assert [each["key"] for each in asked.pod("lab-1")["spec"]["tolerations"]] == [GPU]


def test_a_claim_may_take_the_place_of_the_state_folder():
    pod = AGENTS._replace(volumes=[("data", "/data"), ("state", HOME)]).pod("lab-1")
    names = [volume["name"] for volume in pod["spec"]["volumes"]]
    assert names == ["shm", "claim-0", "claim-1"]
    (own,) = pod["spec"]["containers"]
    places = {each["name"]: each["mountPath"] for each in own["volumeMounts"]}
    assert places == {"shm": "/dev/shm", "claim-0": "/data", "claim-1": HOME}


def test_the_queue_of_kueue_is_a_label():
    labels = AGENTS._replace(queue="vision").pod("lab-1")["metadata"]["labels"]
    assert labels[QUEUE] == "vision"
    assert QUEUE not in AGENTS.labels  # others are found all the same


def pod(phase: str = "Pending", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "lab-1", "uid": "u1"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, **status},
    }


def state(**told: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "agent", "state": told}]}


def unplaced(reason: str, message: str) -> dict[str, Any]:
    told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"conditions": [told]}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (pod(), "Pending"),
        (
            pod(**unplaced("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")),
            "0/3 nodes are available: 3 Insufficient cpu",
        ),
        (
            pod(**unplaced("SchedulingGated", "Scheduling is blocked due to scheduling gates")),
            "SchedulingGated: Scheduling is blocked due to scheduling gates",
        ),
        (pod(**state(waiting={"reason": "ContainerCreating"})), "ContainerCreating"),
        (
            pod(**state(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling x"})),
            "ImagePullBackOff: Back-off pulling x",
        ),
        (
            pod("Failed", **state(terminated={"exitCode": 5, "message": "begins\nno disk\n"})),
            "exit code 5: no disk",
        ),
        (
            pod("Failed", **state(terminated={"exitCode": 137, "reason": "OOMKilled"})),
            "OOMKilled, exit code 137",
        ),
        (pod("Failed", reason="Evicted", message="Too little disk."), "Evicted: Too little disk"),
    ],
)
def test_a_pods_words_are_those_of_kubernetes(told, words):
    assert read(told).words == words


@pytest.mark.parametrize(
    ("told", "is_over", "has_begun"),
    [
        (pod(), False, False),
        (pod("Running", **state(running={})), False, True),
        (pod("Failed", **state(terminated={"exitCode": 1})), True, True),
        (pod("Succeeded", **state(terminated={"exitCode": 0})), True, True),
        (pod("Running", **state(terminated={"exitCode": 0})), True, True),
        (pod("Failed"), False, False),  # told by a controller that collects what is lost
        (
            pod("Failed", **state(terminated={"exitCode": 1, "reason": "ContainerStatusUnknown"})),
            False,
            True,
        ),
    ],
)
def test_a_pod_is_over_when_its_kubelet_has_told_its_containers_end(told, is_over, has_begun):
    assert (read(told).is_over, read(told).has_begun) == (is_over, has_begun)


def test_a_pod_that_is_deleted_must_go_a_while_before_the_end_of_its_grace():
    told = pod("Running")
    assert read(told).leaves_s is None
    told["metadata"] |= {"deletionTimestamp": "2026-11-28T06:00:00Z"}
    told["metadata"] |= {"deletionGracePeriodSeconds": 150}
    assert read(told).killed_s == 1795845600
    assert read(told).leaves_s == 1795845600 - 30  # its jobs have two minutes from now on
    told["metadata"]["deletionGracePeriodSeconds"] = 10
    assert read(told).leaves_s == 1795845600 - 2


class Server:
    """In place of an API server that has one Lease at most."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.refuses = 0  # the status that each change gets

    def path(self, kind: str, name: str = "") -> str:
        return f"/{kind}/{name}"

    def find(self, path: str) -> Any:
        return self.lease

    def call(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        if self.refuses:
            raise ApiError("no", self.refuses)
        self.version += 1
        about = {**body["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**body, "metadata": about}
        return self.lease

    def delete(self, path: str) -> None:
        self.lease = None


class Controllers:
    """Two that want the same Lease, and their clock."""

    def __init__(self) -> None:
        self.server, self.now_s = Server(), 100.0
        self.first, self.second = (
            Lease(self.server, "lab", holder, clock=lambda: self.now_s)  # type: ignore[arg-type]
            for holder in ("one", "two")
        )


@pytest.fixture
def lab() -> Controllers:
    return Controllers()


def test_a_lease_is_held_by_one_controller_until_it_is_not_renewed(lab):
    assert lab.first.hold() == ""
    assert lab.second.hold() == "one"
    for _ in range(10):
        lab.now_s += RENEW_S
        assert lab.first.is_due
        assert lab.first.hold() == ""
        assert lab.second.hold() == "one"
    lab.now_s += LASTS_S - 1
    assert not lab.first.is_held
    assert lab.second.hold() == "one"
    lab.now_s += 1
    assert lab.second.hold() == ""
    assert lab.first.hold() == "two"
    assert lab.second.is_held


def test_a_lease_that_is_let_go_is_the_next_ones_at_once(lab):
    assert lab.first.hold() == ""
    lab.first.let_go()
    assert lab.second.hold() == ""
    lab.first.let_go()  # it is another's now
    assert lab.server.lease["spec"]["holderIdentity"] == "two"
    assert lab.server.lease["spec"]["leaseTransitions"] == 2


def test_of_two_that_take_a_lease_at_once_one_gets_it(lab):
    lab.server.refuses = 409
    assert lab.first.hold() == "another controller, which has just taken it"
    assert not lab.first.is_held
    assert not lab.first.is_due
    lab.now_s += RENEW_S
    assert lab.first.is_due


def test_who_never_had_a_lease_lets_none_go(lab):
    assert lab.first.hold() == ""
    before = lab.server.version
    lab.second.let_go()
    assert lab.server.version == before


def test_a_controller_whose_machine_has_slept_does_not_hold_its_lease_any_more(monkeypatch):
    slept_s = 0.0

    def clock_gettime(clock: int) -> float:
        return 100.0 + (slept_s if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    lease = Lease(Server(), "lab", "one")  # type: ignore[arg-type]
    assert lease.hold() == ""
    assert lease.is_held
    slept_s = 600.0
    assert not lease.is_held
    assert lease.is_due


class Garbled:
    """In place of an API server whose watches end in bytes that are no text."""

    def __init__(self) -> None:
        self.looks, self.looked_again = 0, threading.Event()

    def call(self, method: str, path: str, **query: Any) -> Any:
        self.looks += 1
        if self.looks > 1:
            self.looked_again.set()
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def watch(self, path: str, **query: Any) -> "Garbled":
        return self

    def stream(self, amount: None) -> Any:
        yield b"\xb2\xfb\n"

    def shutdown(self) -> None:
        """Nothing: it ends by itself."""

    def close(self) -> None:
        """Nothing: it is no connection."""


def test_a_watch_that_reads_no_text_looks_at_everything_anew():
    server = Garbled()
    watch = Watch(server, "/pods", "")  # type: ignore[arg-type]
    watch.start()
    assert server.looked_again.wait(30)
    watch.stop()
    (error,) = [news.error for news in watch.news() if news.error is not None][:1]
    assert error.is_silence
