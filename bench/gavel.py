"""Fairness on Gavel's own trace against the figures that Gavel's simulator gives (OSDI 2020).

    python bench/gavel.py --data DIR

DIR holds ``gavel/max_min_fairness.trace`` (96 jobs) and ``gavel/simulation_throughputs.json.gz``
(measured rates), both of github.com/stanford-futuredata/gavel. The cluster is 8 V100, 16 P100 and
24 K80, one GPU a server; rounds last 360 s, nothing costs time. Printed is average JCT: published,
ours, their ratio, and whether it is within 3 %. Below stand comparisons that nothing hangs on.

Published are figures of that simulator at commit c4fa400, seed 0. As there, shares are found at
most every 1920 s and GPUs that fall idle wait for the next round. Differences that remain: rounds
here last 360 s sharp and not a whole number of steps; among shares that are equally fair it takes
what its interior-point solver ends at, and Rota those that hand out the least GPU time; without
knowledge of speeds it draws the order in which GPU types choose, and Rota lets them take turns.

Its FIFO is ruled by a slip, so `ReferenceFifo` repeats it: a job's GPU type is drawn at random
among those with room, but the last type of the list of free ones is taken, room or not, and the
type that was drawn is what leaves the list when the one taken is full. Most jobs end up queueing
for V100s while other GPUs idle. ``mended`` takes the type that was drawn.
"""

import argparse
import random
import sys
from collections.abc import Mapping
from time import process_time
from typing import Any

from _data import add_data, is_there

from rota.model.cluster import parse_cluster
from rota.model.view import View, WhatIf
from rota.policy.gavel.policy import FairRounds
from rota.policy.gavel.rounds import GpuTypes, Record
from rota.policy.gavel.shares import Gang, Shares
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.sim.speeds import CatalogSpeeds
from rota.workload.readers.gavel import read_gavel
from rota.workload.trace import Trace

CLUSTER = "8x1:v100,16x1:p100,24x1:k80"
GAVELS_WAY = {"round_s": "360", "solve_every_s": "1920", "fill_idle": "no"}
WITHIN = 0.03
SEED = 0


class ReferenceFifo(FairRounds):
    """Gavel's FIFO: each job, in order of arrival, gets all of its time on one GPU type.

    ``aware``: whenever shares are found all jobs choose anew, each the fastest type with room; else
    a job keeps its type, which is drawn at random, for good. ``mended``: see above.
    """

    name = "reference-fifo"

    def __init__(self, heterogeneity: str, *, mended: bool = True, seed: int = SEED) -> None:
        super().__init__(heterogeneity, solve_every_s=1920.0, fill_idle="no")
        self.identity = f"{self.name} {heterogeneity} {mended} {seed}"
        self.mended = mended
        self._chance = random.Random(seed)
        self._kind: dict[int, str] = {}

    def solve(
        self, view: View, gangs: dict[int, Gang], types: GpuTypes, records: Mapping[int, Record]
    ) -> list[Shares]:
        """One for the type that a job has, else zero."""
        left = dict(types.gpus)
        if self.aware:
            self._kind = {}
        speeds = {
            row: dict(zip(types.gpus, gang.speeds, strict=True)) for row, gang in gangs.items()
        }
        queue = [row for row in gangs if row not in self._kind]
        for row in sorted(self._kind):
            kind = self._kind[row]
            if row in gangs:
                left[kind] -= gangs[row].gpus
                continue
            # The first in line takes over from a job that has ended, if it fits.
            del self._kind[row]
            if queue and gangs[queue[0]].gpus <= left[kind] and speeds[queue[0]][kind]:
                self._kind[queue[0]] = kind
                left[kind] -= gangs[queue.pop(0)].gpus
        free = sorted(kind for kind in left if left[kind] > 0)
        for row in queue:
            fit = [kind for kind in free if left[kind] >= gangs[row].gpus]
            if not fit:
                break
            drawn, taken = self._draw(free, fit, speeds[row])
            if not speeds[row][taken]:
                continue
            self._kind[row] = taken
            left[taken] -= gangs[row].gpus
            if not left[taken]:
                free.remove(drawn)
        return [tuple(float(self._kind.get(row) == kind) for kind in types.gpus) for row in gangs]

    def _draw(
        self, free: list[str], fit: list[str], speeds: Mapping[str, float]
    ) -> tuple[str, str]:
        """The type that leaves the list when it is full, and the one that the job gets."""
        if self.aware:
            best = max(fit, key=lambda kind: speeds[kind])
            return best, best
        drawn = fit[self._chance.randrange(len(fit))]
        return drawn, drawn if self.mended else free[-1]

    def run(
        self,
        what_if: WhatIf,
        types: GpuTypes,
        able: Mapping[int, frozenset[str]],
        records: Mapping[int, Record],
        order: list[str],
    ) -> None:
        """Jobs run only where they have a share."""
        shares = {row: kinds & records[row].share.keys() for row, kinds in able.items()}
        super().run(what_if, types, shares, records, order)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    data = parser.parse_args().data
    if not is_there(data, "gavel"):
        return 0
    folder = data / "gavel"
    trace = read_gavel(
        folder / "max_min_fairness.trace", folder / "simulation_throughputs.json.gz", strict=True
    )
    print(f"{'average JCT, s':44} {'published':>10} {'ours':>10} {'ratio':>7}  ok   CPU s")
    held = [
        show(trace, "max-min", 19989.3, fair("max-min-fairness", "agnostic"), True),
        show(trace, "max-min, aware", 14622.8, fair("max-min-fairness", "aware"), True),
        show(trace, "FIFO", 35904.6, ReferenceFifo("agnostic", mended=False), True),
    ]
    print("comparisons")
    show(trace, "FIFO, aware", 19526.9, ReferenceFifo("aware"))
    show(trace, "FIFO, mended", None, ReferenceFifo("agnostic"))
    show(trace, "finish-time, aware", 15009.7, fair("finish-time-fairness", "aware"))
    show(trace, "finish-time", None, fair("finish-time-fairness", "agnostic"))
    by_catalog = read_gavel(folder / "max_min_fairness.trace", strict=True)
    for heterogeneity, published in (("agnostic", 19989.3), ("aware", 14622.8)):
        policy = fair("max-min-fairness", heterogeneity)
        show(by_catalog, f"max-min, {heterogeneity}, the catalogue's rates", published, policy)
    for name in ("max-min-fairness", "finish-time-fairness"):
        for heterogeneity in ("agnostic", "aware"):
            policy = create(name, {"heterogeneity": heterogeneity})
            show(trace, f"{name}, {heterogeneity}, our defaults", None, policy)
    return 0 if all(held) else 1


def fair(name: str, heterogeneity: str) -> Any:
    return create(name, {"heterogeneity": heterogeneity} | GAVELS_WAY)


def show(
    trace: Trace, name: str, published: float | None, policy: Any, must_hold: bool = False
) -> bool:
    """Simulate, print a line, and say whether it is within bounds of what is published."""
    began_s = process_time()
    nodes = parse_cluster(CLUSTER)
    state = simulate(trace, nodes, policy, FREE, speeds=CatalogSpeeds(nodes, "v100")).state
    cpu_s = process_time() - began_s
    times = [end - submit for end, submit in zip(state.finish_s, state.submit_s, strict=True)]
    ours = sum(times) / len(times)
    if published is None:
        print(f"{name:44} {'':10} {ours:10.1f} {'':7}       {cpu_s:6.2f}")
        return True
    ratio = ours / published
    close = abs(ratio - 1) <= WITHIN
    ok = ("yes" if close else "NO") if must_hold else ""
    print(f"{name:44} {published:10.1f} {ours:10.1f} {ratio:7.3f}  {ok:3}  {cpu_s:6.2f}")
    return close


if __name__ == "__main__":
    sys.exit(main())
