"""The end of a cluster on this machine by force: all that lives of it is killed, and noted as lost.

It asks nobody: not the controller, which may hang, nor the agents, which may be stopped. Who
belongs to the cluster is known by the state folder and by the processes themselves.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from rota.errors import InputError, ServerError, UnreachableError
from rota.folder import Folder, hold_lock
from rota.live.agent.cpu_groups import identity, kept
from rota.live.agent.output import give_back
from rota.live.agent.processes import descendants, rank_tag_of, started_at, tag_of
from rota.live.agent.rank import life_name, life_of
from rota.live.controller.record import Record
from rota.live.controller.recovery import SHUT_DOWN, attempt_lost
from rota.live.wire import tags
from rota.live.wire.clock import boot_id
from rota.server.kubernetes import cancel_pods
from rota.server.ray import cancel_nodes
from rota.server.slurm import cancel_pilots
from rota.store.events import EventStore

CONTROLLER_GRACE_S = 5.0  # from SIGTERM to SIGKILL: a controller leaves jobs alone in both cases
KILL_TIMEOUT_S = 10.0  # for killed processes to be gone
LOOK_AGAIN_S = 0.02
OF_CLUSTER = ("rota.live.agent", "rota.sweep")  # modules that are started with --home


class Living(NamedTuple):
    """A live process of a cluster; ``job_id`` is empty if it belongs to no job in particular."""

    pid: int
    name: str
    user: str
    job_id: str = ""

    def __str__(self) -> str:
        of_job = f" of job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} ({self.name}, of user {self.user}){of_job}"


class _Ranks(NamedTuple):
    """The job of each rank's tag, and of each session that a shim leads.

    ``node_keys`` are in the tags of the nodes' watchmen.
    """

    tags: dict[int | None, str]
    sessions: dict[int, str]
    node_keys: set[int | None]


def living(folder: Folder) -> dict[int, Living]:
    """Every live process of the cluster of this folder but its controller and this one, by pid.

    These are agents, their watchmen, and drivers of searches; processes with the tag or the
    variables of one of its jobs, in the session of one, or that print into its folder; and whatever
    these have started.
    """
    ranks = _ranks(folder)
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                job_id = _job_of(process, folder, ranks)
                if job_id is not None:
                    found[process.pid] = job_id
    for root in list(found):
        for pid in descendants(root):
            found[pid] = found.get(pid) or found[root]
    found.pop(os.getpid(), None)
    return {pid: each for pid, job_id in found.items() if (each := _described(pid, job_id))}


def kill_all(folder: Folder, timeout_s: float = KILL_TIMEOUT_S) -> list[Living]:
    """Kill all of :func:`living`; who lives on after ``timeout_s``, because it can't be killed.

    All are stopped before the first is killed, so that nobody starts another one meanwhile, or
    loses its parent, by which it is known.
    """
    deadline = time.monotonic() + timeout_s
    while left := living(folder):
        stopped: set[int] = set()
        while new := left.keys() - stopped:
            _send(new, signal.SIGSTOP)
            stopped |= new
            left |= living(folder)
        _send(stopped, signal.SIGKILL)
        if time.monotonic() > deadline:
            return list(living(folder).values())
        time.sleep(LOOK_AGAIN_S)
    return []


def end_by_force(folder: Folder, timeout_s: float = KILL_TIMEOUT_S) -> list[Living]:
    """Kill the controller, if there is one, and all of its cluster; who lives after ``timeout_s``.

    Jobs of which no process is left start anew with the next controller, as after any end of the
    cluster. Raises ServerError if the controller can't be found or the folder can't be written, and
    StoreError if the event log can't be used; the processes have been killed then.
    """
    if not folder.database.exists() and not folder.node("any").parent.is_dir():
        raise UnreachableError(f"no cluster has run on {folder.path}; --home names another folder")
    try:
        return _end_by_force(folder, timeout_s)
    except OSError as error:
        left = "; ".join(map(str, kill_all(folder, timeout_s)))
        but = f", but for {left}" if left else ""
        raise ServerError(
            f"{folder.path} can't be written: {error.strerror}; what lived of the cluster has been "
            f"killed{but}; make the folder writable, and `rota up` notes what became of its jobs"
        ) from None


def _end_by_force(folder: Folder, timeout_s: float) -> list[Living]:
    asked_s = time.monotonic()
    _signal_controller(folder, signal.SIGTERM)
    while (lock := hold_lock(folder.controller_lock)) is None:
        kill_all(folder, 0.0)
        waited_s = time.monotonic() - asked_s
        if waited_s > CONTROLLER_GRACE_S + KILL_TIMEOUT_S:
            raise ServerError(
                f"the controller of {folder.path} does not end, and can't be found to be killed; "
                "kill the process `rota up`, and try again"
            )
        if waited_s > CONTROLLER_GRACE_S:
            _signal_controller(folder, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)
    with lock:
        left = kill_all(folder, timeout_s)
        cancel_pilots(folder)
        cancel_nodes(folder)
        cancel_pods(folder)
        folder.server.unlink(missing_ok=True)
        folder.reserve.unlink(missing_ok=True)
        _write_off(folder, {each.job_id for each in left})
        if not left:
            _tidy(folder)
    return left


def _job_of(process: psutil.Process, folder: Folder, ranks: _Ranks) -> str | None:
    """Job of the process; "" for the cluster as a whole, None for a foreign process."""
    job_id = ranks.tags.get(rank_tag_of(process.pid)) or ranks.sessions.get(os.getsid(process.pid))
    if job_id is not None:
        return job_id
    tag = tags.tag_or_limit(process.pid)
    if tag is not None and tag & tags.WATCHMAN and tags.key_in(tag) in ranks.node_keys:
        return ""
    environment, words = process.environ(), process.cmdline()
    checkpoints = Path(environment.get("ROTA_CHECKPOINT_DIR", os.devnull))
    # Itself it may be a link to another place; a relative one is none that Rota has given.
    if checkpoints.is_absolute() and _is_home(folder, checkpoints.parent.parent):
        return environment.get("ROTA_JOB_ID", "")
    if any(module in words for module in OF_CLUSTER) and "--home" in words[:-1]:
        return "" if _is_home(folder, Path(words[words.index("--home") + 1])) else None
    log = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
    if len(log.parents) > 2 and _is_home(folder, log.parents[2]):  # nodes/NODE/zygote.log
        return ""
    of_rank = len(log.parents) > 5 and _is_home(folder, log.parents[5])
    return log.parts[-3] if of_rank else None  # nodes/NODE/jobs/ID/ATTEMPT/rank0.log


def _is_home(folder: Folder, path: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(folder.path)


def _ranks(folder: Folder) -> _Ranks:
    """Ranks of all attempts whose end has not been seen.

    A session is known by its shim also when that is dead: as long as one of the session lives, no
    other process gets its pid.
    """
    ranks = _Ranks({}, {}, set())
    for place in folder.path.glob("nodes/*"):
        with contextlib.suppress(OSError):
            ranks.node_keys.add(tags.node_key(place))
    for file in folder.path.glob("nodes/*/jobs/*/*/attempt.json"):
        job_id = file.parent.parent.name
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(file.read_text())
            lives, slots = record.get("lives", {}), range(record["slots"])
            names = {life_name(slot, life_of(lives, slot)) for slot in slots}
            runs_here = record.get("boot_id", boot_id()) == boot_id()  # after a reboot none does
            for pids in file.parent.glob("rank*.pid"):
                names.add(pids.stem)
                told = json.loads(pids.read_text())
                shim, claimed_s = told["shim"], told["boottime_s"]
                is_own = (started_at(shim) or 0.0) <= claimed_s + 1  # and not another's by now
                if shim and is_own and runs_here:
                    ranks.sessions[shim] = job_id
            ranks.tags.update({tag_of(record.get("secret"), name): job_id for name in names})
    ranks.tags.pop(None, None)
    return ranks


def _described(pid: int, job_id: str) -> Living | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Living(pid, process.name(), process.username(), job_id)
    except psutil.Error:
        return None


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _signal_controller(folder: Folder, number: signal.Signals) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pid = json.loads(folder.server.read_text())["pid"]
        open_files = [os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        if os.path.realpath(folder.controller_lock) in open_files:  # else the controller is gone
            os.kill(pid, number)


def _write_off(folder: Folder, left: set[str]) -> None:
    """Note that all attempts are lost but those of the jobs ``left``, which may run on."""
    if not folder.database.exists():
        return
    store = EventStore(folder.database)
    try:
        record = Record(store, folder)
        state, now_s = record.state, record.now_s()
        rows = [row for row in range(len(state.spec)) if state.has_processes(row)]
        lost = [row for row in rows if state.spec[row].job_id not in left]
        store.append([attempt_lost(state, row, now_s, SHUT_DOWN) for row in lost], durable=True)
    finally:
        store.close()
    for file in folder.path.glob("nodes/*/jobs/*/*/attempt.json"):
        if file.parent.parent.name not in left:
            for log in file.parent.glob("*.log"):
                with contextlib.suppress(OSError):
                    give_back(log)
            file.rename(file.with_name("ended.json"))
    for file in folder.path.glob("nodes/*/jobs/*/*/arrival.json"):
        shutil.rmtree(file.parent, ignore_errors=True)


def _tidy(folder: Folder) -> None:
    """Remove what agents remove when they end: sockets, states in host memory, control groups."""
    for node in folder.path.glob("nodes/*"):
        groups = kept(folder.cpu_groups(node.name), identity(folder, node.name))
        if groups is not None:
            groups.close()
        with contextlib.suppress(InputError, OSError):  # the files are elsewhere
            for socket in (folder.socket(node.name), folder.outside_socket(node.name)):
                socket.unlink(missing_ok=True)
            arenas = folder.arenas(node.name)
            shutil.rmtree(arenas, ignore_errors=True)
            shutil.rmtree(folder.island(node.name), ignore_errors=True)
    folder.leave()


def main() -> None:
    """Kill all of a cluster on this machine but its controller; the exit code is 1 if some live."""
    parser = argparse.ArgumentParser(description="Kill what a Rota cluster has on this machine.")
    parser.add_argument("--home", required=True)
    if left := kill_all(Folder(parser.parse_args().home)):
        sys.exit("; ".join(map(str, left)))


if __name__ == "__main__":
    main()
