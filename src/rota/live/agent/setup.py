"""The program that runs a job's ``setup`` on a node, unless that was done there before.

``python -m rota.live.agent.setup FOLDER`` runs the command in the variable ROTA_SETUP in the folder
where it is itself. What has been done is marked in FOLDER by a file named after all that it depends
on: the command, the folder, the PATH, and the files of LOCKS that are there. The mark is made once
the command has succeeded, and a lock, which ends with its process, lets others wait meanwhile.

``python -m rota.live.agent.setup FOLDER WORKDIR`` does so for a job that runs in a snapshot, which
FOLDER is that of: the command runs in a copy of the snapshot's files, made anew after a failure,
and WORKDIR becomes a copy of what it has made of them. The command and the PATH alone count.
"""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rota.errors import AgentError
from rota.live.agent.workdir import TREE, empty, fill

SETUP = "ROTA_SETUP"
FAILED = "rota: setup failed with exit code"
LOCKS = (
    "requirements.txt",
    "uv.lock",
    "poetry.lock",
    "pyproject.toml",
    "setup.py",
    "environment.yml",
)


def after_setup(run: str, folder: Path) -> str:
    """A command that runs the setup in its environment first, with its marks in ``folder``."""
    first = shlex.join([sys.executable, "-I", "-m", __name__, str(folder)])
    return f"{first} || exit $?\n{run}"


def after_setup_of_snapshot(run: str, folder: Path, workdir: Path) -> str:
    """The same for a job that runs in a copy, ``workdir``, of the snapshot of ``folder``."""
    first = shlex.join([sys.executable, "-I", "-m", __name__, str(folder), str(workdir)])
    return f"{first} || exit $?\n{run}"


def digest(command: str, workdir: Path, path: str) -> str:
    """Digest that identifies a setup: of the command, and what it finds."""
    told = hashlib.sha256(repr((command, str(workdir.resolve()), path)).encode())
    for name in LOCKS:
        file = workdir / name
        if file.is_file():
            told.update(f"\0{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return told.hexdigest()[:32]


def run_once(command: str, folder: Path) -> int:
    """Run the command unless it was done; its exit code, 0 if it need not run."""
    folder.mkdir(parents=True, exist_ok=True)
    name = digest(command, Path.cwd(), os.environ.get("PATH", ""))
    with _locked(folder / f"{name}.lock"):
        return _once(folder / name, command, Path.cwd)


def run_once_in_snapshot(command: str, folder: Path, workdir: Path) -> int:
    """Run the command in a copy of the snapshot's files unless it was done; its exit code.

    If that is 0, ``workdir`` is a copy of what it has made of them. Raises AgentError, OSError.
    """
    path = os.environ.get("PATH", "")
    name = hashlib.sha256(repr((command, path)).encode()).hexdigest()[:32]
    done, made = folder / name, folder / f"{name}.tree"

    def make() -> Path:
        empty(made)
        fill(made, folder / TREE)
        return made

    with _locked(folder / f"{name}.lock"):
        if code := _once(done, command, make):
            return code
    with _locked(workdir.with_name(f"{workdir.name}.lock")):
        fill(workdir, made)
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _once(done: Path, command: str, place: Callable[[], Path]) -> int:
    """Run the command in a place, and mark that it has succeeded, unless that is marked."""
    if done.exists():
        return 0
    code = subprocess.run(["bash", "-c", command], cwd=place(), check=False).returncode
    if code == 0:
        done.touch()
        return 0
    code = code if code > 0 else 128 - code
    print(f"{FAILED} {code}: {command}", file=sys.stderr, flush=True)
    return code


def _main(folder: str, *workdir: str) -> int:
    command = os.environ[SETUP]
    if not workdir:
        return run_once(command, Path(folder))
    try:
        return run_once_in_snapshot(command, Path(folder), Path(*workdir))
    except (AgentError, OSError) as error:
        print(f"rota: the folder of the setup can't be made: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
