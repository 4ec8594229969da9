"""A real Ray on this machine: a head and another node of two CPUs each, started by `ray start`."""

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from rota.live.provider.ray import RayDriver

NODES = ("head", "n2")
MARK = "NODE_UNDER_TEST"  # in the environment of all that runs on a node
FOREIGN = ("RAY_", "ROTA_")  # variables that would change what a node does
PATIENCE_S = 60.0
TRIES = 3  # Ray lets a node have 30 s to start, and the machine may be shared


def why_none() -> str:
    """The reason why there can be no Ray here; "" if it can be started."""
    if importlib.util.find_spec("ray") is None:
        return "ray: not installed; tests/engines/set-up.sh installs it"
    return "" if shutil.which("setsid") else "setsid: not installed; util-linux has it"


class Ray:
    """Its head and its nodes, in a folder of their own; ``environment`` is for whoever uses it."""

    def __init__(self, base: Path) -> None:
        self.base, self.token = base, base / "token"
        self.address = f"127.0.0.1:{_free_port()}"
        self._drivers: dict[str, RayDriver] = {}  # of those who look, by cluster
        (base / "user").mkdir()
        self.environment = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_TMPDIR": str(base),  # else /tmp/ray tells of it to the whole machine
            "RAY_USAGE_STATS_ENABLED": "0",
            "HOME": str(base / "user"),
        }

    def start(self) -> None:
        """Returns when the head and all nodes are up."""
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(24))
        port = self.address.rpartition(":")[2]
        words = ("--head", f"--port={port}", f"--temp-dir={self.base}/t")
        self._begin("head", *words, "--include-dashboard=false")
        self.mend()

    def mend(self) -> None:
        """Start the nodes that have no power."""
        for node in NODES[1:]:
            if not self.processes(node):
                self.start_node(node)

    def start_node(self, node: str) -> None:
        """Returns when the node is one of Ray's."""
        self._begin(node, f"--address={self.address}")

    def _begin(self, node: str, *words: str) -> None:
        own = {key: each for key, each in os.environ.items() if not key.startswith(FOREIGN)}
        own |= self.environment | {MARK: f"{self.base}/{node}"}
        del own["RAY_ADDRESS"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
        command += ["--node-ip-address=127.0.0.1", "--num-cpus=2"]
        command += ["--object-store-memory=80000000"]
        for _ in range(TRIES):
            with open(self.base / "start.log", "ab") as log:
                done = subprocess.run(
                    command,
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    timeout=PATIENCE_S,
                )
            if done.returncode == 0:
                return
            self.cut_power(node)
        raise AssertionError(self._said())

    def _said(self) -> str:
        return (self.base / "start.log").read_text()

    def driver(self, cluster: str) -> RayDriver:
        """What speaks with Ray for a cluster; its user is this process's environment's."""
        return RayDriver(self.address, str(self.token), cluster)

    def look(self, cluster: str) -> dict[str, Any]:
        """What Ray tells of a cluster."""
        told: dict[str, Any] = self._looks(cluster).call("look")
        return told

    def clear(self, cluster: str) -> dict[str, Any]:
        """Give back what a cluster has, and tell what that was."""
        left: dict[str, Any] = self.look(cluster)["groups"]
        if left:
            self._looks(cluster).call("give_back", names=[*left])
        return left

    def _looks(self, cluster: str) -> RayDriver:
        return self._drivers.setdefault(cluster, self.driver(cluster))

    def run(self, cluster: str, code: str) -> str:
        """What a program prints that has ``ray``, connected in the namespace of a cluster."""
        start = "import os, ray; ray.init(os.environ['RAY_ADDRESS'], namespace={!r}, "
        start += "log_to_driver=False, logging_level='ERROR')\n"
        done = subprocess.run(
            [sys.executable, "-c", start.format(cluster) + code],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self, node: str = "") -> list[psutil.Process]:
        """All that runs on a node, or on all of them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                told = process.environ().get(MARK, "")
                if told == f"{self.base}/{node}" or (not node and told.startswith(f"{self.base}/")):
                    found.append(process)
        return found

    def cut_power(self, node: str) -> None:
        """Kill all that runs on a node, and whatever that has started."""
        _kill(self.processes(node))

    def stop(self) -> None:
        """Kill all of it."""
        for driver in self._drivers.values():
            driver.close()
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.processes()) and time.monotonic() < deadline:
            _kill(left)
        assert not left, left


@contextlib.contextmanager
def ray() -> Iterator[Ray]:
    """A Ray in a folder whose path is short enough for its sockets, until it is left."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as base:
        cluster = Ray(Path(base))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _kill(found: list[psutil.Process]) -> None:
    everyone: list[psutil.Process] = []
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.suspend()
            everyone += [process, *process.children(recursive=True)]
    for process in everyone:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(everyone, 10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
