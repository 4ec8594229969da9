"""One try to tell a command: a program that the cluster's owner has put into the state folder."""

import asyncio
import os
import signal
import stat
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

from rota.errors import InputError
from rota.folder import Folder
from rota.request.values import refuse
from rota.server.notify.outcome import Outcome

TIME_LIMIT_S = 60.0
KEPT_BYTES = 200  # of what it printed on stderr
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")


def checked(folder: Folder, name: str) -> Path:
    """The program of this name. Raises InputError unless only the cluster's owner can change it."""
    path = folder.commands / name
    if Path(name).name != name:
        refuse("command", name, f"give the name of a file in {folder.commands}")
    try:
        place, file = folder.commands.lstat(), path.lstat()
    except OSError as error:
        fix = f"put it there, with chmod 700: {error.strerror}"
        raise InputError(f"command: {path} can't be used; {fix}") from None
    if not stat.S_ISREG(file.st_mode) or not os.access(path, os.X_OK):
        raise InputError(f"command: {path} is no program; give a file with chmod 700")
    for who, status in ((folder.commands, place), (path, file)):
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise InputError(
                f"command: others can change {who}; have the controller's user own it, and use "
                "chmod go-w"
            )
    return path


async def tell(folder: Folder, name: str, body: str, time_limit_s: float = TIME_LIMIT_S) -> Outcome:
    """Run the command with ``body`` as its input. It was told if it ends with status 0.

    It runs as the controller's user, with few variables, and is killed after the time limit with
    all that it has started in its session.
    """
    try:
        path = checked(folder, name)
        process = await asyncio.create_subprocess_exec(
            str(path),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=PIPE,
            cwd=folder.commands,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            start_new_session=True,
        )
    except (InputError, OSError) as error:
        return Outcome(False, str(error))
    try:
        async with asyncio.timeout(time_limit_s):
            _, last = await asyncio.gather(_write(process, body), _last_bytes(process))
            status = await process.wait()
    except TimeoutError:
        return Outcome(False, f"it had not ended after {time_limit_s:g} s")
    finally:
        await _kill(process)
    words = " ".join(last.decode(errors="replace").split())
    return Outcome(status == 0, f"status {status}" + (f": {words}" if status and words else ""))


async def _write(process: Process, body: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(body.encode() + b"\n")
        await process.stdin.drain()
    process.stdin.close()


async def _last_bytes(process: Process) -> bytes:
    assert process.stderr is not None
    last = b""
    while piece := await process.stderr.read(4096):
        last = (last + piece)[-KEPT_BYTES:]
    return last


async def _kill(process: Process) -> None:
    """Kill what is left of its session, so that nothing is left of a try that was given up."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
