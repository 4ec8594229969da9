"""Machines of their own on one kernel: namespaces for network, PIDs, mounts and host names.

A host has its own /dev/shm, can't see the folders that are hidden from it, and reaches other hosts
through a bridge, from which its cable can be pulled; what comes in or goes out can be dropped. What
runs there ends with it.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

PROGRAMS = ("ip", "nsenter", "unshare", "mount", "bash")
FOR_FAULTS = ("tc", "nft")  # what comes in or goes out is shaped and dropped by these
OUTSIDE = 254  # the number of this kernel's own network
# The first process adopts orphans, as any host's does, and waits for them.
INIT = 'hostname "$1"; shift; for each in "$@"; do mount -t tmpfs tmpfs "$each"; done; echo up; '
INIT += "while :; do sleep 1000 & wait; done"

_numbers = itertools.count()


def why_none(*more: str) -> str:
    """The reason why there can be no hosts here, with ``more`` programs; "" if there can."""
    if os.geteuid() != 0:
        return "only root makes hosts out of namespaces"
    missing = [name for name in (*PROGRAMS, *more) if shutil.which(name) is None]
    if missing:
        nftables = ", nftables" if "nft" in missing else ""
        return f"there is no {', '.join(missing)}: install iproute2{nftables} and util-linux"
    try:
        with lan():
            return ""
    except subprocess.CalledProcessError as error:
        return f"no namespaces or bridges can be made: {error.stderr.strip()}"


class Lan:
    """A bridge and the hosts on it."""

    def __init__(self) -> None:
        number = (os.getpid() * 64 + next(_numbers)) % 16_000  # others run beside this process
        self._subnet = f"10.{100 + number // 250}.{1 + number % 250}"
        self.name = f"rt{os.getpid() % 100_000}x{next(_numbers)}"
        self.hosts: list[Host] = []

    def __enter__(self) -> "Lan":
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "address", "add", f"{self.address(OUTSIDE)}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()
        _run("ip", "link", "delete", self.name)

    def address(self, number: int) -> str:
        """The address of the host of this number; this kernel's own network is number OUTSIDE."""
        return f"{self._subnet}.{number}"

    def host(self, name: str, hidden: Sequence[Path] = ()) -> "Host":
        """Another host, which can't see what is in these folders."""
        host = Host(self, name, len(self.hosts) + 1, hidden)
        self.hosts.append(host)
        return host


class Host:
    """One machine of a LAN."""

    def __init__(self, lan: Lan, name: str, number: int, hidden: Sequence[Path]) -> None:
        self.name, self.address = name, lan.address(number)
        self._lan, self._network = lan, f"{lan.name}-{number}"
        self._port = f"{lan.name}p{number}"
        self._hidden = ["/dev/shm", *map(str, hidden)]  # noqa: S108 - each host has its own
        self._init: psutil.Process | None = None
        self._doors: list[subprocess.Popen[str]] = []  # parents, outside, of what was started
        self._outer: subprocess.Popen[str] | None = None
        _run("ip", "netns", "add", self._network)
        _run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0",
             "netns", self._network)  # fmt: skip
        _run("ip", "link", "set", self._port, "master", lan.name, "up")
        for words in (
            ["address", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            _run("ip", "-n", self._network, *words)
        self.power_on()

    def power_on(self) -> None:
        """Boot it."""
        command = ["ip", "netns", "exec", self._network, "unshare", "--mount", "--uts", "--pid"]
        command += ["--fork", "--kill-child", "--mount-proc", "bash", "-c", INIT, "init", self.name]
        self._outer = subprocess.Popen(
            [*command, *self._hidden],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which takes its hosts down
        )
        assert self._outer.stdout is not None
        if (said := self._outer.stdout.readline()) != "up\n":
            self.power_off()
            raise subprocess.CalledProcessError(1, command, stderr=said or "no host boots")
        (self._init,) = psutil.Process(self._outer.pid).children()

    def power_off(self) -> None:
        """Cut its power: nothing that runs there has a moment left."""
        if self._outer is not None:
            if self._init is not None:
                self._init.kill()
            for door in self._doors:  # one whose child was stopped has stopped itself
                door.send_signal(signal.SIGCONT)
                door.wait()
            self._doors.clear()
            self._outer.wait()
            assert self._outer.stdout is not None
            self._outer.stdout.close()
            self._outer = self._init = None

    def close(self) -> None:
        """Take it down, with its network."""
        self.power_off()
        _run("ip", "netns", "delete", self._network)
        with contextlib.suppress(subprocess.CalledProcessError):  # it may have gone with that
            _run("ip", "link", "delete", self._port)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[str]
    ) -> subprocess.Popen[str]:
        """Start a command there, in this environment, that prints into a file."""
        assert self._init is not None
        enter = ["nsenter", "-t", str(self._init.pid), "-m", "-u", "-p", "-n", "--"]
        door = subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._doors.append(door)
        return door

    def run(self, *command: str) -> None:
        """Have a command carried out there, to its end."""
        assert self._init is not None
        _run("nsenter", "-t", str(self._init.pid), "-m", "-p", "--", *command)

    def processes(self, word: str = "") -> list[psutil.Process]:
        """The processes there, or those that have this word on their command line."""
        assert self._init is not None
        space = os.readlink(f"/proc/{self._init.pid}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                here = os.readlink(f"/proc/{process.pid}/ns/pid") == space
                if here and (not word or word in process.cmdline()):
                    found.append(process)
        return found

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Pull its cable out of the bridge: nothing comes through, and nobody is told."""
        _run("ip", "link", "set", self._port, "nomaster")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._port, "master", self._lan.name)

    @property
    def received_bytes(self) -> int:
        """Bytes that its network has brought it so far."""
        return int(Path(f"/sys/class/net/{self._port}/statistics/tx_bytes").read_text())

    @contextlib.contextmanager
    def slow(self, megabits: int) -> Iterator[None]:
        """Have its network bring it so many megabits a second at most."""
        shape = ["tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "100ms"]
        _run("tc", "qdisc", "add", "dev", self._port, "root", *shape)
        try:
            yield
        finally:
            _run("tc", "qdisc", "delete", "dev", self._port, "root")

    def apart_from(self, other: "Host") -> contextlib.AbstractContextManager[None]:
        """Drop what comes from another host; the rest of the network comes in."""
        return self.dropping("input", where=f"ip saddr {other.address}")

    def deaf(self) -> contextlib.AbstractContextManager[None]:
        """Drop all that comes in; what it sends gets out."""
        return self.dropping("input")

    def mute(self) -> contextlib.AbstractContextManager[None]:
        """Drop all that it sends; what others send comes in."""
        return self.dropping("output")

    def lossy(self, percent: int) -> contextlib.AbstractContextManager[None]:
        """Drop so many of all packets, in and out, by chance."""
        return self.dropping("input", "output", where=f"numgen random mod 100 < {percent}")

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Have it and other hosts reach each other no more; this kernel's own network does."""
        return self.dropping("input", where=f"ip saddr != {self._lan.address(OUTSIDE)}")

    @contextlib.contextmanager
    def dropping(self, *hooks: str, where: str = "") -> Iterator[None]:
        """Drop packets of its interface at these hooks of its kernel, all or those of a match."""
        chains = [
            f"chain {hook} {{ type filter hook {hook} priority 0; "
            f"{'iifname' if hook == 'input' else 'oifname'} eth0 {where} drop; }};"
            for hook in hooks
        ]
        self._nft(f"table inet faults {{ {' '.join(chains)} }}")
        try:
            yield
        finally:
            self._nft("delete table inet faults")

    def _nft(self, commands: str) -> None:
        _run("ip", "netns", "exec", self._network, "nft", commands)

    @contextlib.contextmanager
    def link_down(self) -> Iterator[None]:
        """Take its interface down: its kernel knows that there is no network."""
        _run("ip", "-n", self._network, "link", "set", "eth0", "down")
        try:
            yield
        finally:
            _run("ip", "-n", self._network, "link", "set", "eth0", "up")


@contextlib.contextmanager
def lan() -> Iterator[Lan]:
    """A LAN without hosts yet."""
    with Lan() as it:
        yield it


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
