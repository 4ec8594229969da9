"""The exact frontier of a burst-parallel training, against HiGHS point by point.

    python bench/burst_planner.py --data DIR

DIR holds ``deeppool/A100_vgg.prof``. VGG-16 with 64 samples on up to 64 GPUs: CPU seconds of the
whole frontier, and of a mixed-integer programme for each of some of its points, from which the time
for all points follows. Their times must agree; ours must take at most a hundredth.
"""

import argparse
import sys
from itertools import product
from time import process_time

import numpy as np
from _data import add_data, is_there
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from rota.burst.planner.costs import Costs
from rota.burst.planner.search import unbeaten_plans
from rota.workload.layer_profiles import read_layer_profile

BATCH = GPUS = 64
POINTS = 8  # solved by HiGHS
REPEATS = 3
FACTOR = 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    if not is_there(data, "deeppool/A100_vgg.prof"):
        return 0
    costs = Costs(read_layer_profile(data / "deeppool" / "A100_vgg.prof"), BATCH, GPUS)
    ours_s = []
    for _ in range(REPEATS):
        begin = process_time()
        plans = unbeaten_plans(costs)
        ours_s.append(process_time() - begin)
    programme = Programme(costs)
    theirs_s, worst = 0.0, 0.0
    chosen = plans[:: max(1, len(plans) // POINTS)]
    for plan in chosen:
        begin = process_time()
        step_s = programme.fastest(plan.gpu_time_s * (1 + 1e-9))
        theirs_s += process_time() - begin
        worst = max(worst, abs(step_s / plan.step_s - 1.0))
    all_s = theirs_s / len(chosen) * len(plans)
    ratio = all_s / sorted(ours_s)[REPEATS // 2]
    print(f"points of the frontier                {len(plans):10}")
    print(f"ours, CPU s for all                   {sorted(ours_s)[REPEATS // 2]:10.3f}")
    print(f"HiGHS, CPU s for all (from {len(chosen)} points)  {all_s:10.1f}")
    print(f"largest difference of a step          {worst:10.1e}")
    ok = ratio >= FACTOR and worst < 1e-6
    print(f"HiGHS over ours                       {ratio:10.0f}  {'yes' if ok else 'NO'}")
    return 0 if ok else 1


class Programme:
    """A shortest path through (layer, size) with one limit on GPU-seconds."""

    def __init__(self, costs: Costs) -> None:
        layers, sizes = costs.graph.layers, costs.sizes
        nodes = [(i, g) for i in range(len(layers)) for g in sizes]
        arcs = [
            (i, a, g)
            for i, a, g in product(range(len(layers) - 1), sizes, sizes)
            if a == g or not layers[i + 1].keeps_size
        ]
        column = {key: at for at, key in enumerate([*nodes, *arcs])}
        self.seconds = np.zeros(len(column))
        self.gpu_seconds = np.zeros(len(column))
        for key, at in column.items():
            *_, size = key
            seconds = costs.alone_s(*key) if len(key) == 2 else costs.transfer_s(*key, False)
            self.seconds[at], self.gpu_seconds[at] = seconds, seconds * size
        into = {key: [] for key in nodes}
        out = {key: [] for key in nodes}
        for i, a, g in arcs:
            out[i, a].append(column[i, a, g])
            into[i + 1, g].append(column[i, a, g])
        rows = [([column[0, g] for g in sizes], None, 1.0)]
        rows += [(out[key], column[key], 0.0) for key in nodes if key[0] < len(layers) - 1]
        rows += [(into[key], column[key], 0.0) for key in nodes if key[0]]
        flow = lil_array((len(rows), len(column)))
        for at, (plus, minus, _) in enumerate(rows):
            flow[at, plus] = 1
            if minus is not None:
                flow[at, minus] = -1
        wanted = np.array([value for *_, value in rows])
        self.flow = LinearConstraint(flow.tocsr(), wanted, wanted)

    def fastest(self, limit_s: float) -> float:
        """Seconds of the fastest plan within so many GPU-seconds."""
        within = LinearConstraint(self.gpu_seconds[None, :] * 1e3, -np.inf, limit_s * 1e3)
        found = milp(
            self.seconds * 1e3,
            integrality=np.ones(self.seconds.size),
            bounds=Bounds(0, 1),
            constraints=[self.flow, within],
            options={"mip_rel_gap": 0.0},
        )
        return found.fun / 1e3


if __name__ == "__main__":
    sys.exit(main())
