"""Ranks, tasks, trials and retries run as a plain call of Python does, and draw for themselves."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from differential.ways import default_signals
from rota.model.job import FRESH, WARM

from .conftest import until, with_stops

FACTS = """
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


def told(folder: Path) -> list[Any]:
    """The draws and the facts of all processes that wrote into the folder."""
    return [json.loads(path.read_text()) for path in folder.iterdir()]


def hand_in(cluster: Any, *words: str) -> None:
    """Call ``rota`` in the cluster's base folder."""
    command = [sys.executable, "-m", "rota.cli.main", *words]
    environment = os.environ | {"ROTA_HOME": str(cluster.folder.path)}
    subprocess.run(command, cwd=cluster.base, env=environment, check=True, capture_output=True)


@pytest.mark.live_path("programs")
@pytest.mark.parametrize("start", [FRESH, WARM])
def test_ranks_tasks_trials_and_retries_draw_for_themselves_and_are_as_a_plain_run(cluster, start):
    pytest.importorskip("torch")
    out = cluster.base / "told"
    out.mkdir()
    (cluster.base / "facts.py").write_text(FACTS)
    run: Sequence[str] = ("python", "facts.py", str(out))
    jobs = [
        cluster.submit(" ".join(run), gpus=2, start=start),
        cluster.submit(" ".join(run), start=start),
        cluster.submit(
            " ".join((*run, "--fails-once")), start=start, retries={"max": 1, "backoff": 0.1}
        ),
    ]
    hand_in(cluster, "run", "--array", "0-1", "--start", start, "--wait", "--", *run)
    shown = [cluster.ends(job) for job in jobs]
    assert {job["started"] for job in shown} == {"forked" if start == WARM else "fresh"}
    assert [job["attempt"] for job in shown] == [1, 1, 2]

    plain = cluster.base / "plain"
    plain.mkdir()
    environment = os.environ | with_stops() | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "facts.py", str(plain)],
        cwd=cluster.base,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        preexec_fn=default_signals,
    )
    until(lambda: len(told(out)) == 7, "each of seven processes has told")
    found = told(plain) + told(out)
    for name, value in found[0][1].items():
        assert [facts[name] for _, facts in found] == [value] * len(found), name
    for draws in zip(*(draws for draws, _ in found), strict=True):
        assert len(set(draws)) == len(found), draws
