"""Average completion times on Pollux' workloads, beside those of the published simulator.

    python bench/pollux_golden.py --data DIR

``DIR`` names a folder with ``pollux/workloads/workload-1.csv`` to ``-4.csv`` and
``pollux/profiles``. Each workload is 160 jobs on 16 nodes of 4 GPUs, with the GPUs and the batch
that their users tuned; decisions every 60 s, and 30 s for each restart. The published averages are
those of AdaptDL's branch osdi21-artifact (Tiresias, and Optimus with an oracle). Ours must be
within 1 % of them. What differs: an epoch lasts as long as it lasts, where the published simulator
rounds to whole seconds; a restart is no attained service; a preempted job goes back to its GPUs if
they are free; GPUs are a ring in the order of the nodes.
"""

import argparse
import time
from typing import Any

from _data import add_data, is_there

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import restarts
from rota.sim.measured import MeasuredSpeeds, played
from rota.sim.simulation import simulate
from rota.workload.measured_files import read_profiles
from rota.workload.readers import read_trace

INTERVAL_S, RESTART_S, LIMIT = 60.0, 30.0, 0.01
PUBLISHED = {
    "tiresias": (2473.65, 5144.9625, 3876.25625, 3280.2625),
    "optimus-oracle": (4087.0625, 6913.875, 3944.00625, 5967.75),
}
SETTINGS = {
    "tiresias": {
        "thresholds": "57600",
        "promote_knob": "0",
        "within": "fifo",
        "placement": "emptiest",
    },
    "optimus-oracle": {"remaining": "whole-epochs"},
}


def main() -> int:
    """Print a line for each workload and policy; 1 if any average is further off than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    workloads = [f"pollux/workloads/workload-{number}.csv" for number in (1, 2, 3, 4)]
    if not is_there(data, "pollux/profiles", *workloads):
        return 0
    row("policy", "workload", "published", "ours", "ratio", "CPU s")
    worst = 0.0
    for name, published in PUBLISHED.items():
        for number, (workload, there_s) in enumerate(zip(workloads, published, strict=True), 1):
            began_s = time.process_time()
            ours_s = average_jct_s(data / "pollux" / "profiles", data / workload, name)
            cpu_s, ratio = time.process_time() - began_s, ours_s / there_s
            worst = max(worst, abs(ratio - 1))
            row(name, number, f"{there_s:.2f}", f"{ours_s:.2f}", f"{ratio:.4f}", f"{cpu_s:.2f}")
    print(f"furthest off: {worst:.2%} (limit {LIMIT:.0%})")
    return int(worst > LIMIT)


def average_jct_s(profiles: Any, workload: Any, policy: str) -> float:
    """The mean completion time of a workload under a policy with the published settings."""
    trace = read_trace(workload)
    measured = read_profiles(profiles, {spec.model for spec in trace})
    state, _ = simulate(
        played(trace, measured),
        parse_cluster("16x4"),
        create(policy, SETTINGS[policy]),
        restarts(RESTART_S),
        speeds=MeasuredSpeeds(measured),
        interval_s=INTERVAL_S,
    )
    times = [end - begin for end, begin in zip(state.finish_s, state.submit_s, strict=True)]
    return sum(times) / len(times)


def row(*cells: Any) -> None:
    widths = (14, 9, 10, 10, 7, 6)
    print("  ".join(str(cell).ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip())


if __name__ == "__main__":
    raise SystemExit(main())
