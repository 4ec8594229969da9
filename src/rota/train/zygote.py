"""The process that workers are forked from: torch may be loaded here once, and is never run.

    python -m rota.train.zygote FD [--preload]     FD: a connected Unix socket to the node's agent

With ``--preload`` it loads torch at first, for programs that run in forks of it (see
:mod:`rota.train.warm`); all others are executed. For each rank that the agent asks for it forks a
*shim*, and answers with the shim's pid. The shim leads a session of its own, forks the worker,
appends what the worker prints to its log, waits for it, removes what it left behind, and writes how
it ended to disk. So a worker outlives both the zygote and the agent, and neither its output nor its
end is lost. To fork takes about 12 ms where a fresh interpreter with torch takes 1-2 s.

The zygote has one thread and runs no computation: a process forked after torch's autograd has run
can hang.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rota.errors import shortage_of
from rota.live.wire import clock, tags
from rota.live.wire.lease import Lease
from rota.live.wire.procfs import children_of
from rota.live.wire.title import title, title_role
from rota.train.fence import LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Fence
from rota.train.outlet import Outlet

SHORT_S = 5.0  # between tries to execute a program while the machine lacks what that takes


def main() -> None:
    """Serve the agent until it goes away; in a forked worker, run the job's program."""
    title_role("zygote")
    link = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims end by themselves and leave no zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.flags.safe_path:
        del sys.path[0]  # of `python -m`: this process's own folder, where no program is at home
    if "--preload" in sys.argv:
        from rota.train.warm import preload

        preload()
    tell(link, b"ready\n")
    buffer = b""
    while True:
        # No file object around the socket: it would keep the socket open in the workers.
        while b"\n" not in buffer:
            try:
                data = link.recv(65536)
            except OSError:  # the agent was killed before it had read all that it was told
                data = b""
            if not data:
                return
            buffer += data
        line, _, buffer = buffer.partition(b"\n")
        request = json.loads(line)
        try:
            pid = os.fork()
        except OSError as error:  # the user may have no more processes, or there is no memory
            told = {"error": shortage_of(error) or error.strerror}
            tell(link, json.dumps(told).encode() + b"\n")
            continue
        if pid == 0:
            link.close()
            try:
                is_worker = become_shim(request)
            except (OSError, RuntimeError) as error:
                refuse(request, shortage_of(error) or str(error))
            if is_worker:
                sys.exit(run_program(request))
            return
        tell(link, json.dumps({"pid": pid}).encode() + b"\n")


def tell(link: socket.socket, words: bytes) -> None:
    """Tell the agent something. If it is gone the zygote ends, as it does when it is told nothing
    more: the next agent has one of its own, and fences off what this one was asked for.
    """
    try:
        link.sendall(words)
    except OSError:
        sys.exit(0)


def become_shim(request: dict[str, Any]) -> bool:
    """Turn a fresh fork into the shim of one rank. True in the worker; the shim never returns."""
    title(request.get("title", "rota zygote"))
    os.setsid()
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if request["tag"] is not None:
        tags.set_tag(request["tag"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outlet = Outlet(request["log"])
    shim = os.getpid()
    started, start = os.pipe()
    worker = os.fork()
    if worker == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        outlet.connect()
        os.close(start)
        if not os.read(started, 1) or os.getppid() != shim:
            os._exit(1)  # the shim died before it could write down that this worker exists
        os.close(started)
        return True
    os.close(started)
    if request["tag"] is not None:
        tags.set_tag(request["tag"] | tags.GUARD)
    outlet.start()
    where = Path(request["folder"])
    name = request["name"]
    claimed = {"shim": shim, "worker": worker, "boottime_s": clock.boottime_s()}
    claimed["at_s"] = clock.now_s()
    try:
        goes_on = claim(where / f"{name}.pid", claimed)
    except OSError as error:  # a full disk
        why = shortage_of(error) or error.strerror
        with contextlib.suppress(OSError):
            os.write(2, f"rota: {name}.pid can't be written: {why}\n".encode())
        outlet.finish()
        refuse(request, f"{name}.pid can't be written: {why}")
    if not goes_on:
        outlet.finish()
        os._exit(1)  # the agent has given this rank up meanwhile, or will
    wait: Callable[[], tuple[int, int]] = partial(os.waitpid, -1, 0)
    if (lease := request["lease"]) is not None:
        fence = Fence(Lease(Path(lease)), held=where / f"{name}.held")
        fence.look()  # the worker does nothing while the lease is over
        wait = fence.wait
    os.write(start, b"g")
    os.close(start)
    watch(worker, where / f"{name}.exit", wait, outlet)


def refuse(request: dict[str, Any], why: str) -> NoReturn:
    """Tell the agent, by a file, why a shim can't do its work, and end; its worker never began."""
    with contextlib.suppress(OSError):
        (Path(request["folder"]) / f"{request['name']}.refused").write_text(why)
    os._exit(1)


def watch(
    worker: int, report: Path, wait: Callable[[], tuple[int, int]], outlet: Outlet
) -> NoReturn:
    """Wait for the worker, kill what it left behind, write down how it ended, and exit.

    What it left behind is waited for if the agent has asked it to end: its grace counts for them
    too, and the agent kills what is there after that. A shell dies of the SIGTERM before a program
    that it has started: the end of that program counts then. What this process may not kill,
    because it runs as another user, is named in the log and left alone.
    """
    ended_pid = 0
    while ended_pid != worker:  # its orphans come here, too: none is to stay as a zombie
        ended_pid, status = wait()
    ended: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status), "at_s": clock.now_s()}
    ended["boottime_s"] = clock.boottime_s()
    number = 0 if report.with_suffix(".grace").exists() else signal.SIGKILL
    dies_of_it = number == 0 and ended["code"] == -signal.SIGTERM
    programs, codes = set(children_of(os.getpid())) if dies_of_it else set(), list[int]()
    if number:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, number)
    # Orphans of the worker were handed to this process, whatever group they are in.
    while True:
        children = children_of(os.getpid())
        others = [child for child in children if not may_signal(child, number)]
        alone_with_others = bool(children) and len(others) == len(children)
        try:
            ended_pid, status = os.waitpid(-1, os.WNOHANG) if alone_with_others else wait()
        except ChildProcessError:
            break
        if alone_with_others and not ended_pid:
            ended["left"] = leave_behind(others)
            break
        if ended_pid in programs:
            codes.append(os.waitstatus_to_exitcode(status))
    ended["code"] = code_of(ended["code"], codes)
    outlet.finish()
    while report.parent.exists():
        try:
            outlet.flush()
            write_json(report, ended)
            break
        except OSError:  # a full disk: the job must not run again because of that
            time.sleep(1)
    os._exit(0)


def code_of(own: int, codes: list[int]) -> int:
    """The exit code of a worker with that of its ``own``, or of programs that have outlived it.

    It is that of the first one that did not end as it was asked to, by itself or by the SIGTERM.
    """
    odd = (code for code in codes if code not in (0, -signal.SIGTERM))
    if codes and not any(codes):
        return 0
    return next(odd, own)


def may_signal(pid: int, number: int) -> bool:
    """Send a signal; False if this process may not, because the other runs as another user."""
    try:
        os.kill(pid, number)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def leave_behind(pids: list[int]) -> str:
    """Leave processes of other users alone, but kill what they have started as this one.

    Returns which they are, in words, and says so in the log.
    """
    below = list(pids)
    for pid in below:
        below += children_of(pid)
        may_signal(pid, signal.SIGKILL)
    names = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            names.append(f"{pid} ({words.decode(errors='replace').strip()[:80]})")
    if not names:
        return ""
    which = ("processes " if len(names) > 1 else "process ") + ", ".join(names)
    left = f"{which} of another user can't be killed and may run on"
    print(f"rota: {left}", file=sys.stderr, flush=True)
    return left


def claim(path: Path, value: dict[str, Any]) -> bool:
    """Create a small file, whole. False if it is there already."""
    draft = path.with_suffix(path.suffix + ".mine")
    write_json(draft, value)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a small file so that it is there whole or not at all.

    The job may have put something in its place, or in that of its draft: a file is removed, a
    folder is put aside. Raises OSError.
    """
    draft = path.with_suffix(path.suffix + ".new")
    for place in (draft, path):
        if place.is_dir() and not place.is_symlink():
            place.rename(f"{place}.{time.time_ns()}.aside")
    draft.unlink(missing_ok=True)
    with open(draft, "x") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def run_program(request: dict[str, Any]) -> int:
    """Become the job's program, in the worker: its exit code if it was forked, or can't start.

    The interpreter of a forked program takes itself apart after that, as at every end of Python.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):  # those of the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    join(request["groups"])
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    os.environ.clear()
    os.environ.update(request["env"])
    try:
        os.chdir(request["workdir"])
    except OSError as error:
        sys.exit(f"rota: workdir {request['workdir']}: {error.strerror}")
    if request["argv"] is None:
        execute(["bash", "-c", request["run"]])
    os.environ["ROTA_WORKER"] = str(os.getpid())  # and not that of a process which it starts
    if not request["fork"]:
        execute(request["argv"])
    from rota.train.warm import run_python

    return run_python(request["argv"])


def join(groups: list[str]) -> None:
    """Join control groups, by the files that take this process's pid.

    The agent looks after groups, and holds the job in another way where one is gone.
    """
    for door in groups:
        try:
            Path(door).write_text(str(os.getpid()))
        except OSError as error:
            print(f"rota: {door}: {error.strerror}", file=sys.stderr)


def execute(argv: list[str]) -> NoReturn:
    """Become the program of these words. Raises SystemExit, as a shell does without a program.

    That is 127 if it is not there, and 126 if it can't be executed.
    """
    try:
        while True:
            try:
                os.execvp(argv[0], argv)  # noqa: S606
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENFILE):
                    raise
                print(f"rota: {shortage_of(error)}; it is tried again", file=sys.stderr, flush=True)
                time.sleep(SHORT_S)
    except FileNotFoundError:
        told = f"there is no {argv[0]} in PATH={os.environ.get('PATH', os.defpath)}"
        if argv[0] == "bash":
            told += (
                " to run the command; install bash, or submit `python SCRIPT ...` without shell "
                "syntax, which needs none"
            )
        print(f"rota: {told}", file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(f"rota: {argv[0]} can't be executed: {error.strerror}", file=sys.stderr)
        sys.exit(126)


if __name__ == "__main__":
    main()
