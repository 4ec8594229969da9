"""A program that tells what it draws and what it finds, plainly and however Rota starts it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from differential.ways import GIVEN, default_signals

# Called with a folder, in which it leaves a file open with all that it tells.
PROGRAM = """
import json, os, random, resource, secrets, signal, sys, uuid
import multiprocessing, numpy, torch
draws = [
    random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(),
    numpy.random.default_rng().random(), str(uuid.uuid4()), secrets.token_hex(),
    bytes(multiprocessing.current_process().authkey).hex(),
]
random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
limits = [name for name in dir(resource) if name[:7] == "RLIMIT_" and name != "RLIMIT_RTTIME"]
facts = {
    "seeded": [random.random(), numpy.random.rand(), torch.rand(1).item()],
    "path": sys.path, "argv": sys.argv[:1], "flags": list(sys.flags), "file": __file__,
    "executable": sys.executable,
    "main": sys.modules["__main__"].__dict__ is globals(), "folder": os.getcwd(),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
    "umask": os.umask(0), "descriptors": sorted(os.listdir("/proc/self/fd")),
    "streams": [(s.name, s.mode, s.encoding, s.write_through) for s in (sys.stdout, sys.stderr)],
    "input": sys.stdin.read(), "threads": torch.get_num_threads(),
}
kept = open(os.path.join(sys.argv[1], str(os.getpid())), "w")  # it is left open
json.dump([draws, facts], kept)
if "--fails-once" in sys.argv and os.environ["ROTA_ATTEMPT"] == "1":
    sys.exit(7)
"""


def put(base: Path) -> Path:
    """Put the program there as ``facts.py``; the folder that it is to be called with."""
    (base / "facts.py").write_text(PROGRAM)
    folder = base / "told"
    folder.mkdir()
    return folder


def told(folder: Path) -> list[Any]:
    """The draws and the facts of all processes that wrote into the folder."""
    return [json.loads(path.read_text()) for path in folder.iterdir()]


def told_plainly(base: Path, environment: Mapping[str, str], python: str = sys.executable) -> Any:
    """What the program tells that was put there, if a shell starts it."""
    folder = base / "plain"
    folder.mkdir()
    subprocess.run(
        [python, "facts.py", str(folder)],
        cwd=base,
        env=environment | {name: GIVEN[name] for name in ("PYTHONUNBUFFERED", "OMP_NUM_THREADS")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        preexec_fn=default_signals,
    )
    [only] = told(folder)
    return only


def assert_alike(found: Sequence[Any]) -> None:
    """Each process has found what the first one has, and has drawn for itself."""
    for name, value in found[0][1].items():
        assert [facts[name] for _, facts in found] == [value] * len(found), name
    for draws in zip(*(draws for draws, _ in found), strict=True):
        assert len(set(draws)) == len(found), draws
