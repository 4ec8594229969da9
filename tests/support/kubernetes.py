"""A real Kubernetes API server on this machine, over its own etcd.

``support.kubelets`` stands in for kubelets, scheduler and controllers; ``support.real_kubelet`` has
real ones.
"""

import contextlib
import datetime
import http
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.kubelets import READY, Kubelets, ask, passing_over

RECIPE = Path(__file__).parents[1] / "engines" / "kubernetes.sh"
NODES = ("n1", "n2", "n3")
CPUS, MEMORY, GPUS, PODS = 16, "64Gi", 4, 110  # of each node, for Kubernetes
PATIENCE_S = 60.0
CALL_S = 10.0  # for the server to answer the kubelets
UNREACHABLE = "node.kubernetes.io/unreachable"


def why_none() -> str:
    """The reason why there can be no Kubernetes here; "" if it can be started."""
    if not _programs().is_dir():
        return "kube-apiserver: not built; tests/engines/set-up.sh builds it"
    if missing := [name for name in ("unshare", "chroot") if shutil.which(name) is None]:
        return f"{', '.join(missing)}: not installed; util-linux and coreutils have them"
    return "" if os.geteuid() == 0 else "containers need root"


def _programs() -> Path:
    told = subprocess.run([RECIPE, "--folder"], capture_output=True, text=True, check=True)
    return Path(told.stdout.strip())


class Kubernetes:
    """Its server, its nodes and their pods, in a folder of its own.

    ``environment`` has clients find it, with all rights. ``kubelets`` runs the pods.
    """

    def __init__(self, base: Path, nodes: Sequence[str] = NODES) -> None:
        self.base = base
        self.url = f"https://127.0.0.1:{free_port()}"
        self.ca = base / "ca.crt"
        self.environment = {"KUBECONFIG": str(base / "admin.yaml")}
        self._first = nodes
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._token = secrets.token_hex(24)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._nodes = 0  # that there have ever been

    def start(self) -> None:
        """Returns when the server is ready and has nodes."""
        _write_keys(self.base)
        user = f'{self._token},admin,admin,"system:masters"\n'
        _write_private(self.base / "tokens.csv", user.encode())
        self.write_config(self.base / "admin.yaml", self._token)
        peers = f"http://127.0.0.1:{free_port()}"
        self._start(
            *("etcd", f"--data-dir={self.base}/etcd", "--snapshot-count=1000000"),
            *(f"--listen-client-urls={self._etcd_url}", f"--listen-peer-urls={peers}"),
            *(f"--advertise-client-urls={self._etcd_url}", f"--initial-cluster=default={peers}"),
            f"--initial-advertise-peer-urls={peers}",
        )
        self.start_server()
        self._client = self.client(self._token, timeout_s=CALL_S)
        self._start_nodes()
        _until(lambda: self._has_account("default"), "the default namespace has its account")

    def _start_nodes(self) -> None:
        """Start what runs pods; returns when there are nodes."""
        self.kubelets = Kubelets(self.base / "pods", self._client, self.ca)
        self.kubelets.start()
        for node in self._first:
            self.add_node(node)

    def start_server(self) -> None:
        """Returns when the API server is ready."""
        base = self.base
        self._start(
            *("kube-apiserver", f"--etcd-servers={self._etcd_url}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={self.url.rpartition(':')[2]}", "--advertise-address=192.0.2.1"),
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=192.0.2.0/24"),
            *(f"--tls-cert-file={base}/server.crt", f"--tls-private-key-file={base}/server.key"),
            *(f"--cert-dir={base}", f"--token-auth-file={base}/tokens.csv"),
            *("--authorization-mode=RBAC", "--anonymous-auth=true", "--profiling=false"),
            *("--service-account-issuer=https://kubernetes.default.svc",),
            *(f"--service-account-signing-key-file={base}/accounts.key",),
            *(f"--service-account-key-file={base}/accounts.key",),
            # Pods get tokens of their own, as of any server since 1.21.
            "--feature-gates=BoundServiceAccountTokenVolume=true",
        )
        with self.client(self._token) as client:
            _until(lambda: self._is_ready(client), f"the server is ready: see {base}")

    def _is_ready(self, client: httpx.Client) -> bool:
        server = self._daemons["kube-apiserver"]
        assert server.poll() is None, (self.base / "kube-apiserver.out").read_text()[-4000:]
        with contextlib.suppress(httpx.HTTPError):
            return client.get("/readyz").status_code == http.HTTPStatus.OK
        return False

    def stop_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Have the API server end, or stand still at SIGSTOP until it gets a SIGCONT."""
        server = self._daemons["kube-apiserver"]
        server.send_signal(number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            server.wait(PATIENCE_S)

    def _start(self, *command: str, programs: Path | None = None) -> None:
        with open(self.base / f"{command[0]}.out", "ab") as output:
            self._daemons[command[0]] = subprocess.Popen(
                [(programs or _programs()) / command[0], *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def client(self, token: str, timeout_s: float = PATIENCE_S) -> httpx.Client:
        """A client of the server with the rights of a token."""
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=self.ca),
            timeout=timeout_s,
            trust_env=False,
        )

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The server's answer, with all rights; raises ``httpx.HTTPStatusError`` if it refuses."""
        return ask(self._client, method, path, body, **query)

    def write_config(self, path: Path, token: str, namespace: str = "default") -> Path:
        """Write a kubeconfig for a token."""
        server = {"server": self.url, "certificate-authority": str(self.ca)}
        context = {"cluster": "lab", "user": "lab", "namespace": namespace}
        told = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": context}],
        }
        _write_private(path, json.dumps(told).encode())
        return path

    def add_namespace(self, name: str) -> None:
        """Returns when it is there with the account that pods have by default."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        _until(lambda: self._has_account(name), f"namespace {name} has its account")

    def add_claim(self, namespace: str, name: str) -> Path:
        """The folder of a new persistent volume claim, which pods on all nodes may have."""
        room = {"requests": {"storage": "1Gi"}}
        body = {"metadata": {"name": name}}
        body["spec"] = {"accessModes": ["ReadWriteMany"], "resources": room}
        self.call("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", body)
        return self.kubelets.claim(namespace, name)

    def _has_account(self, namespace: str) -> bool:
        with contextlib.suppress(httpx.HTTPStatusError):
            self.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
            return True
        return False

    def add_account(
        self,
        namespace: str,
        name: str,
        rules: Sequence[Mapping[str, Sequence[str]]],
        cluster_rules: Sequence[Mapping[str, Sequence[str]]] = (),
    ) -> str:
        """The token of a new service account that may do what RBAC rules say.

        ``rules`` hold in its namespace, and ``cluster_rules`` everywhere.
        """
        core, group = f"/api/v1/namespaces/{namespace}", "rbac.authorization.k8s.io"
        called = {"metadata": {"name": name}}
        self.call("POST", f"{core}/serviceaccounts", called)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        wide = f"{namespace}-{name}"
        for kind, path, own, given in (
            ("Role", f"/apis/{group}/v1/namespaces/{namespace}", name, rules),
            ("ClusterRole", f"/apis/{group}/v1", wide, cluster_rules),
        ):
            if given:
                role = {"metadata": {"name": own}, "rules": [dict(rule) for rule in given]}
                self.call("POST", f"{path}/{kind.lower()}s", role)
                binding = {
                    "metadata": {"name": own},
                    "roleRef": {"apiGroup": group, "kind": kind, "name": own},
                    "subjects": [subject],
                }
                self.call("POST", f"{path}/{kind.lower()}bindings", binding)
        request = {"spec": {"expirationSeconds": 86_400}}
        told = self.call("POST", f"{core}/serviceaccounts/{name}/token", request)
        token: str = told["status"]["token"]
        return token

    def add_node(
        self,
        name: str,
        *,
        gpus: int = GPUS,
        cpus: int = CPUS,
        memory: str = MEMORY,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Returns when the node is ready, and its pods can run."""
        self._nodes += 1
        address = f"127.0.1.{self._nodes}"
        own = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}
        own |= {"kubernetes.io/os": "linux", **(labels or {})}
        self.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": own}})
        room = {"cpu": str(cpus), "memory": memory, "pods": str(PODS)}
        if gpus:
            room["nvidia.com/gpu"] = str(gpus)
        addresses = [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ]
        status = {"capacity": room, "allocatable": room, "addresses": addresses}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        self.kubelets.add_node(name, address, gpus)
        self.take_back(name)

    def delete_node(self, name: str) -> None:
        """Take a node away with its pods, as its cloud does: they end, and nobody waits for it."""
        self.kubelets.remove_node(name)
        self.call("DELETE", f"/api/v1/nodes/{name}")
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self._forget(pod)

    def lose(self, name: str) -> None:
        """Tell that a node is not heard of, as its controller does 40 s after its last word."""
        condition = {"status": "Unknown", "reason": "NodeStatusUnknown"}
        condition["message"] = "Kubelet stopped posting node status."
        self.kubelets.tell_node(name, condition)
        effects = ("NoSchedule", "NoExecute")
        taints = [{"key": UNREACHABLE, "effect": effect} for effect in effects]
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.kubelets.tell_condition(pod, "Ready", status="False")

    def take_back(self, name: str) -> None:
        """Tell that a node is ready, as its controller does when it hears of it again."""
        self.kubelets.tell_node(name, READY)
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def pods(self, namespace: str = "") -> list[dict[str, Any]]:
        """The pods of a namespace, or all, as the server has them."""
        within = f"/namespaces/{namespace}" if namespace else ""
        found: list[dict[str, Any]] = self.call("GET", f"/api/v1{within}/pods")["items"]
        return found

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """A pod as the server has it."""
        found = [pod for pod in self.pods(namespace) if pod["metadata"]["name"] == name]
        return found[0] if found else None

    def clear(self, namespace: str) -> None:
        """Mend all nodes; returns when none of its pods is left, nor any of their processes."""
        for node in self.kubelets.nodes:
            self.kubelets.mend(node)
            self.take_back(node)
        for pod in self.pods(namespace):
            self._forget(pod)
        _until(lambda: not self.kubelets.kill(namespace), f"{namespace} has no process left")

    def _forget(self, pod: Mapping[str, Any]) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        with passing_over(http.HTTPStatus.NOT_FOUND):
            self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def stop(self) -> None:
        """End all pods, then the server."""
        try:
            if hasattr(self, "kubelets"):
                self.kubelets.stop()
        finally:
            for process in reversed(list(self._daemons.values())):
                process.kill()
                process.wait()
            if hasattr(self, "kubelets"):
                self.kubelets.close()


@contextlib.contextmanager
def kubernetes(base: Path, nodes: Sequence[str] = NODES) -> Iterator[Kubernetes]:
    """A Kubernetes in ``base``, until it is left."""
    cluster = Kubernetes(base, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _write_keys(base: Path) -> None:
    """A CA, the server's certificate from it, and the key by which accounts' tokens are signed."""
    now = datetime.datetime.now(datetime.UTC)
    own, server, accounts = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab-ca")])
    builder = (
        x509.CertificateBuilder()
        .issuer_name(authority)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    uses = dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    ca = (
        builder.subject_name(authority)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**uses | {"key_cert_sign": True}), critical=True)
        .add_extension(identifier, critical=False)
        .sign(own, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        *map(x509.DNSName, ("localhost", "kubernetes.default.svc")),
    ]
    certificate = (
        builder.subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")]))
        .public_key(server.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**uses | {"digital_signature": True}), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(own, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (base / "ca.crt").write_bytes(ca.public_bytes(pem))
    (base / "server.crt").write_bytes(certificate.public_bytes(pem))
    for name, key in (("server.key", server), ("accounts.key", accounts)):
        words = key.private_bytes(
            pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        _write_private(base / name, words)


def _write_private(path: Path, words: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(words)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
