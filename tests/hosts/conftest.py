"""A cluster of several machines: a controller on one, and others that join it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.process.conftest import DEADLINE_S, until

from rota.client.client import Client
from rota.errors import RotaError
from rota.experiment.runs import hosts
from rota.folder import Folder

PORT = 7800
MARK = "HOST_UNDER_TEST"
GATED = "echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo over"


class Machine:
    """A host with Rota on it, and a state folder of its own."""

    def __init__(self, host: hosts.Host, base: Path) -> None:
        self.host, self.base = host, base
        self.folder = Folder(base / "home")
        self.process: subprocess.Popen[str] | None = None
        self.more: dict[str, str] = {}  # environment variables
        base.mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
        own = {"ROTA_HOME": str(self.folder.path), "XDG_RUNTIME_DIR": str(self.base)}
        return kept | own | {MARK: self.host.name} | self.more

    def rota(self, *words: str, before: Sequence[str] = ()) -> tuple[int, str]:
        """The exit code of a command, and what it printed; a program ``before`` starts it."""
        path = self.base / "command.out"
        with open(path, "w") as log:
            process = self.start(*words, log=log, before=before)
            code = process.wait(DEADLINE_S)
        return code, path.read_text()

    def start(self, *words: str, log, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-m", "rota.cli.main", *words]
        return self.host.start(command, self.environment, log)

    def run(self, *words: str) -> None:
        """Have a program run there until :meth:`end`, or for ever."""
        with open(self.base / "program.log", "a") as log:
            self.process = self.start(*words, log=log)

    @property
    def agent(self) -> psutil.Process:
        """The process of its agent."""
        found = self.host.processes("rota.live.agent")
        (agent,) = [each for each in found if "--joined" in each.cmdline()]
        return agent

    @property
    def controller(self) -> psutil.Process:
        """The process of its controller."""
        (controller,) = [each for each in self.host.processes("up") if each.parent() is not None]
        return controller

    def working(self) -> list[psutil.Process]:
        """The processes of jobs there."""
        found = []
        for each in self.host.processes("-c"):
            with contextlib.suppress(psutil.Error):
                if any("echo begun" in word for word in each.cmdline()):
                    found.append(each)
        return found

    def is_stopped(self) -> bool:
        """True if jobs have processes there, and none of them runs."""
        found = self.working()
        return bool(found) and all(each.status() == psutil.STATUS_STOPPED for each in found)

    def end(self) -> None:
        """Kill that program, as kill -9 does."""
        assert self.process is not None
        for module in ("rota.live.agent", "rota.cli.main"):
            for process in self.host.processes(module):
                if {"agent", "up", "--joined"} & set(process.cmdline()):
                    process.kill()
        self.exit_code()

    def exit_code(self) -> int:
        """That of the program, once it has ended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)  # the parent of what was stopped has stopped, too
        return self.process.wait(DEADLINE_S)

    @property
    def log(self) -> str:
        return (self.base / "program.log").read_text()


class Lab:
    """The controller's machine, and those that have joined."""

    def __init__(self, lan: hosts.Lan, base: Path, kind: type[Machine] = Machine) -> None:
        self._lan, self._base, self._kind = lan, base, kind
        self.head = self.machine("head")
        self.url = f"https://{self.head.host.address}:{PORT}"
        self._client: Client | None = None

    def machine(self, name: str) -> Machine:
        base = self._base / name
        hidden = [self._base / "head"] if name != "head" else []
        return self._kind(self._lan.host(name, hidden), base)

    def up(self, *words: str) -> None:
        """Start the controller; returns when it answers to other machines."""
        place = f"{self.head.host.address}:{PORT}"
        self.head.run("up", "--gpus", "1", "--policy", "fifo-backfill", "--listen", place, *words)
        self.until_up()

    def until_up(self) -> None:
        until(self._answers, "the controller answers")

    def _answers(self) -> bool:
        assert self.head.process is not None
        assert self.head.process.poll() is None, self.head.log
        with contextlib.suppress(RotaError, OSError, ValueError):
            return bool(self.client.policies())
        return False

    @property
    def client(self) -> Client:
        """A client on this machine, which is none of the cluster's."""
        if self._client is None:
            token = self.head.folder.token.read_text().strip()
            made = Client(self.url, token, ca=str(self.head.folder.tls / "ca.pem"))
            made.policies()
            self._client = made
        return self._client

    def line(self) -> list[str]:
        """The words of a line to join with."""
        code, text = self.head.rota("node", "invite")
        assert code == 0, text
        return text.split()[1:]

    def join(self, name: str, gpus: int = 2, **more: str) -> Machine:
        """Another machine that has joined; returns when it is connected.

        Its programs have ``more`` environment variables.
        """
        machine = self.begin_to_join(name, gpus, **more)
        self.until_connected(name, machine)
        return machine

    def begin_to_join(self, name: str, gpus: int = 2, **more: str) -> Machine:
        """The same, which returns at once."""
        machine = self.machine(name)
        machine.more = more
        machine.run(*self.line(), "--gpus", str(gpus))
        return machine

    def until_connected(self, name: str, machine: Machine) -> None:
        until(lambda: self.node(name).get("connected"), f"{name} is connected: {machine.log}")

    def node(self, name: str) -> dict:
        found = [node for node in self.client.nodes() if node["name"] == name]
        return found[0] if found else {}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Job:
    """A job of two GPUs, which only a machine that has joined has; it ends when it is let."""

    def __init__(self, lab, machine, gpus=2):
        self.lab, self.gate = lab, machine.base / "gate"
        self.gate.unlink(missing_ok=True)
        fields = {"run": GATED.format(gate=self.gate), "workdir": str(machine.base)}
        self.id = lab.client.submit(fields | {"resources": {"gpus": gpus}})["id"]

    @property
    def now(self):
        return self.lab.client.job(self.id)

    @property
    def place(self):
        """The names of the nodes of its GPUs."""
        return sorted({each["node"] for each in self.now["gpus"]})

    def until(self, state):
        until(lambda: self.now["state"] == state, f"the job is {state}: {self.now}")
        return self

    def until_begun(self):
        self.until("RUNNING")
        until(lambda: "begun" in self.printed(), "it has printed")
        return self

    def until_begun_again(self, before=1):
        """Wait for an attempt after that one; returns once it runs."""
        until(lambda: self.now["attempt"] > before, f"it starts anew: {self.now}")
        return self.until("RUNNING")

    def ends(self):
        self.gate.touch()
        self.until("SUCCEEDED")

    def printed(self):
        return "".join(self.lab.client.logs(self.id))

    def ends_in_its_first_attempt(self):
        self.ends()
        assert self.now["attempt"] == 1
        assert self.printed() == "begun\nover\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def lab(base) -> Iterator[Lab]:
    """A cluster of which each test may have another machine join."""
    if reason := hosts.why_none(*hosts.FOR_FAULTS):
        pytest.skip(reason)
    (base / "head").mkdir()
    with hosts.lan() as lan:
        lab = Lab(lan, base)
        try:
            lab.up()
            yield lab
        finally:
            lab.close()
