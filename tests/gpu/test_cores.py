"""The curve by CPU cores of a real training on a real NVIDIA GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.live.agent.devices import count_gpus
from rota.predict.core_points import CorePoint
from rota.predict.cpu_demand import fit

SCRIPT = Path(__file__).with_name("resnet_on_cores.py")
CORES = len(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_gpus() == 0, reason="there is no NVIDIA GPU on this machine"),
    pytest.mark.skipif(CORES < 8, reason="a curve by cores needs eight of them"),
]


def step_s(cores):
    command = [sys.executable, str(SCRIPT), str(cores)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_resnets_step_at_a_fourth_number_of_cores_is_predicted_from_three_others():
    most = min(8, CORES)
    measured = {cores: step_s(cores) for cores in (1, 2, most // 2, most)}
    found, _ = fit(CorePoint(cores, measured[cores]) for cores in (1, 2, most))
    assert found is not None
    print({cores: (found.demand.step_s(cores), told) for cores, told in measured.items()})
    assert measured[1] > measured[most], "its data is what it waits for on one core"
    assert found.demand.step_s(most // 2) == pytest.approx(measured[most // 2], rel=0.35)
