"""The smallest computation for which one program drives 8 to 2,048 devices as fast as many.

Figures 6 and 7 of Pathways (Barham et al., MLSys 2022), simulated: the pure order of `rota.flow` in
virtual time, with costs that were measured on one machine. One client calls an operation on all
devices again and again; the next one takes its output. Beside it stand multi-controllers, a plain
process for each device.

- *calls*: each operation is a call, which the client sends to each device;
- *calls by host*: one message to each host, which passes it on to its devices at no cost;
- *programs*: 128 operations are a call;
- *calls in order*: another client has joined on all devices, so that each turn of each device is
  given by the island.

Judged is that a computation of 2.3 ms on 128 devices, and one of 35 ms on 2,048, is enough for 95 %
of what multi-controllers do: the sizes of the paper's (recollection). Reported is by how much
dispatch in parallel shortens a pipeline whose hosts otherwise tell one another.
"""

from typing import NamedTuple

from rota.experiment.base import Figure, Outcome
from rota.scenario.pool import WORTH_A_PROCESS, over_cores
from rota.sim.dispatch import Chain, Costs, Dispatch, Stages, pipeline_s, rate, shared_island

NAME = "pathways-scale"
# Devices of a host by devices: the paper's configurations are of 8 and 4.
DEVICES = {8: 8, 16: 8, 32: 8, 64: 8, 128: 8, 256: 8, 512: 8, 1024: 8, 2048: 4}
PUBLISHED_MS = {128: 2.3, 2048: 35.0}  # recollection of the paper's Figure 6
LEAST = 0.95  # of multi-controllers' operations a second, fixed beforehand
# Measured on two cores, with up to 8 workers (docs/research/experiments.md): CPU time of a client
# for a call and each worker, of a worker for an operation, of the island for a turn; and the time
# until a process that waits has got a message.
CALLS = Costs(call_s=11e-6, message_s=5e-6, operation_s=22e-6, turn_s=7e-6, latency_s=100e-6)
PROGRAMS = CALLS._replace(call_s=35e-6, message_s=9e-6, operation_s=14e-6)
LOOP_S = 4e-6  # of a plain process, for an operation
LENGTH = 128  # operations of a program
STAGES = (2, 4, 8, 16, 32, 64, 128)
COMPUTE_MS = (0.04, 1.04)  # of a stage
TRANSFER_S = 10e-6  # an assumption: accelerators with a network of their own
CLOSE = 1.02  # how close the smallest computation is found


class Way(NamedTuple):
    """How operations are dispatched, and how many calls are simulated."""

    costs: Costs
    calls: int
    length: int = 1
    by_host: bool = False
    in_order: bool = False


WAYS = {
    "calls": Way(CALLS, 12),
    "calls by host": Way(CALLS, 12, by_host=True),
    "programs": Way(PROGRAMS, 3, LENGTH),
    "calls in order": Way(CALLS, 12, in_order=True),
}


def run() -> Outcome:
    """Run the simulations."""
    figures = []
    asked = [(devices, name) for devices in DEVICES for name in WAYS]
    calls = [(devices, WAYS[name]) for devices, name in asked]
    found_s = over_cores(smallest_s, calls, num_jobs=WORTH_A_PROCESS)
    for (devices, name), each_s in zip(asked, found_s, strict=True):
        published = PUBLISHED_MS.get(devices)
        low, high = (None, None) if published is None else (0.0, published)
        what = f"{devices} devices, {name}: smallest computation"
        figures.append(Figure(what, "ms", published, None, 1e3 * each_s, low, high))
    for compute_ms in COMPUTE_MS:
        for stages in STAGES:
            what = f"{stages} stages of {compute_ms:g} ms: sequential over parallel dispatch"
            figures.append(Figure(what, "times", None, None, shortened(stages, compute_ms / 1e3)))
    settings = {
        "at least": LEAST,
        "baseline": "multi-controllers",
        "calls": CALLS._asdict(),
        "programs": PROGRAMS._asdict(),
        "operations of a program": LENGTH,
        "loop_s": LOOP_S,
        "transfer_s": TRANSFER_S,
    }
    return Outcome(NAME, [], settings, figures)


def smallest_s(devices: int, way: Way) -> float:
    """The smallest computation with which the way does LEAST of what multi-controllers do."""
    low, high = LOOP_S, 16 * LOOP_S
    while of_multi_controllers(devices, high, way) < LEAST:
        low, high = high, 4 * high
    while high > CLOSE * low:
        middle = (low * high) ** 0.5
        if of_multi_controllers(devices, middle, way) < LEAST:
            low = middle
        else:
            high = middle
    return high


def of_multi_controllers(devices: int, compute_s: float, way: Way) -> float:
    """Operations a second over those of multi-controllers, for a computation of that length."""
    gang = tuple(range(devices))
    at_once = DEVICES[devices] if way.by_host else 1
    chain = Chain(1, (gang,), way.calls, compute_s, way.length, devices_of_message=at_once)
    island = shared_island(gang, others=[2]) if way.in_order else None
    done = rate(Dispatch([chain], way.costs, island).run(), 1)
    return done * (compute_s + LOOP_S)


def shortened(stages: int, compute_s: float) -> float:
    """Seconds of a pipeline under sequential dispatch over those under parallel dispatch."""
    host_s, message_s, latency_s = CALLS.operation_s, CALLS.message_s, CALLS.latency_s
    pipeline = Stages(stages, compute_s, host_s, message_s, latency_s, TRANSFER_S)
    return pipeline_s(pipeline, parallel=False) / pipeline_s(pipeline, parallel=True)
