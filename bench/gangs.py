"""How long a gang over four machines takes to start and to suspend, against one on one machine.

    python bench/gangs.py [--repeats 5]

Hosts made of namespaces: the controller's, one with eight slots, and four with two. A job of eight
ranks is launched, suspended once it trains, and cancelled, here and there in turns. Printed are the
seconds from each command to its answer, as the events tell them: median, minimum and maximum.
Needs root.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]

from tests.hosts.placing import Placing  # noqa: E402

from rota.client.events import Logged  # noqa: E402
from rota.experiment.runs import hosts  # noqa: E402

PROGRAM = """
import time, torch, rota.train
torch.set_num_threads(1)
with rota.train.session() as s:
    net = torch.nn.Linear(8, 1)
    net, sgd = s.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in s.steps(1_000_000):
        net(torch.ones(1, 8)).sum().backward()
        sgd.step()
        sgd.zero_grad()
        time.sleep(0.05)
        s.report()
"""
WHERE = {"one machine": {"whole": list(range(8))}, "four": {name: [0, 1] for name in "abcd"}}
ANSWERS = {"Launch": "JobLaunched", "Suspend": "JobSuspended"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    if reason := hosts.why_none():
        print(f"skipped: {reason}")
        return
    took: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="rota-") as base, hosts.lan() as lan:
        (Path(base) / "head").mkdir()
        lab = Placing(lan, Path(base))
        try:
            lab.up("--policy", "placed")
            sizes = {"whole": 8, **dict.fromkeys("abcd", 2)}
            machines = {name: lab.begin_to_join(name, gpus) for name, gpus in sizes.items()}
            for name, machine in machines.items():
                lab.until_connected(name, machine)
            (Path(base) / "train.py").write_text(PROGRAM)
            for number in range(2 * repeats + 2):
                place = list(WHERE)[number % 2]
                for what, seconds in once(lab, place).items():
                    if number > 1:  # the first of each has zygotes to wait for
                        took.setdefault((what, place), []).append(seconds)
        finally:
            lab.close()
    print(f"{'seconds':<12}" + "".join(f"{place:>26}" for place in WHERE) + f"{'times':>8}")
    for what in ANSWERS:
        cells = [took[what, place] for place in WHERE]
        texts = [f"{median(c):.3f} ({min(c):.3f}, {max(c):.3f})" for c in cells]
        times = median(cells[1]) / median(cells[0])
        print(f"{what.lower():<12}" + "".join(f"{text:>26}" for text in texts) + f"{times:>8.2f}")


def once(lab: Placing, place: str) -> dict[str, float]:
    """Seconds from each command for a job there to its answer."""
    fields = {
        "run": "python train.py",
        "start": "warm",
        "workdir": str(lab.base),
        "resources": {"gpus": 8},
    }
    sent, took = {}, {}
    job = lab.client.submit(fields)["id"]
    lab.has(job, **WHERE[place])
    while (lab.client.job(job)["progress"] or {}).get("step", 0) < 20:
        time.sleep(0.1)
    lab.place(job)
    lab.is_in(job, "SUSPENDED")
    for told in lab.client.events(after=0):
        if not isinstance(told, Logged) or told.job_id != job:
            continue
        if told.kind == "CommandSent":
            sent[told.data["command"]] = told.at_s
        for what, answer in ANSWERS.items():
            if told.kind == answer and what in sent:
                took[what] = told.at_s - sent[what]
        if len(took) == len(ANSWERS):
            break
    lab.client.cancel(job)
    lab.is_in(job, "CANCELLED")
    return took


if __name__ == "__main__":
    main()
