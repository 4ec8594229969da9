"""The Gittins index against recomputed figures, and 2D-Gittins on a public load.

    python bench/gittins.py --data DIR

DIR holds ``tiresias/yarn-gput1000.csv``, the distribution of GPU-time that the public Tiresias
simulator reads, and ``tiresias/480_job_synth.csv``, 480 jobs for 15 nodes of 4 GPUs. Printed are
each figure, ours and whether they agree to four digits; then average JCT and preemptions of
2D-Gittins beside 2D-LAS and the public simulator's ``dlas-gpu-gittins``, whose index is over
another mean (sizes instead of what is left of them) and which demotes late.
"""

import argparse
import sys
from pathlib import Path

from _data import add_data, is_there

from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.policy.tiresias.distribution import read_sizes
from rota.predict.gittins import Gittins
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.readers import read_trace

# (attained, grant) -> index, two independent calculations. GPU-seconds.
YARN = {
    (0, 3250): 2.9716e-4,
    (1000, 3250): 2.3686e-4,
    (3250, 3250): 1.2216e-4,
    (7200, 3250): 4.9935e-5,
    (18000, 3250): 1.4467e-5,
    (0, 18000): 1.5003e-4,
    (3600, 18000): 5.2969e-5,
}
QUEUES = {"thresholds": "3250,7200", "promote_knob": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    if not is_there(data, "tiresias"):
        return 0
    folder = data / "tiresias"
    agree = True
    yarn = Gittins(read_sizes(folder / "yarn-gput1000.csv"))
    print(f"{'figure':44} {'golden':>12} {'ours':>12}  ok")
    for (attained, grant), golden in YARN.items():
        ours = yarn.index(attained, grant)
        agree &= show(f"yarn G({attained}), grant {grant}", golden, ours)
    compare(folder)
    return 0 if agree else 1


def show(name: str, golden: float, ours: float) -> bool:
    ok = f"{golden:.4e}" == f"{ours:.4e}"
    print(f"{name:44} {golden:12.4e} {ours:12.4e}  {'yes' if ok else 'NO'}")
    return ok


def compare(folder: Path) -> None:
    jobs = read_trace(folder / "480_job_synth.csv")
    own = ",".join(str(spec.duration_s * spec.num_gpus) for spec in jobs)
    gittins = {
        "the load's own sizes": own,
        "learned": "learned",
        "yarn-gput1000.csv": str(folder / "yarn-gput1000.csv"),
    }
    print(
        f"\n{'480 jobs on 15x4, thresholds 3250,7200':44} {'average JCT':>12} {'preemptions':>12}"
    )
    print(f"{'public simulator, dlas-gpu-gittins':44} {4119.552:12.3f} {1568:12}")
    print(f"{'public simulator, dlas-gpu':44} {4215.008:12.3f} {659:12}")
    runs = {"tiresias": create("tiresias", QUEUES)}
    for name, distribution in gittins.items():
        settings = QUEUES | {"distribution": distribution}
        runs[f"tiresias-gittins, {name}"] = create("tiresias-gittins", settings)
    for name, policy in runs.items():
        state = simulate(jobs, parse_cluster("15x4"), policy, FREE).state
        times = zip(state.finish_s, state.submit_s, strict=True)
        average = sum(finish - submit for finish, submit in times) / len(jobs)
        print(f"{name:44} {average:12.3f} {sum(state.preemptions):12}")


if __name__ == "__main__":
    sys.exit(main())
