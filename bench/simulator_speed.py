"""CPU seconds of whole simulator processes, beside those of the public Tiresias simulator.

    python bench/simulator_speed.py [--data DIR] [--repeats 5] [--quick]

Every figure is user and system time of a process of its own, with Python's start-up and the reading
of the trace: a script that imports the simulator, and `rota sim run`, which prints a summary too.
``--data`` names a folder with ``philly/philly_week_2017-10-09.csv.gz`` (job_id, submit_s,
duration_s, num_gpus); its first 10,000 jobs are run on 64 nodes of 4 GPUs without costs, as the
public simulator runs such a trace. Its figures are quoted, not measured here. Generated loads
(profile ``philly``, seed 0, load 1.0) show how the cost of an event grows with the number of jobs:
from 10,000 to 100,000, and to 1,000,000 on 1250 nodes of 8. A turn under `gandiva` is that of 600
jobs of 1 to 8 GPUs that never end, of one user and of several. ``muri/muri_trace1.csv.gz`` in the
same folder, 1,494 jobs that keep 16 nodes of 4 GPUs busy for 285 days, is run under `tiresias` and
`gandiva` as they are by default: jobs promoted all the time, and turns of a minute. A simulation
that is not over after 250 CPU seconds is stopped there, and tells how far it came. ``--quick``
leaves out this one and the million jobs.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median

MURI = Path("muri") / "muri_trace1.csv.gz"
MURI_LIMIT_S, MURI_STOP_S = 60, 250
WEEK = Path("philly") / "philly_week_2017-10-09.csv.gz"
JOBS = 10_000
# ms a job that the public Tiresias simulator takes for 10,000 Philly jobs on 64x4 (Python 3 port).
REFERENCE_MS = {"fifo": 2.1, "tiresias": 3.7}
LAS = {"thresholds": "3250,7200", "promote_knob": "0"}
SETTINGS: dict[str, dict[str, str]] = {"fifo": {}, "tiresias": LAS}
LIMIT = {"fifo": 0.206, "tiresias": 0.375}
REPLAY = """
import sys
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.readers import read_trace
settings = dict(pair.split("=") for pair in sys.argv[3:])
state, decisions = simulate(
    read_trace(sys.argv[1]), parse_cluster("64x4"), create(sys.argv[2], settings), FREE
)
jct_s = sum(end - begin for end, begin in zip(state.finish_s, state.submit_s))
print(jct_s / len(state.finish_s), state.events)
"""
GENERATED = """
import json, sys
from resource import RUSAGE_SELF, getrusage
def cpu_s():
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import simulate
from rota.workload.synthetic import generate
num_jobs, cluster, policy = int(sys.argv[1]), sys.argv[2], sys.argv[3]
settings = dict(pair.split("=") for pair in sys.argv[4:])
nodes = parse_cluster(cluster)
num_gpus = sum(node.num_gpus for node in nodes)
trace = generate("philly", num_jobs=num_jobs, num_gpus=num_gpus, load=1.0, seed=0)
begin_s = cpu_s()
state, decisions = simulate(trace, nodes, create(policy, settings), FREE)
print(json.dumps({
    "simulate_s": cpu_s() - begin_s,
    "events": state.events,
    "decisions": decisions,
    "rss_mib": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
}))
"""

TURNS = """
import json, signal, sys
from rota.model.cluster import parse_cluster
from rota.policy.registry import create
from rota.sim.machine import Costs
from rota.sim.simulation import Simulation
from rota.workload.readers import read_trace
class Stopped(BaseException):  # no error of the policy that is deciding
    pass
def stop(signal, frame):
    raise Stopped
trace = read_trace(sys.argv[1])
sim = Simulation(trace, parse_cluster("16x4"), create(sys.argv[2], {}), Costs())
signal.signal(signal.SIGPROF, stop)
signal.setitimer(signal.ITIMER_PROF, float(sys.argv[3]))
try:
    sim.run()
    goes_on = False
except Stopped:
    goes_on = True
signal.setitimer(signal.ITIMER_PROF, 0)
print(json.dumps({
    "over": not goes_on,
    "jobs": len(trace),
    "days": sim.engine.now_s / 86400,
    "decisions": sim.decisions,
    "events": sim.state.events,
}))
"""

BY_USER = """
import json, sys
from time import process_time
from rota.model.cluster import parse_cluster
from rota.model.job import JobSpec
from rota.policy.registry import create
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.workload.trace import Trace
users, gangs = int(sys.argv[1]), (1, 1, 2, 4, 8, 1)
jobs = [
    JobSpec(str(i), gangs[i % 6], 0.0, 1e7 + i, user=f"user{i % 7 % users}") for i in range(600)
]
sim = Simulation(Trace(jobs), parse_cluster("16x4"), create("gandiva", {}), FREE)
def until(at_s):
    while sim.engine.now_s < at_s and sim.step():
        pass
    return process_time(), sim.decisions
until(3000.0)  # by then nobody comes to a node any more
(begin_s, before), (end_s, after) = until(6000.0), until(126000.0)
print(json.dumps({"turn_s": (end_s - begin_s) / (after - before)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder with the Philly trace")
    parser.add_argument("--repeats", type=int, default=5, help="processes for each short figure")
    parser.add_argument("--quick", action="store_true", help="leave the million jobs out")
    options = parser.parse_args()
    row("what", "jobs", "CPU s", "min-max", "ms/job", "x faster", "MiB")
    replay_philly(options.data, options.repeats)
    grow(1 if options.quick else 3)
    by_user(options.repeats)
    if not options.quick:
        muri(options.data)
        million()


def replay_philly(folder: Path | None, repeats: int) -> None:
    """The first 10,000 jobs of the Philly week, if it is there."""
    if folder is None or not (folder / WEEK).is_file():
        print(f"no Philly trace: --data names no folder with {WEEK}, so it is left out")
        return
    with tempfile.TemporaryDirectory(prefix="rota-") as place:
        trace = str(Path(place) / "philly.csv")
        with gzip.open(folder / WEEK, "rt") as rows:
            Path(trace).write_text("".join(islice(rows, JOBS + 1)))
        for policy, settings in SETTINGS.items():
            pairs = [f"{key}={value}" for key, value in settings.items()]
            script = [sys.executable, "-c", REPLAY, trace, policy, *pairs]
            report(f"{policy}, simulate()", policy, script, repeats)
            rota = str(Path(sys.executable).with_name("rota"))
            command = [rota, "sim", "run", "--trace", trace]
            command += ["--cluster", "64x4", "--no-costs", "--policy", policy]
            command += [part for pair in pairs for part in ("--set", pair)]
            report(f"{policy}, rota sim run", policy, command, repeats)


def report(what: str, policy: str, command: list[str], repeats: int) -> None:
    """Run a process ``repeats`` times and print one line about its CPU seconds."""
    run(command)  # once for the bytecode of the modules
    runs = [run(command) for _ in range(repeats)]
    cpu_s = [used for used, _, _ in runs]
    reference_s = REFERENCE_MS[policy] * JOBS / 1e3
    row(
        what,
        f"{JOBS}",
        f"{median(cpu_s):.3f} (limit {LIMIT[policy]})",
        f"{min(cpu_s):.3f}-{max(cpu_s):.3f}",
        f"{1e3 * median(cpu_s) / JOBS:.4f}",
        f"{reference_s / median(cpu_s):.0f} of {REFERENCE_MS[policy]} ms",
        f"{max(mib for _, mib, _ in runs):.0f}",
    )


def grow(repeats: int) -> None:
    """CPU time of an event at 10,000 and at 100,000 generated jobs, start-up left out."""
    for policy, settings in SETTINGS.items():
        pairs = [f"{key}={value}" for key, value in settings.items()]
        event_us = {}
        for jobs in (10_000, 100_000):
            results = []
            for _ in range(repeats):
                command = [sys.executable, "-c", GENERATED, str(jobs), "64x4", policy, *pairs]
                results.append(json.loads(run(command)[2]))
            simulate_s = [result["simulate_s"] for result in results]
            event_us[jobs] = 1e6 * median(simulate_s) / results[0]["events"]
            row(
                f"{policy}, generated, without start-up",
                f"{jobs}",
                f"{median(simulate_s):.2f}",
                f"{min(simulate_s):.2f}-{max(simulate_s):.2f}",
                f"{1e3 * median(simulate_s) / jobs:.4f}",
                f"{event_us[jobs]:.2f} us/event",
                f"{max(result['rss_mib'] for result in results):.0f}",
            )
        growth = event_us[100_000] / event_us[10_000]
        print(f"{policy}: an event costs {growth:.2f} times as much at 100,000 (limit 1.3)")


def by_user(repeats: int) -> None:
    """A turn of 600 jobs under the default policy, of one user and of several."""
    for users in (1, 2, 7):
        command = [sys.executable, "-c", BY_USER, str(users)]
        turn_s = [json.loads(run(command)[2])["turn_s"] for _ in range(repeats)]
        row(
            f"gandiva, jobs of {users} user{'' if users == 1 else 's'}",
            "600",
            "",
            f"{1e3 * min(turn_s):.2f}-{1e3 * max(turn_s):.2f}",
            "",
            f"{1e3 * median(turn_s):.2f} ms/turn",
            "",
        )


def muri(folder: Path | None) -> None:
    """The Muri trace under policies that promote, or let jobs take turns, all the time."""
    if folder is None or not (folder / MURI).is_file():
        print(f"no Muri trace: --data names no folder with {MURI}, so it is left out")
        return
    for policy in ("tiresias", "gandiva"):
        command = [sys.executable, "-c", TURNS, str(folder / MURI), policy, str(MURI_STOP_S)]
        used, mib, text = run(command)
        result = json.loads(text)
        row(
            f"{policy}, Muri 1, default settings",
            f"{result['jobs']}",
            f"{used:.1f} (limit {MURI_LIMIT_S})",
            "" if result["over"] else "not over",
            f"{1e3 * used / result['jobs']:.2f}",
            f"{1e6 * used / result['events']:.1f} us/event",
            f"{mib:.0f}",
        )
        print(f"{policy}: {result['days']:.0f} days, {result['decisions']} decisions")


def million() -> None:
    """A million generated jobs on 10,000 GPUs, whole process."""
    pairs = [f"{key}={value}" for key, value in LAS.items()]
    used, mib, text = run(
        [sys.executable, "-c", GENERATED, "1000000", "1250x8", "tiresias", *pairs]
    )
    simulate_s = json.loads(text)["simulate_s"]
    row("tiresias, simulation alone", "1000000", f"{simulate_s:.1f} (limit 40)", "", "", "", "")
    row(
        "tiresias, with start and generator",
        "1000000",
        f"{used:.1f}",
        "",
        f"{used / 1e3:.4f}",
        "",
        f"{mib:.0f} (limit 1024)",
    )


def run(command: list[str]) -> tuple[float, float, str]:
    """CPU seconds and peak MiB of a process, and what it printed. Raises RuntimeError."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env=variables)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command[:3]} ended with {process.returncode}")
        out.seek(0)
        text = out.read().decode()
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def row(*cells: str) -> None:
    widths = (36, 9, 22, 13, 8, 16, 6)
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
