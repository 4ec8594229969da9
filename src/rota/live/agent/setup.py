"""The program that runs a job's ``setup`` on a node, unless that was done there before.

``python -m rota.live.agent.setup FOLDER`` runs the command in the variable ROTA_SETUP in the folder
where it is itself. What has been done is marked in FOLDER by a file named after all that it depends
on: the command, the folder, the PATH, and the files of LOCKS that are there. The mark is made once
the command has succeeded, and a lock, which ends with its process, lets others wait meanwhile.
"""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

SETUP = "ROTA_SETUP"
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
    done = folder / name
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return 0
        code = subprocess.run(["bash", "-c", command], check=False).returncode
        if code == 0:
            done.touch()
            return 0
    code = code if code > 0 else 128 - code
    print(f"rota: setup failed with exit code {code}: {command}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run_once(os.environ[SETUP], Path(sys.argv[1])))
