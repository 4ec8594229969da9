"""A real Slurm on this machine: slurmctld and one slurmd for each of its nodes, as root."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = 4
CPUS = 16
GPUS = 4  # of each node, for Slurm: devices that are none
PATIENCE_S = 30.0

CONF = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmctldPidFile={base}/slurmctld.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdPidFile={base}/slurmd-%n.pid
SlurmdLogFile={base}/slurmd-%n.log
SlurmdSpoolDir={base}/spool-%n
StateSaveLocation={base}/state
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock,cred_expire=5
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SlurmdTimeout=5
KillWait=2
InactiveLimit=0
ReturnToService=2
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory=4000 Gres=gpu:v100:{gpus}
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}]
PartitionName=gpu Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
"""


def why_none() -> str:
    """The reason why there can be no Slurm here; "" if it can be started."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: not installed; tests/engines/set-up.sh installs them"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Slurm:
    """Its daemons, in a folder of their own; ``environment`` has commands find them."""

    def __init__(self, base: Path, nodes: int = NODES) -> None:
        self.base, self.nodes = base, [f"n{1 + number}" for number in range(nodes)]
        self.environment = {"SLURM_CONF": str(base / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when all nodes are idle."""
        for name in ("state", "munge", *(f"spool-{node}" for node in self.nodes)):
            (self.base / name).mkdir(mode=0o755)
        key = self.base / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        first = _free_ports(1 + len(self.nodes))
        (self.base / "slurm.conf").write_text(
            CONF.format(
                base=self.base,
                user=getpass.getuser(),
                port=first,
                first=first + 1,
                last=first + len(self.nodes),
                nodes=len(self.nodes),
                cpus=CPUS,
                gpus=GPUS,
            )
        )
        for number in range(GPUS):
            os.mknod(self.base / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        files = f"{self.base}/gpu[0-{GPUS - 1}]"
        gres = f"NodeName=n[1-{len(self.nodes)}] Name=gpu Type=v100 File={files}\n"
        (self.base / "gres.conf").write_text(gres)
        folder, sock = self.base / "munge", self.base / "munge.sock"
        self._start(
            *("munged", "--force", "--foreground", f"--socket={sock}", f"--key-file={key}"),
            *(f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"),
        )
        _until(sock.exists, "munged listens")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        _until(lambda: self.states().count("idle") == len(self.nodes), "all nodes are idle")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-i")

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node)

    def _start(self, *command: str) -> None:
        log = self.base / f"{command[0]}.out"
        with open(log, "ab") as output:
            self._daemons[" ".join(command)] = subprocess.Popen(
                command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop_controller(self) -> None:
        """Have slurmctld end."""
        self._end("slurmctld", signal.SIGTERM)

    def _end(self, daemon: str, number: signal.Signals) -> None:
        (name,) = [name for name in self._daemons if f"{name} ".startswith(f"{daemon} ")]
        process = self._daemons.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def cut_power(self, node: str, words: str) -> None:
        """Kill a node's slurmd, and all processes that have these ``words`` in their environment or
        command line, with whatever they have started.
        """
        self._end(f"slurmd -D -N {node}", signal.SIGKILL)
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                told = [*process.cmdline(), *process.environ().values()]
                if any(words in word for word in told) and process.pid != os.getpid():
                    found.append(process)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        for process in found:
            with contextlib.suppress(psutil.Error):
                for each in [*process.children(recursive=True), process]:
                    each.kill()

    def states(self) -> list[str]:
        """The states of the nodes."""
        return self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()

    def run(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self, states: str = "all") -> list[list[str]]:
        """Name, state, id and node of each job, array tasks one by one."""
        told = self.run("squeue", "-h", "-r", "-t", states, "-o", "%j|%T|%A|%N")
        return [line.split("|") for line in told.splitlines()]

    def end_jobs(self) -> None:
        """Returns when no job is left."""
        self.run("scancel", "-u", getpass.getuser(), check=False)
        _until(lambda: not self.jobs("PD,R,CG,S"), "no job is left")

    def stop(self) -> None:
        """End all jobs, then all daemons."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.end_jobs()
        for process in reversed(list(self._daemons.values())):
            process.send_signal(signal.SIGTERM)
        for process in self._daemons.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for left in psutil.process_iter():  # of nodes whose slurmd was killed
            with contextlib.suppress(psutil.Error):
                if left.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    left.kill()


@contextlib.contextmanager
def slurm(base: Path, nodes: int = NODES) -> Iterator[Slurm]:
    """A Slurm in ``base``, until it is left."""
    cluster = Slurm(base, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody has."""
    for first in range(17000, 30000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
