"""This machine as a cluster: each node's agent is a child process, restarted when it dies.

Several nodes on one machine are for development and tests: each has a part of the GPUs, or slots
on cores that it may share with the others, and an agent, a zygote and a folder of its own. Some of
them may be left out until they are asked for.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError, shortage_of
from rota.folder import MEMBERSHIP, Folder, is_locked
from rota.live.logline import TEXT
from rota.live.provider.base import AwaitedNode, ProvidedNode, Provider

WATCH_EVERY_S = 0.5
END_POLL_S = 0.02
END_TIMEOUT_S = 60.0  # for all jobs to be asked to end, killed, and gone
RESTART_PAUSE_S = 0.2  # keeps an agent that can't start from using a core; it doubles
MOST_PAUSE_S = 10.0
LAST_WORDS_BYTES = 4096
SETTINGS = "node.json"  # in a node's folder: the settings of its agent's last start

log = logging.getLogger("rota.provider")


class LocalNode(NamedTuple):
    """A part of this machine: ``gpus`` (None: all) of its GPUs or slots, from ``first_gpu`` on."""

    name: str
    gpus: int | None = None
    first_gpu: int = 0
    gpu_type: str = ""

    @property
    def offers(self) -> str:
        """The node's GPUs as text, such as ``2 GPUs of type t4``."""
        if self.gpus is None:
            count = "all its GPUs, or a slot per core"
        else:
            count = f"{self.gpus} GPU{'s'[: self.gpus != 1]}"
        return count + (f" of type {self.gpu_type}" if self.gpu_type else "")


def machine_name(folder: Folder) -> str:
    """The name after which this machine's nodes are called: its own, or that of before.

    A machine that was given another name keeps the one of before while nodes may have jobs: a node
    of the new name would offer the same GPUs once more.
    """
    name, before = _as_name(socket.gethostname()), ""
    with contextlib.suppress(OSError, ValueError):
        before = _as_name(folder.machine_name.read_text())
    if before in ("", name):
        return name
    is_in_use = any(_in_use(folder, node.name) for node in former_nodes(folder))
    return before if is_in_use else name


def _as_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "-" for c in text)


def keep_machine_name(folder: Folder, name: str) -> None:
    """Write down the name after which nodes are called; a full disk is no error."""
    with contextlib.suppress(OSError):
        draft = folder.machine_name.with_name(f"{folder.machine_name.name}.new")
        draft.write_text(name)
        draft.replace(folder.machine_name)


def lay_out(
    host: str,
    count: int,
    gpus: int | None,
    gpu_types: Sequence[str],
    machine_gpus: int,
    cores: int,
) -> list[LocalNode]:
    """``count`` nodes of ``gpus`` GPUs each, named after the machine, which is called ``host``.

    ``machine_gpus`` are the GPUs that it has; if none, slots on its ``cores`` stand for them.
    ``gpu_types`` are none, one for all nodes, or one for each. Raises InputError.
    """
    if len(gpu_types) not in (0, 1, count):
        raise InputError(
            f"--gpu-types: {','.join(gpu_types)} names {len(gpu_types)} types for {count} "
            f"node{'s'[: count != 1]}; give one, or one for each node"
        )
    types = list(gpu_types) * (count if len(gpu_types) == 1 else 1) or [""] * count
    if count == 1:
        return [LocalNode(host, gpus, 0, types[0])]
    each = gpus if gpus is not None else max(1, (machine_gpus or cores) // count)
    if machine_gpus and count * each > machine_gpus:
        raise InputError(
            f"--nodes: {count} nodes of {each} GPUs need {count * each}, and this machine has "
            f"{machine_gpus}; ask for fewer nodes or --gpus"
        )
    return [LocalNode(f"{host}-{i}", each, i * each, types[i]) for i in range(count)]


class LocalProvider(Provider):
    """Keeps one agent alive for each node, and leaves alone those that already are.

    ``host_memory_bytes`` is what suspended jobs may hold of each node's memory (None: its default),
    ``open_files`` how many files each process of a job may open (None: as many as this process),
    ``log_limit_bytes`` what the logs of a job may hold (None: the default of agents),
    ``log_format`` one of :data:`rota.live.logline.FORMATS`, for agents that it starts.
    A node of former times that may still have jobs is taken over with the devices that it had,
    whether or not it is asked for: ``taken_over`` names these. With ``least`` it begins with so
    many of the nodes, and adds others as they are requested.
    """

    def __init__(
        self,
        folder: Folder,
        nodes: Sequence[LocalNode],
        host_memory_bytes: int | None = None,
        open_files: int | None = None,
        log_limit_bytes: int | None = None,
        log_format: str = TEXT,
        *,
        least: int | None = None,
    ) -> None:
        self._folder = folder
        self.taken_over = [node for node in former_nodes(folder) if _in_use(folder, node.name)]
        kept = {node.name: node for node in self.taken_over}
        self.asked_for = list(nodes)
        self.layout = {node.name: node for node in nodes} | kept
        self.bounds = None if least is None else (least, len(nodes))
        limits = {
            "--host-memory": host_memory_bytes,
            "--open-files": open_files,
            "--log-limit": log_limit_bytes,
            "--log-format": log_format,
        }
        options = [f"{name}={limit}" for name, limit in limits.items() if limit is not None]
        # The nodes share the machine's cores and memory evenly.
        parts = [f"--part={i}/{len(self.layout)}" for i in range(1, len(self.layout) + 1)]
        self._agents = {
            node.name: _WatchedAgent(folder, node, [*options, part])
            for node, part in zip(self.layout.values(), parts, strict=True)
        }
        self._there = set(self.layout) if least is None else set(kept)
        for node in nodes[: least or 0]:
            self._there.add(node.name)
        self._starting = self._there - kept.keys()  # nobody has seen their agents alive yet
        self._leaving: dict[str, asyncio.Task[None]] = {}  # given up, until their agents have ended

    def nodes(self) -> Collection[ProvidedNode]:
        """The nodes that it looks after: what is on this machine need not leave it by some time."""
        nodes = [
            ProvidedNode(name, _is_alive(self._folder, name))
            for name in self.layout
            if name in self._there or name in self._leaving
        ]
        self._starting -= {node.name for node in nodes if node.is_alive}
        return nodes

    def scale(self, desired: int) -> None:
        """Start the agents of so many nodes in all, the first ones that are not there."""
        least, most = self.bounds or (len(self._there), len(self._there))
        count = min(max(desired, least), most)
        for name in [name for name in self.layout if name not in self._there | set(self._leaving)]:
            if len(self._there) < count:
                self._there.add(name)
                self._starting.add(name)
                self._agents[name].start()
        for awaited in reversed(self.awaited()):
            if len(self._there) > count:
                self.release(awaited.name)

    def release(self, name: str) -> None:
        """Watch a node's agent until it has ended, and no longer."""
        if name in self._there:
            self._there.remove(name)
            self._starting.discard(name)
            ending = asyncio.create_task(self._agents[name].give_up())
            self._leaving[name] = ending
            ending.add_done_callback(lambda _: self._leaving.pop(name, None))

    def awaited(self) -> Sequence[AwaitedNode]:
        """The nodes whose agents are starting."""
        self.nodes()  # an agent may live by now
        return [
            AwaitedNode(name, self._agents[name].why_awaited)
            for name in self.layout
            if name in self._starting
        ]

    def errors(self) -> Sequence[str]:
        """The reasons why agents can't continue, each once."""
        return [error for agent in self._agents.values() for error in agent.take_errors()]

    async def start(self) -> None:
        """Begin to watch over the agents."""
        for node in former_nodes(self._folder):
            if node.name not in self.layout:  # its agent may have been killed
                with contextlib.suppress(InputError):  # then there is none
                    self._folder.outside_socket(node.name).unlink(missing_ok=True)
                self._folder.socket(node.name).unlink(missing_ok=True)
                shutil.rmtree(self._folder.arenas(node.name), ignore_errors=True)
        for name in sorted(self._there):
            self._agents[name].start()

    async def stop(self) -> None:
        """Stop watching. An agent ends by itself when it has nothing left to do."""
        await asyncio.gather(*(agent.stop() for agent in self._agents.values()))

    async def end(self) -> None:
        """Return when no agent is left, and no attempt that has not been seen to its end."""
        await asyncio.gather(*(agent.end() for agent in self._agents.values()))

    async def wait_for_end(self, *, connected: Collection[str]) -> None:
        """Wait until all agents are gone; those that never connected are killed."""
        await asyncio.gather(
            *(
                agent.wait_for_end(connected=name in connected)
                for name, agent in self._agents.items()
            )
        )

    def differences(self) -> list[str]:
        """A sentence for each adopted node that differs from the node now asked for."""
        wanted = {node.name: node for node in self.asked_for}
        lines = []
        for node in self.taken_over:
            now = wanted.get(node.name)
            if now is None:
                lines.append(f"node {node.name} ({node.offers}) stays beside those asked for")
            elif now != node:
                lines.append(f"node {node.name} stays as it was, with {node.offers}")
        return lines


class _WatchedAgent:
    """One node's agent, which gets these ``options`` besides those that identify it."""

    def __init__(self, folder: Folder, node: LocalNode, options: list[str]) -> None:
        self.node = node
        self._folder = folder
        self._options = options
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_unwanted = False  # to be killed as soon as it is there
        self._ends = False  # to be watched until it has nothing left to do
        self._told: set[str] = set()  # what agents that could not go on have said last
        self._errors: list[str] = []  # of these, what nobody has heard yet
        self.why_awaited = "its agent is starting"
        self._pause_s = RESTART_PAUSE_S

    def start(self) -> None:
        self._ends = self._is_unwanted = False
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> None:
        self._ends = True
        if self._task is not None:
            await self._task

    async def give_up(self) -> None:
        """Like :meth:`end`; an agent that is not there yet has not been told to end."""
        self._is_unwanted = not _in_use(self._folder, self.node.name)
        if self._process is not None and self._is_unwanted:
            self._process.kill()
        await self.end()

    async def wait_for_end(self, *, connected: bool) -> None:
        await self.stop()
        if self._process is not None:
            if not connected:
                self._process.kill()
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:  # a process that even SIGKILL does not end, for example
                log.error("%s's agent did not end in %s s", self.node.name, END_TIMEOUT_S)
                self._process.kill()
            return
        deadline = asyncio.get_running_loop().time() + END_TIMEOUT_S
        while connected and self._is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(END_POLL_S)

    async def _watch(self) -> None:
        while not (self._ends and not _in_use(self._folder, self.node.name)):
            if not self._is_alive():
                try:
                    await self._spawn()
                except (OSError, RuntimeError) as error:  # a full disk, or no process is left
                    self._tell_no_start(shortage_of(error) or str(error))
            if self._process is not None:
                if self._is_unwanted:
                    self._process.kill()
                began_s = time.monotonic()
                status = await self._process.wait()
                self._process = None
                if status or not self._ends:
                    self._tell_end(status)
                    failed_soon = status > 0 and time.monotonic() < began_s + MOST_PAUSE_S
                    self._pause_s *= 2
                    if not failed_soon:
                        self._pause_s = RESTART_PAUSE_S
                    await asyncio.sleep(min(self._pause_s, MOST_PAUSE_S))
            else:  # the agent could not be started, or a former controller started it
                await asyncio.sleep(END_POLL_S if self._ends else WATCH_EVERY_S)

    def _tell_no_start(self, why: str) -> None:
        """Log why no agent can be started, and show it, once, to whoever started the cluster."""
        words = f"its agent can't be started: {why}"
        if words != self.why_awaited:
            self.why_awaited = words
            self._errors.append(f"node {self.node.name}: {words}; it is tried again")

    def _tell_end(self, status: int | None) -> None:
        """Log an agent's end; if it can't continue, show it to whoever started the cluster."""
        words = last_words(self._folder.node(self.node.name) / "agent.log") if status else ""
        if not status or status < 0:  # killed by a signal
            log.warning("%s's agent ended with status %s", self.node.name, status)
        elif words in self._told:
            log.warning("%s's agent ended with status %s: %s", self.node.name, status, words)
        else:
            self._told.add(words)
            self.why_awaited = f"its agent ended, and is started again: {words}"
            self._errors.append(f"node {self.node.name}: {self.why_awaited}")

    def take_errors(self) -> list[str]:
        """Whatever has gone wrong since this was asked last."""
        errors, self._errors = self._errors, []
        return errors

    def _is_alive(self) -> bool:
        return _is_alive(self._folder, self.node.name)

    async def _spawn(self) -> None:
        node, folder = self.node, self._folder.node(self.node.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _settings_of(folder) != node:  # a full disk must not keep the agent from coming back
            draft = folder / f"{SETTINGS}.new"
            draft.write_text(json.dumps(node._asdict()))
            draft.replace(folder / SETTINGS)
        command = [sys.executable, "-P", "-m", "rota.live.agent", *self._options]
        command += ["--home", str(self._folder.path), "--node", node.name]
        command += ["--controller-pid", str(os.getpid())]
        command += ["--first-gpu", str(node.first_gpu), "--gpu-type", node.gpu_type]
        if node.gpus is not None:
            command += ["--gpus", str(node.gpus)]
        with open(folder / "agent.log", "ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for the controller
            )


def last_words(log_file: Path) -> str:
    """The last line of a log; "" if there is none."""
    try:
        with open(log_file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def former_nodes(folder: Folder) -> list[LocalNode]:
    """The nodes of this machine that the state folder has had, as they were last started, by name.

    A machine that has joined a cluster may have its own folder there, and is none of these.
    A node without a readable record of that counts as one with all GPUs, so that an agent manages
    its processes, whatever devices they had.
    """
    folders = sorted(
        path for path in folder.path.glob("nodes/*") if not (path / MEMBERSHIP).exists()
    )
    return [_settings_of(path) or LocalNode(path.name) for path in folders]


def _settings_of(folder: Path) -> LocalNode | None:
    """The settings with which a node's agent was last started; None if they can't be read."""
    try:
        return LocalNode(**json.loads((folder / SETTINGS).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _is_alive(folder: Folder, name: str) -> bool:
    path = folder.node(name) / "agent.lock"
    try:
        return path.exists() and is_locked(path)
    except OSError:  # no descriptor is left: another agent must not be started for that
        return True


def _in_use(folder: Folder, name: str) -> bool:
    """True if its agent lives, or if it has attempts whose end has not been seen."""
    jobs = folder.node(name) / "jobs"
    unfinished = chain(jobs.glob("*/*/attempt.json"), jobs.glob("*/*/arrival.json"))
    try:
        return _is_alive(folder, name) or next(unfinished, None) is not None
    except OSError:
        return True
