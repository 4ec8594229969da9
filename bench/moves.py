"""How long the state of a job takes from one machine to another, directly and through a third one.

    python bench/moves.py [--megabytes 300] [--moves 6] [--megabits 0]

Three hosts made of namespaces: the controller's, and two that have joined, between which a training
moves to and fro. In turns the two can reach each other, or nftables drops what one sends the other,
so that the controller passes all on. Printed are the seconds from when the state is written until
it has been fetched and checked, as the agent's log tells them: median, minimum and maximum. With
``--megabits`` each host's network brings it so much a second at most. Needs root.
"""

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]

from tests.hosts.conftest import Lab  # noqa: E402

from rota.experiment.runs import hosts  # noqa: E402

PROGRAM = """
import time, torch, rota.train
with rota.train.session() as s:
    net = torch.nn.Linear(1000, {outputs})
    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in s.steps(1_000_000):
        time.sleep(0.05)
        s.report()
"""
FETCHED = re.compile(r"job \S+: (\d+) bytes from \S+ in (\S+) s, (\d+) of them directly")
WAIT_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--megabits", type=int, default=0)
    options = parser.parse_args()
    if reason := hosts.why_none(*hosts.FOR_FAULTS):
        print(f"skipped: {reason}")
        return
    took: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="rota-") as base, lab(Path(base)) as cluster:
        pair = [cluster.join(name, gpus=1) for name in ("left", "right")]
        with contextlib.ExitStack() as stack:
            if options.megabits:
                for machine in (cluster.head, *pair):
                    stack.enter_context(machine.host.slow(options.megabits))
            for number in range(options.moves):
                directly = number % 2 == 0
                if not number:
                    job = start(cluster, Path(base), options.megabytes)
                took[directly].append(move(cluster, pair, job, directly=directly))
                told = "directly" if directly else "through the controller"
                print(f"{told}: {took[directly][-1]:.3f} s", file=sys.stderr, flush=True)
        cluster.client.cancel(job)
    print(f"{'':<24}{'seconds':>24}{'MB/s':>8}")
    for directly, name in ((True, "directly"), (False, "through the controller")):
        middle = median(took[directly])
        spread = f"{middle:.2f} ({min(took[directly]):.2f}, {max(took[directly]):.2f})"
        print(f"{name:<24}{spread:>24}{options.megabytes / middle:>8.0f}")
    print(f"{'times':<24}{median(took[False]) / median(took[True]):>24.2f}")


@contextlib.contextmanager
def lab(base: Path) -> Iterator[Lab]:
    """A cluster of three hosts, of which the controller's takes no jobs."""
    (base / "head").mkdir()
    with hosts.lan() as lan:
        made = Lab(lan, base)
        try:
            made.up()
            wait_until(made.client.nodes)
            (own,) = {node["name"] for node in made.client.nodes()}
            made.client.cordon(own)
            yield made
        finally:
            made.close()


def start(cluster: Lab, base: Path, megabytes: int) -> str:
    """A training whose state is so large."""
    (base / "bulky.py").write_text(PROGRAM.format(outputs=megabytes * 1_000_000 // 4004))
    job: str = cluster.client.submit(
        {"run": "python bulky.py", "start": "warm", "workdir": str(base)}
    )["id"]
    return job


def move(cluster: Lab, pair: list[Any], job: str, *, directly: bool) -> float:
    """Seconds that the state was on its way to the other machine."""
    moved = cluster.client.job(job)["migrations"]
    wait_until(lambda: steps(cluster, job) > 1)
    here = cluster.client.job(job)["gpus"][0]["node"]
    source, other = sorted(pair, key=lambda machine: machine.host.name != here)
    with contextlib.ExitStack() as stack:
        if not directly:
            stack.enter_context(source.host.apart_from(other.host))
        cluster.client.enable(other.host.name)
        cluster.client.drain(here)
        wait_until(lambda: cluster.client.job(job)["migrations"] > moved)
    before = steps(cluster, job)
    wait_until(lambda: steps(cluster, job) > before)
    size, took_s, direct = FETCHED.findall(other.log)[-1]
    if (int(direct) > 0.9 * int(size)) is not directly:
        raise SystemExit(f"{direct} of {size} bytes came directly")
    return float(took_s)


def steps(cluster: Lab, job: str) -> int:
    return int((cluster.client.job(job)["progress"] or {}).get("step", 0))


def wait_until(condition: Any) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise SystemExit("the job does not move")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
