"""Containers of pods: processes with a PID namespace and a root of their own, as root starts them.

The root is this machine's file system, of which whatever is written stays in the container. The
network is this machine's. CPU and memory are not limited.
"""

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

TERMINATION_LOG = "/dev/termination-log"
MESSAGE_BYTES, MESSAGE_LINES = 2048, 80  # of what a kubelet takes from a log

# Where the Python that runs tests is, and what they import.
NEEDED = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])

# As PID 1 of the container, before it becomes the command.
ROOT = """\
set -e
mount -t tmpfs -o mode=755 pod {fs}
mkdir {fs}/root
cover() {{
  own={fs}/$2
  mkdir -p $own/upper $own/work
  mount -t overlay -o "lowerdir=$1,upperdir=$own/upper,workdir=$own/work" overlay "{fs}/root$1"
}}
cover / 0
cd {fs}/root
mount --rbind /dev dev
mount -t tmpfs -o mode=1777,size=64m shm dev/shm
mount --rbind /sys sys
mount -t proc proc proc
"""


@dataclasses.dataclass(frozen=True)
class Mount:
    """A path of the container, and the file or folder of this machine that is there."""

    source: Path
    path: str
    is_read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Command:
    """What a container runs, as whom, with what."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str = "/"
    user: int = 0
    group: int = 0
    other_groups: Sequence[int] = ()
    mounts: Sequence[Mount] = ()
    has_read_only_root: bool = False
    message_path: str = TERMINATION_LOG
    has_message_from_log: bool = False


class Container:
    """One run of a command; its output and its last message are files in ``folder``."""

    def __init__(self, folder: Path, command: Command) -> None:
        self.log, self._message = folder / "log", folder / "message"
        self._command = command
        root = folder / "fs"
        root.mkdir(parents=True)
        self._message.touch()
        self._message.chmod(0o666)
        begin = folder / "begin"
        begin.touch(0o600)
        begin.write_text(_script(root, command, self._message))
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", begin],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """As a kubelet tells it: 128 and more for a signal; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def processes(self) -> list[psutil.Process]:
        """All that run in it, its PID 1 first."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def send(self, number: signal.Signals) -> None:
        """Signal its PID 1; at SIGKILL, the kernel kills the others."""
        found = self.processes()[:1]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        if number == signal.SIGKILL and not found:  # it has none yet, or any more
            self._process.kill()

    def kill(self) -> None:
        """Returns when nothing of it runs."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def message(self) -> str:
        """The last words that its status tells."""
        words = self._message.read_bytes()[-4096:]
        if not words and self._command.has_message_from_log and self.exit_code():
            lines = self.log.read_bytes()[-MESSAGE_BYTES:].splitlines(keepends=True)
            words = b"".join(lines[-MESSAGE_LINES:])
        return words.decode(errors="replace")


def _script(fs: Path, command: Command, message: Path) -> str:
    quoted = shlex.quote(str(fs))
    lines = [ROOT.format(fs=quoted)]
    lines += [f"cover {shlex.quote(each)} {1 + n}" for n, each in enumerate(_disks())]
    lines += [f"chmod a+x {shlex.quote(f'.{each}')}" for each in _above()]
    for mount in (*command.mounts, Mount(message, command.message_path)):
        # As seen from within: /var/run may lead to /run.
        lines.append(f"path=.$(chroot . realpath -m -- {shlex.quote(mount.path)})")
        if mount.source.is_dir():
            lines.append('mkdir -p "$path"')
        else:
            lines.append('mkdir -p "${path%/*}"; [ -e "$path" ] || : >"$path"')
        lines.append(f'mount --bind {shlex.quote(str(mount.source))} "$path"')
        if mount.is_read_only:
            lines.append('mount -o remount,bind,ro "$path"')
    lines.append(f"chroot . mkdir -p -- {shlex.quote(command.folder)}")
    if command.has_read_only_root:
        lines.append(f"mount -o remount,bind,ro {quoted}/root")
    words = ["chroot", f"--userspec=+{command.user}:+{command.group}"]
    words.append(f"--groups={','.join(f'+{group}' for group in command.other_groups)}")
    words += [f"{fs}/root", "/usr/bin/env", "-i", f"--chdir={command.folder}"]
    words += [f"{key}={value}" for key, value in command.environment.items()]
    return "\n".join([*lines, f"exec {shlex.join([*words, *command.words])}", ""])


def _above() -> list[str]:
    """The folders through which other users get to what tests need."""
    return sorted({str(above) for path in NEEDED for above in path.resolve().parents})


def _disks() -> list[str]:
    """Where file systems are mounted that have what tests need, but for the root."""
    found = set()
    for path in NEEDED:
        above = [path.resolve(), *path.resolve().parents]
        found.add(str(next(each for each in above if os.path.ismount(each))))
    return sorted(found - {"/"})
