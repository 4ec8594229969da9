"""The worked example of Tiresias (NSDI 2019, section 3.2): average completion 9.3, 10 and 11.7.

Three jobs for two GPUs, all there at time 0: J1 has 2 GPUs for 2 units of time, J2 1 GPU for 8, J3
2 GPUs for 6. SRSF knows the durations; 2D-Gittins knows that GPU-times are 4, 8 or 12, and has a
service quantum of 4; 2D-LAS knows nothing and takes turns each unit. Beside the averages stands
when each job completes, worked out by hand from the paper's rules.
"""

from math import fsum
from typing import Any

from rota.experiment.base import Figure, Outcome, information
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.trace import Trace

NAME = "tiresias-example"
SEEDS: list[int] = []  # nothing here is drawn by chance
CLUSTER = "1x2"
JOBS = (("1", 2, 2.0), ("2", 1, 8.0), ("3", 2, 6.0))  # name, GPUs, duration
# Who, with which settings -> the published average, and when J1, J2 and J3 complete.
POLICIES: dict[str, tuple[str, dict[str, str], float, tuple[float, ...]]] = {
    "SRSF": ("srsf", {}, 9.3, (2.0, 10.0, 16.0)),
    "2D-Gittins": (
        "tiresias-gittins",
        {"distribution": "4,8,12", "thresholds": "4", "promote_knob": "0"},
        10.0,
        (2.0, 12.0, 16.0),
    ),
    "2D-LAS": ("las", {"quantum_s": "1"}, 11.7, (5.0, 14.0, 16.0)),
}
PUBLISHED_ROUNDING = 0.05  # published to one decimal
TOLERANCE = 1e-9


def run() -> Outcome:
    """Run the example in the simulator."""
    fifo = completions("fifo", {})
    figures = []
    for label, (policy, settings, published, expected) in POLICIES.items():
        found = completions(policy, settings)
        average = fsum(found) / len(found)
        low, high = published - PUBLISHED_ROUNDING, published + PUBLISHED_ROUNDING
        beside = fsum(fifo) / len(fifo)
        figures.append(
            Figure(f"{label}, average completion", "units", published, beside, average, low, high)
        )
        for (name, _, _), at, due in zip(JOBS, found, expected, strict=True):
            low, high = due - TOLERANCE, due + TOLERANCE
            figures.append(
                Figure(f"{label}, J{name} completes", "units", None, None, at, low, high)
            )
    return Outcome(NAME, SEEDS, _settings(), figures)


def completions(policy: str, settings: dict[str, str]) -> list[float]:
    """Completion time of each job of the example."""
    trace = Trace([JobSpec(name, gpus, 0.0, lasts) for name, gpus, lasts in JOBS], NAME)
    state, _ = simulate(trace, parse_cluster(CLUSTER), create(policy, settings), FREE)
    return list(state.finish_s)


def _settings() -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "jobs": [{"job": f"J{name}", "gpus": gpus, "lasts": lasts} for name, gpus, lasts in JOBS],
        "policies": {label: [name, each] for label, (name, each, _, _) in POLICIES.items()},
        "baseline": "fifo",
        "information": information(*(name for name, *_ in POLICIES.values()), "fifo"),
        "costs": "none",
    }
