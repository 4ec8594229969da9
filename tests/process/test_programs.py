"""Ranks, tasks, trials and retries run as a plain call of Python does, and draw for themselves."""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from typing import Any

import pytest

from differential import facts
from rota.model.job import FRESH, WARM

from .conftest import until, with_stops

SWEEP = {
    "metric": "loss",
    "goal": "minimize",
    "space": {"x": {"range": [0, 1]}},
    "algorithm": "manual",
}


def hand_in(cluster: Any, *words: str) -> None:
    """Call ``rota`` in the cluster's base folder."""
    command = [sys.executable, "-m", "rota.cli.main", *words]
    environment = os.environ | {"ROTA_HOME": str(cluster.folder.path)}
    subprocess.run(command, cwd=cluster.base, env=environment, check=True, capture_output=True)


@pytest.mark.live_path("programs")
@pytest.mark.parametrize("start", [FRESH, WARM])
def test_ranks_tasks_trials_and_retries_draw_for_themselves_and_are_as_a_plain_run(cluster, start):
    pytest.importorskip("torch")
    out = facts.put(cluster.base)
    run: Sequence[str] = ("python", "facts.py", str(out))
    jobs = [
        cluster.submit(" ".join(run), gpus=2, start=start),
        cluster.submit(" ".join(run), start=start),
        cluster.submit(
            " ".join((*run, "--fails-once")), start=start, retries={"max": 1, "backoff": 0.1}
        ),
    ]
    search = {"name": "s", "workdir": str(cluster.base), "start": start, "sweep": SWEEP}
    cluster.client.submit_sweep(search | {"run": " ".join((*run, "{x}"))})
    jobs.append(cluster.client.submit_trial("s", {"x": 0.5})["id"])
    hand_in(cluster, "run", "--array", "0-1", "--start", start, "--wait", "--", *run)
    shown = [cluster.ends(job) for job in jobs]
    assert {job["started"] for job in shown} == {"forked" if start == WARM else "fresh"}
    assert [job["attempt"] for job in shown] == [1, 1, 2, 1]
    until(lambda: len(facts.told(out)) == 8, "each of eight processes has told")
    plainly = facts.told_plainly(cluster.base, os.environ | with_stops())
    facts.assert_alike([plainly, *facts.told(out)])


@pytest.mark.parametrize("start", [FRESH, WARM])
def test_a_program_of_another_environment_is_as_a_plain_run(cluster, start):
    pytest.importorskip("torch")
    out = facts.put(cluster.base)
    venv.create(cluster.base / "venv", symlinks=True, with_pip=False)
    [packages] = cluster.base.glob("venv/lib/*/site-packages")
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "own.pth").write_text("\n".join(own))
    python = str(cluster.base / "venv" / "bin" / "python")
    job = cluster.submit(f"{python} facts.py {out}", start=start)
    assert cluster.ends(job)["started"].startswith("fresh")
    plainly = facts.told_plainly(cluster.base, os.environ | with_stops(), python)
    facts.assert_alike([plainly, *facts.told(out)])
