"""A Kubernetes of real parts on this machine: scheduler, controllers, and a node with a kubelet.

The node's programs and all of its pods are in a mount and a PID namespace, and end with it. Pods
have addresses of their own on a bridge of this machine.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support import images, kubernetes
from support.kubernetes import Kubernetes, free_port

RECIPE = Path(__file__).parents[1] / "engines" / "kubelet.sh"
NODE = "real"
GPUS = 2  # of the node, for Kubernetes: it has no device plugin, and pods get no device
ROTA_IMAGE = "rota:real"
PAUSE_IMAGE = "pause:real"
BRIDGE = "rota-pods"
HOST, SUBNET = "198.18.77.1", "198.18.77.0/24"  # for tests of networks: RFC 2544
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "rota-kubelet"
SWITCH = "ROTA_REAL_KUBELET"
PATIENCE_S = 180.0

# The node's PID 1. A kubelet sets these files of the kernel, which are the whole machine's.
NODE_SCRIPT = """\
set -e
mount --bind {base}/lib /var/lib
mount --bind {base}/log /var/log
mount -t tmpfs run /run
mount -t proc proc /proc
for file in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  mkdir -p {base}/kernel/${{file%/*}}
  cp /proc/sys/$file {base}/kernel/$file
  mount --bind {base}/kernel/$file /proc/sys/$file
done
export LD_LIBRARY_PATH={programs} PATH={programs}:$PATH
containerd --config {base}/containerd.toml >{base}/containerd.out 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
for image in pause rota; do
  ctr --namespace k8s.io images import {base}/$image.tar >>{base}/images.out 2>&1
  rm {base}/$image.tar
done
kubelet {arguments} >{base}/kubelet.out 2>&1 &
wait
"""

# Not every root may lower ``oom_score_adj``: containerd need not.
CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}"
    conf_dir = "{base}/cni"
"""


def why_none() -> str:
    """The reason why there can be none here; "" if it can be started."""
    if SWITCH not in os.environ:
        return f"slow: a real kubelet is started only if {SWITCH} is set"
    if reason := kubernetes.why_none():
        return reason
    if not _programs().is_dir():
        return "kubelet: not built; tests/engines/kubelet.sh builds it"
    if missing := [name for name in ("ip", "ldd") if shutil.which(name) is None]:
        return f"{', '.join(missing)}: not installed; iproute2 and libc-bin have them"
    if not (CGROUPS / "memory").is_dir():
        return "a kubelet of Kubernetes 1.20 needs cgroups of version 1"
    return ""


def _programs() -> Path:
    told = subprocess.run([RECIPE, "--folder"], capture_output=True, text=True, check=True)
    return Path(told.stdout.strip())


class RealKubernetes(Kubernetes):
    """A Kubernetes with one real node; it has images of Rota and of a sandbox, and pulls none."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, ())
        self.programs = _programs()
        self._node: subprocess.Popen[bytes] | None = None
        self._has_bridge = False

    def _start_nodes(self) -> None:
        base = self.base
        common = [f"--kubeconfig={base}/admin.yaml", "--leader-elect=false", "--port=0"]
        common += ["--bind-address=127.0.0.1", f"--cert-dir={base}"]
        port = f"--secure-port={free_port()}"
        self._start("kube-scheduler", *common, port, programs=self.programs)
        self._start(
            *("kube-controller-manager", *common, f"--secure-port={free_port()}"),
            *(f"--service-account-private-key-file={base}/accounts.key",),
            f"--root-ca-file={base}/ca.crt",
            programs=self.programs,
        )
        _make_bridge()  # fails while another one of these is there
        self._has_bridge = True
        self._write_node()
        with open(base / "node.out", "ab") as output:
            self._node = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", base / "node"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(self._is_ready_node, f"the node is ready: see {base}")
        room = {"nvidia.com/gpu": str(GPUS)}
        status = {"capacity": room, "allocatable": room}
        self.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})

    def _write_node(self) -> None:
        """Write what the node's programs read."""
        base = self.base
        for folder in ("lib", "log", "cni"):
            (base / folder).mkdir()
        busybox = self.programs / "busybox"
        images.write_pause(base / "pause.tar", PAUSE_IMAGE, busybox)
        images.write_rota(base / "rota.tar", ROTA_IMAGE, busybox)
        words = CONTAINERD.format(pause=PAUSE_IMAGE, programs=self.programs, base=base)
        (base / "containerd.toml").write_text(words)
        network = {"cniVersion": "0.4.0", "name": "pods"}
        addresses = {"type": "host-local", "subnet": SUBNET, "dataDir": f"{base}/addresses"}
        bridge = {"type": "bridge", "bridge": BRIDGE, "ipam": addresses}
        (base / "cni" / "pods.conflist").write_text(json.dumps({**network, "plugins": [bridge]}))
        for hierarchy in _hierarchies():
            (hierarchy / CGROUP).mkdir(exist_ok=True)
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": HOST,
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        }
        (base / "kubelet.json").write_text(json.dumps(settings))
        arguments = [
            *(f"--kubeconfig={base}/admin.yaml", f"--config={base}/kubelet.json"),
            *(f"--hostname-override={NODE}", f"--node-ip={HOST}", "--cert-dir=/var/lib/kubelet"),
            "--container-runtime=remote",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        ]
        script = NODE_SCRIPT.format(
            base=shlex.quote(str(base)),
            programs=shlex.quote(str(self.programs)),
            arguments=shlex.join(arguments),
        )
        (base / "node").write_text(script)

    def _is_ready_node(self) -> bool:
        assert self._node is not None
        assert self._node.poll() is None, (self.base / "node.out").read_text()[-4000:]
        nodes = self.call("GET", "/api/v1/nodes")["items"]
        conditions = nodes[0]["status"].get("conditions", []) if nodes else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def stop(self) -> None:
        """End the node with all of its pods, then the servers; nothing of them is left."""
        if self._node is not None:
            self._node.send_signal(signal.SIGKILL)
            self._node.wait()
        try:
            super().stop()
        finally:
            if hasattr(self, "_client"):
                self._client.close()
            if self._has_bridge:
                subprocess.run(["ip", "link", "delete", BRIDGE], check=True)
                shutil.rmtree(self.base / "lib", ignore_errors=True)  # images: GiB
                until(_remove_cgroups, "no process is left in the node's cgroups")


@contextlib.contextmanager
def real_kubernetes(base: Path) -> Iterator[RealKubernetes]:
    """A Kubernetes in ``base`` with a real node, until it is left."""
    cluster = RealKubernetes(base)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _make_bridge() -> None:
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
    subprocess.run(["ip", "address", "add", f"{HOST}/24", "dev", BRIDGE], check=True)
    subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)


def _hierarchies() -> list[Path]:
    """Of cgroups of version 1, those that a kubelet uses."""
    return [each for each in CGROUPS.iterdir() if os.path.ismount(each)]


def _remove_cgroups() -> bool:
    """Remove the node's cgroups; True once none is left."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    return not any((hierarchy / CGROUP).exists() for hierarchy in _hierarchies())


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for ``condition``; fails with ``what`` if it does not come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
