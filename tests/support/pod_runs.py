"""Pods on nodes as kubelets know them: the runs of their containers, and what is told of them."""

import datetime
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.containers import Container

RESTART_S, MOST_RESTART_S = 0.5, 30.0  # a real kubelet waits 10 s first, and at most 300 s
LEAST_GRACE_S = 2.0

Told = dict[str, Any]  # an object of the API


class Node:
    """What a kubelet knows of itself."""

    def __init__(self, name: str, address: str, gpus: int) -> None:
        self.name, self.address, self.gpus = name, address, gpus
        self.has_power = self.is_connected = True
        self.next_beat_s = 0.0

    def works(self) -> bool:
        """True if its kubelet does what it should."""
        return self.has_power and self.is_connected


class Run:
    """A container of a pod: its current run, and what is known of those before."""

    def __init__(self, spec: Told) -> None:
        self.name, self.spec = spec["name"], spec
        self.container: Container | None = None
        self.waits: Told = {"reason": "ContainerCreating"}  # {} once it has been started
        self.began = ""
        self.ended: Told | None = None  # the state of the run that is over
        self.last: Told | None = None  # and of the one before
        self.restarts = 0
        self.next_s = 0.0  # when to start it, at the earliest
        self.back_off_s = 0.0

    def begin(self, container: Container) -> None:
        """It runs, for the first time or again."""
        if self.ended is not None:
            self.restarts += 1
            self.last, self.ended = self.ended, None
        self.container, self.waits, self.began = container, {}, now()

    def end(self, code: int, reason: str = "") -> None:
        """It has ended, by itself or not."""
        assert self.container is not None
        message = self.container.message()
        self.container = None
        self.ended = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "startedAt": self.began,
            "finishedAt": now(),
            **({"message": message} if message else {}),
        }
        if self.restarts:
            self.back_off_s = min(RESTART_S * 2 ** (self.restarts - 1), MOST_RESTART_S)
        self.next_s = time.monotonic() + self.back_off_s

    def is_over(self, policy: str) -> bool:
        """True if it has run, and does not again."""
        if self.container is not None or self.ended is None:
            return False
        return policy == "Never" or (policy == "OnFailure" and not self.ended["exitCode"])


class Pod:
    """A pod on a node, from when its kubelet hears of it until nothing of it is left."""

    def __init__(self, told: Told, node: Node, folder: Path) -> None:
        assert "initContainers" not in told["spec"], "init containers are not carried out"
        self.told, self.on, self.folder = told, node, folder
        self.node, self.address = node.name, node.address
        self.namespace, self.name = told["metadata"]["namespace"], told["metadata"]["name"]
        self.uid = told["metadata"]["uid"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.policy = told["spec"]["restartPolicy"]
        self.runs = [Run(spec) for spec in told["spec"]["containers"]]
        self.gpus: Sequence[int] = ()
        self.refused: Told | None = None  # the status of a pod that does not fit
        self.is_deleted = False  # the server knows it no more
        self.said: Told = {}
        self._began = now()
        self._kill_s: float | None = None  # when its grace is over

    def ends(self) -> bool:
        """True if it is to end, or has."""
        return self.is_deleted or "deletionTimestamp" in self.told["metadata"]

    def running(self) -> list[Container]:
        """Its containers that run."""
        return [run.container for run in self.runs if run.container is not None]

    def is_over(self) -> bool:
        """True if no container runs, or will again."""
        policy = "Never" if self._kill_s is not None else self.policy
        return self.refused is not None or all(run.is_over(policy) for run in self.runs)

    def look(self) -> None:
        """See which containers have ended."""
        for run in self.runs:
            if run.container is not None and (code := run.container.exit_code()) is not None:
                run.end(code)

    def end(self) -> None:
        """A SIGTERM first, and a SIGKILL once the grace is over, which may become shorter."""
        grace = self.told["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            grace = self.told["spec"]["terminationGracePeriodSeconds"]
        kill_s = time.monotonic() + max(grace, LEAST_GRACE_S)
        if self._kill_s is None:
            self._kill_s = kill_s
            self.send(signal.SIGTERM)
        self._kill_s = min(self._kill_s, kill_s)
        if time.monotonic() >= self._kill_s:
            self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Signal the PID 1 of each of its containers."""
        for container in self.running():
            container.send(number)

    def lose_power(self) -> None:
        """Kill all of it, of which nothing but its end is known afterwards."""
        self.send(signal.SIGKILL)
        for run in self.runs:
            if run.container is not None:
                run.container.kill()
                run.end(255, "Unknown")

    def status(self) -> Told:
        """What is told of it, but for conditions."""
        if self.refused is not None:
            return self.refused
        states = [self._container_status(run) for run in self.runs]
        status = {"phase": self._phase(), "containerStatuses": states}
        status |= {"hostIP": self.address, "startTime": self._began}
        if any(run.began for run in self.runs):
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        return status

    def conditions(self, status: Told) -> list[Told]:
        """Its conditions at a status; those that are not a kubelet's stay as they are."""
        is_ready = self.refused is None and all(run.container for run in self.runs)
        reason = "PodCompleted" if status["phase"] == "Succeeded" else "ContainersNotReady"
        why = {} if is_ready else {"reason": reason}
        found = {each["type"]: each for each in self.told["status"].get("conditions", [])}
        for kind in ("Initialized", "Ready", "ContainersReady"):
            is_true = is_ready or kind == "Initialized"
            new = {"type": kind, "status": str(is_true), **({} if is_true else why)}
            found[kind] = moved(found.get(kind), new)
        return [*found.values()]

    def _phase(self) -> str:
        if self.is_over():
            failed = any(run.ended is None or run.ended["exitCode"] for run in self.runs)
            return "Failed" if failed else "Succeeded"
        return "Running" if all(run.began for run in self.runs) else "Pending"

    def _container_status(self, run: Run) -> Told:
        last, runs = run.last, run.container is not None
        state: Told = {"running": {"startedAt": run.began}}
        if run.waits:
            state = {"waiting": run.waits}
        elif run.ended and run.back_off_s and not self.is_over():
            words = f"back-off {run.back_off_s:g}s restarting failed container={run.name} "
            words += f"pod={self.name}_{self.namespace}({self.uid})"
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": words}}
            last = run.ended
        elif run.ended:
            state = {"terminated": run.ended}
        return {
            "name": run.name,
            "image": run.spec["image"],
            "imageID": f"sha256:{run.spec['image']}" if run.began else "",
            "ready": runs,
            "started": runs,
            "restartCount": run.restarts,
            "state": state,
            "lastState": {"terminated": last} if last else {},
        }


def now() -> str:
    """The time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moved(old: Told | None, new: Told) -> Told:
    """A condition with the time since when its status is what it is."""
    is_same = old is not None and old["status"] == new["status"]
    return new | {"lastTransitionTime": old["lastTransitionTime"] if old and is_same else now()}
