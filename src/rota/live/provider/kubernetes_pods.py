"""Pods of agents: what the API server is asked for, and what it tells of each. Nothing is done."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rota.live.provider.keeping import KEEP_ALIVE

GPU = "nvidia.com/gpu"
REST_S, REST_SHARE = 30.0, 0.2  # of a pod's grace, for its agent to end: at most, the lesser one
USER = 1000  # any but root: a volume of the pod is its own
HOME = "/var/lib/rota"  # the state folder in a pod
SHM = "/dev/shm"  # noqa: S108 - the pod's own
QUEUE = "kueue.x-k8s.io/queue-name"
STATE = "rota/state"  # the state folder of the controller
ADMITTED = "joined.json"
BEGINS = ("ContainerCreating", "PodInitializing")  # nothing that one waits for in vain
UNSURE = "ContainerStatusUnknown"  # the kubelet has not seen the container's end

# The kubelet's SIGTERM is for this shell alone. It leaves the agent to move its jobs away, and ends
# when the agent does; SIGKILL follows when the pod's grace is over.
PROGRAM = (
    """\
trap : TERM
umask 077
mkdir -p "$PLACE" && cd "$PLACE" || exit
printf '%s' "$ADMITTED" >joined.json
unset ADMITTED PLACE
"""
    + KEEP_ALIVE
)


class Agents(NamedTuple):
    """The agents of a cluster in Kubernetes: all that their pods have in common.

    ``agent`` is the command that runs one, but for the name of its node and the state folder.
    Each pod has ``gpus``, ``cpus`` cores and ``memory``, as far as they are given; the ``volumes``
    are persistent volume claims, and where they are mounted. ``owner`` is an owner reference of
    Kubernetes, with which the pods go.
    """

    cluster: str
    state: str
    namespace: str
    image: str
    agent: Sequence[str]
    grace_s: int
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    queue: str | None = None
    volumes: Sequence[tuple[str, str]] = ()
    owner: Mapping[str, Any] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all of them."""
        return agent_labels(self.cluster)

    def pod(self, name: str) -> dict[str, Any]:
        """The pod of a node."""
        queue = {QUEUE: self.queue} if self.queue else {}
        about: dict[str, Any] = {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels | queue,
            "annotations": {STATE: self.state},
        }
        about |= {"ownerReferences": [dict(self.owner)]} if self.owner else {}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": self._spec(name)}

    def _spec(self, name: str) -> dict[str, Any]:
        taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
        labels = {"matchLabels": self.labels}
        apart = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_s,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(),
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
            },
            **({"tolerations": [taint]} if self.gpus else {}),
            "containers": [self._container(name)],
            "volumes": [
                *([] if self._has_home else [{"name": "home", "emptyDir": {}}]),
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                *(
                    {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
                    for number, (claim, _) in enumerate(self.volumes)
                ),
            ],
        }

    @property
    def _has_home(self) -> bool:
        return any(place == HOME for _, place in self.volumes)

    def _container(self, name: str) -> dict[str, Any]:
        mounts = [] if self._has_home else [{"name": "home", "mountPath": HOME}]
        mounts += [{"name": "shm", "mountPath": SHM}]
        mounts += [
            {"name": f"claim-{number}", "mountPath": place}
            for number, (_, place) in enumerate(self.volumes)
        ]
        given = {"cpu": self.cpus and str(self.cpus), "memory": self.memory}
        given |= {GPU: self.gpus and str(self.gpus)}
        held = {resource: amount for resource, amount in given.items() if amount}
        return {
            "name": "agent",
            "image": self.image,
            "command": ["sh", "-c", PROGRAM, "agent"],
            "args": [*self.agent, "--home", HOME, "--node", name],
            "env": [
                {
                    "name": "ADMITTED",
                    "valueFrom": {"secretKeyRef": {"name": name, "key": ADMITTED}},
                },
                {"name": "PLACE", "value": f"{HOME}/nodes/{name}"},
                {"name": "HOME", "value": HOME},
                {"name": "USER", "value": "rota"},  # 1000 may have no name in the image
            ],
            "resources": {"requests": held, "limits": held} if held else {},
            "securityContext": container_security(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }

    def secret(self, name: str, admitted: str, pod: str) -> dict[str, Any]:
        """The Secret that lets a node's agent in; it goes with the pod, whose uid is given."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod}
        about = {"name": name, "namespace": self.namespace, "labels": self.labels}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": about | {"ownerReferences": [owner]},
            "type": "Opaque",
            "stringData": {ADMITTED: admitted},
        }


def instance(cluster: str) -> dict[str, str]:
    """The labels of all that belongs to a cluster."""
    return {"app.kubernetes.io/name": "rota", "app.kubernetes.io/instance": cluster}


def agent_labels(cluster: str) -> dict[str, str]:
    """The labels of a cluster's agents and of their Secrets."""
    return {**instance(cluster), "app.kubernetes.io/component": "agent"}


def selector(cluster: str) -> str:
    """The label selector that finds a cluster's agents."""
    return ",".join(f"{name}={value}" for name, value in agent_labels(cluster).items())


def pod_security() -> dict[str, Any]:
    """The security context of a pod, which runs as a user."""
    user = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> dict[str, Any]:
    """The security context of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class Pod(NamedTuple):
    """A pod, as the API server told it last.

    ``killed_s`` is when its grace of ``grace_s`` is over, in seconds since 1970, once somebody has
    deleted it. ``words`` tell what it waits for, or how it has ended. ``is_over``: its kubelet says
    that its containers have ended.
    """

    name: str
    uid: str
    phase: str
    host: str
    killed_s: float | None
    grace_s: float
    has_begun: bool
    is_over: bool
    words: str
    state: str

    @property
    def leaves_s(self) -> float | None:
        """When its jobs must be gone: its agent has to end after them."""
        if self.killed_s is None:
            return None
        return self.killed_s - min(REST_S, self.grace_s * REST_SHARE)


def read(told: Mapping[str, Any]) -> Pod:
    """The pod of an object of the API server."""
    about, spec, status = told["metadata"], told.get("spec", {}), told.get("status", {})
    containers = [each.get("state", {}) for each in status.get("containerStatuses", ())]
    ends = [state["terminated"] for state in containers if "terminated" in state]
    deletion = about.get("deletionTimestamp")
    return Pod(
        about["name"],
        about.get("uid", ""),
        status.get("phase", "Pending"),
        spec.get("nodeName", ""),
        datetime.fromisoformat(deletion).timestamp() if deletion else None,
        about.get("deletionGracePeriodSeconds", 0.0),
        bool(ends) or any("running" in state for state in containers),
        len(ends) == len(containers) > 0 and all(end.get("reason") != UNSURE for end in ends),
        _end(ends[0], status) if ends else _waits_for(containers, status),
        about.get("annotations", {}).get(STATE, ""),
    )


def _end(end: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """How a pod has ended, in Kubernetes' words and the container's last one."""
    reason = status.get("reason") or end.get("reason")
    words = f"{reason}, " if reason else ""
    words += f"exit code {end.get('exitCode')}"
    lines = [line.strip() for line in (end.get("message") or "").splitlines() if line.strip()]
    last = status.get("message") or (lines[-1] if lines else "")
    return f"{words}: {_line(last)}" if last else words


def _waits_for(containers: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> str:
    """The reason why a pod does not run, in Kubernetes' words."""
    waits = [state["waiting"] for state in containers if "waiting" in state]
    stuck = [each for each in waits if each.get("reason") not in BEGINS]
    unplaced = [
        each
        for each in status.get("conditions", ())
        if each.get("type") == "PodScheduled" and each.get("status") == "False"
    ]
    for each in (*stuck, *unplaced, status, *waits):
        reason, message = each.get("reason"), each.get("message")
        if each in unplaced and reason == "Unschedulable":
            reason = None  # the message says so
        if words := ": ".join(filter(None, (reason, message))):
            return _line(words)
    return str(status.get("phase", "Pending"))


def _line(words: str) -> str:
    return " ".join(words.split()).rstrip(".")
