"""``rota up --on kubernetes``: the cluster's nodes are those of pods."""

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import InputError, ServerError
from rota.folder import Folder
from rota.live.controller.admission import Admission
from rota.live.provider.asked import Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.book import Book
from rota.live.provider.kubernetes import Pods, end_all
from rota.live.provider.kubernetes_api import Api, ApiError, UnusableError, connect, is_inside
from rota.live.provider.kubernetes_lease import Lease
from rota.live.provider.kubernetes_pods import Agents, read, selector

AGENT = ("rota", "agent", "--ends")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUEUE = re.compile(r"[a-z0-9]([-.a-z0-9]{0,61}[a-z0-9])?")  # a name, and the value of a label
OWN_POD = "POD_NAME"  # the variable that has the controller's pod by its name
PORT = 7800  # where agents call a controller that is a pod
WAIT_S = 1.0  # between two looks at a Lease that another controller holds
GRACE_S = 150  # 120 s to vacate a node, and the rest for its agent to end
KUEUE = "kueue.x-k8s.io"
# What a controller may do in its namespace, by API group and kind.
RIGHTS = {
    ("", "pods"): ("get", "list", "watch", "create", "delete"),
    ("", "secrets"): ("create", "delete"),
    ("coordination.k8s.io", "leases"): ("get", "create", "update", "delete"),
}


class Options(NamedTuple):
    """What is asked of Kubernetes; ``context`` and ``namespace`` are found if they are None."""

    image: str
    context: str | None = None
    namespace: str | None = None
    name: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    queue: str | None = None
    grace_s: int = GRACE_S
    volumes: Sequence[tuple[str, str]] = ()


class Known(NamedTuple):
    """The cluster's name in Kubernetes, where it is, and a mark of its state folder."""

    name: str
    state: str
    context: str | None
    namespace: str
    server: str


class KubernetesEngine:
    """Pods for a cluster in ``folder``; ``agent`` are options of their agents.

    ``tell`` tells people why the controller waits.
    """

    engine = "Kubernetes"

    def __init__(
        self,
        folder: Folder,
        bounds: tuple[int, int],
        options: Options,
        agent: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self.bounds = bounds
        self._folder, self._options, self._agent, self._tell = folder, options, agent, tell
        self._before = _known(folder)
        self._name = options.name or (
            self._before.name if self._before else f"rota-{secrets.token_hex(3)}"
        )
        self._state = self._before.state if self._before else secrets.token_hex(8)
        self._number = Asked(_asked(folder), self._name).number
        self._api: Api | None = None
        self._lease: Lease | None = None
        self._owner: dict[str, Any] | None = None

    def check(self) -> None:
        """Wait for the cluster's Lease. Raises InputError if a pod would be refused, in its words.

        A cluster that may have nodes goes on also where the API server does not answer.
        """
        try:
            self._api = api = connect(self._options.context, self._options.namespace)
        except UnusableError as error:
            raise InputError(f"--on kubernetes: {error}") from None
        names = self._leave_others(api)
        self._lease = Lease(api, self._name, f"{socket.gethostname()}:{self._folder.path}")
        try:
            self._check_rights(api)
            if is_inside():
                self._find_owner(api)
            self._check_pod(api, bool(names))
            self._check_name(api)
            if self._options.queue:
                _check_queue(api, self._options.queue)
            self._wait(self._lease)
            try:
                self._check_name(api)  # whom this controller waited for may have left pods
            except InputError:
                self._lease.let_go()
                raise
        except ApiError as error:
            if not (error.is_silence and names):
                raise InputError(
                    f"--on kubernetes: the API server at {api.server} does not do it: {error}; is "
                    "it the one that you mean (--context)? `kubectl get pods` has the same words"
                ) from None

    def is_own(self, node: str) -> bool:
        """True of the names of these nodes."""
        return self._number(node) > 0

    def provider(self, admission: Admission) -> AskingProvider:
        """The provider of these nodes."""
        assert self._api is not None
        assert self._lease is not None
        api = self._api
        known = Known(self._name, self._state, self._options.context, api.namespace, api.server)
        draft = self._folder.path / "kubernetes-cluster.json.new"
        draft.write_text(json.dumps(known._asdict()))
        draft.replace(_cluster(self._folder))
        asked = Asked(_asked(self._folder), self._name)
        book = Book("Kubernetes", asked, self.bounds, admission)
        return AskingProvider(Pods(book, api, self._agents(api), self._lease))

    def _agents(self, api: Api) -> Agents:
        given = self._options
        return Agents(
            cluster=self._name,
            state=self._state,
            namespace=api.namespace,
            image=given.image,
            agent=[*AGENT, *self._agent],
            grace_s=given.grace_s,
            gpus=given.gpus,
            cpus=given.cpus,
            memory=given.memory,
            queue=given.queue,
            volumes=given.volumes,
            owner=self._owner,
        )

    def _leave_others(self, api: Api) -> list[str]:
        """The nodes that the cluster may have. Raises InputError if these are somewhere else."""
        before, names = self._before, _names(self._folder)
        if before is None or not names:
            return []
        there = before.name, before.namespace, before.server
        if there != (self._name, api.namespace, api.server):
            raise InputError(
                f"--on kubernetes: {self._folder.path} has pods of {before.name} in namespace "
                f"{before.namespace} of {before.server}, and this is {self._name} in "
                f"{api.namespace} of {api.server}; give the options of before, give those back "
                "first with `rota down --now`, or give another --home"
            )
        return names

    def _check_rights(self, api: Api) -> None:
        missing = []
        for (group, kind), verbs in RIGHTS.items():
            for verb in verbs:
                asked = {"namespace": api.namespace, "verb": verb, "group": group, "resource": kind}
                review = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": asked},
                }
                path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
                if not api.call("POST", path, review)["status"].get("allowed"):
                    missing.append(f"{verb} {kind}")
        if missing:
            raise InputError(
                f"--namespace: {api.namespace}: Kubernetes does not let you {', '.join(missing)} "
                "there; have the Role bound to you that `rota up --on kubernetes --manifest` "
                "prints, or give another namespace"
            )

    def _check_pod(self, api: Api, has_nodes: bool) -> None:
        pod = self._agents(api).pod(f"{self._name}-1")
        del pod["metadata"]["name"]  # one of this name may be there
        pod["metadata"]["generateName"] = f"{self._name}-"
        try:
            api.call("POST", api.path("pods"), pod, dryRun="All")
        except ApiError as error:
            if error.is_silence:
                raise
            words = str(error)
            if "exceeded quota" in words and has_nodes:  # these may be what has used it up
                return
            if error.status == 404:
                fix = f"make it (`kubectl create namespace {api.namespace}`), or give another one"
                raise InputError(f"--namespace: {words}; {fix}") from None
            if "quota" in words:
                fix = "ask for less with --gpus, --pod-cpus or --pod-memory, or have it raised"
                raise InputError(f"--namespace: {words}; {fix}") from None
            raise InputError(
                f"--on kubernetes: a pod would be refused: {words}; change the options"
            ) from None

    def _check_name(self, api: Api) -> None:
        told = api.call("GET", api.path("pods"), labelSelector=selector(self._name))
        others = [pod.name for pod in map(read, told["items"]) if pod.state != self._state]
        if others:
            raise InputError(
                f"--name: {self._name} has pods of another state folder: {', '.join(others)}; give "
                "another name, or the --home that they are of"
            )

    def _find_owner(self, api: Api) -> None:
        """Have what is asked for go with what this pod belongs to."""
        name = os.environ.get(OWN_POD)
        own = api.find(api.path("pods", name)) if name else None
        if own is None:
            return
        about = own["metadata"]
        self._owner = next(
            (
                {key: each[key] for key in ("apiVersion", "kind", "name", "uid")}
                for each in about.get("ownerReferences", ())
                if each.get("controller")
            ),
            None,
        )
        self._lease = Lease(api, self._name, f"{about['name']}_{about['uid']}", self._owner)

    def _wait(self, lease: Lease) -> None:
        """Wait until no other controller holds the Lease."""
        told = ""
        while who := lease.hold():
            if who != told:
                self._tell(
                    f"the Lease {self._name} is held by {who}: this controller waits, and takes "
                    "over when that one has ended"
                )
            told = who
            time.sleep(WAIT_S)


def own_place() -> str | None:
    """HOST:PORT of this pod under the name that its Service gives it; None if it has none."""
    name = socket.getfqdn()
    return f"{name}:{PORT}" if is_inside() and "." in name else None


def check_no_pods(folder: Folder) -> None:
    """Raise InputError if a cluster has pods: without Kubernetes nobody would tell of them."""
    if names := _names(folder):
        raise InputError(
            f"--on: {folder.path} has pods in Kubernetes: {', '.join(names)}; give --on kubernetes "
            "as before, give them back first with `rota down --now`, or give another --home"
        )


def cancel_pods(folder: Folder) -> None:
    """Delete all of a cluster in Kubernetes. Raises ServerError."""
    known, names = _known(folder), _names(folder)
    if known is None:
        return
    try:
        left = end_all(connect(known.context, known.namespace), known.name, known.state, names)
    except UnusableError as error:
        left = str(error)
    if left and names:
        raise ServerError(
            f"the pods of {folder.path} can't be given back: {left}; they stay, with what runs "
            "there: try again when `kubectl get pods` answers"
        )
    Asked(_asked(folder), known.name).settle((), names)


def _check_queue(api: Api, queue: str) -> None:
    """Raise InputError if Kueue has no such queue, as far as one may ask."""
    try:
        found = api.find(f"/apis/{KUEUE}")
        if found is None:
            raise InputError(
                f"--queue: {queue} is a queue of Kueue, which this cluster does not have; leave it "
                "out, or install Kueue"
            )
        version = found["preferredVersion"]["groupVersion"]
        path = f"/apis/{version}/namespaces/{api.namespace}/localqueues/{queue}"
        if api.find(path) is None:
            raise InputError(
                f"--queue: Kueue has no LocalQueue {queue} in namespace {api.namespace}; give one "
                f"that `kubectl -n {api.namespace} get localqueues` lists"
            )
    except ApiError as error:
        if error.status != 403:  # who may not ask is not told
            raise


def _known(folder: Folder) -> Known | None:
    file = _cluster(folder)
    return Known(**json.loads(file.read_text())) if file.exists() else None


def _names(folder: Folder) -> list[str]:
    """The nodes that a cluster has in Kubernetes, or may have."""
    known = _known(folder)
    return Asked(_asked(folder), known.name).names if known else []


def _cluster(folder: Folder) -> Path:
    return folder.path / "kubernetes-cluster.json"


def _asked(folder: Folder) -> Path:
    return folder.path / "kubernetes.json"
