"""Whole searches, with trials that do whatever trials do: each comes to a fitting end."""

import random

import pytest

from rota.sweep.decide import End, Start, Stop

from .told import decided, search, sweep, trial

KINDS = ("good", "good", "good", "nan", "crash", "silent", "cancelled")


class World:
    """Searches' trials, that run as many at a time as there are GPUs, in an order by chance."""

    def __init__(self, rng, gpus):
        self.rng, self.gpus = rng, gpus
        self.now_s = 0.0
        self.trials, self.kinds, self.lengths = {}, {}, {}

    def start(self, number):
        assert number not in self.trials, "a number is given once"
        self.trials[number] = trial(number, state="PENDING")
        self.kinds[number] = self.rng.choice(KINDS)
        self.lengths[number] = self.rng.randint(1, 9)

    def stop(self, number, why):
        assert self.trials[number]["why"] is None, "it is told once"
        self.trials[number] |= {"state": "STOPPING", "why": why}

    def pass_time(self):
        self.now_s += 1
        going = [t for t in self.trials.values() if t["state"] in ("PENDING", "RUNNING")]
        for told in self.trials.values():
            if told["state"] == "STOPPING" and self.rng.random() < 0.5:
                told["state"] = "CANCELLED"
        for told in self.rng.sample(going, min(self.gpus, len(going))):
            self.work(told)

    def work(self, told):
        number = told["number"]
        kind, done = self.kinds[number], len(told["curve"])
        told["state"] = "RUNNING"
        told["gpu_s"] += 1
        if kind == "silent":
            told["state"] = "SUCCEEDED"
        elif kind == "cancelled":
            told["state"] = "CANCELLED"
        elif done < self.lengths[number]:
            value = None if kind == "nan" else self.rng.random()
            told["curve"].append([done + 1, self.now_s, value])
        else:
            told["state"] = "FAILED" if kind == "crash" else "SUCCEEDED"

    def tell(self):
        gpu_s = sum(told["gpu_s"] for told in self.trials.values())
        return sweep(*self.trials.values(), gpus=self.gpus, gpu_s=gpu_s)


def carry_on(request, world):
    """Until the search ends, with a look now and then; how it has ended."""
    for _ in range(2000):
        world.pass_time()
        if world.rng.random() < 0.3:
            continue  # a driver that is away for a while
        told = world.tell()
        for action in decided(request, told):
            match action:
                case Start(number):
                    world.start(number)
                case Stop(number, why):
                    world.stop(number, why)
                case End():
                    return action
        still_open = [
            each
            for each in world.trials.values()
            if each["state"] in ("PENDING", "RUNNING") and each["why"] is None
        ]
        most = request.parallel or 4 * world.gpus
        assert len(still_open) <= most
        assert len(world.trials) <= request.max_trials
    pytest.fail("it never ends")


@pytest.mark.parametrize("seed", range(60))
def test_a_search_comes_to_a_fitting_end(seed):
    rng = random.Random(seed)
    request = search(
        goal=rng.choice(["maximize", "minimize"]),
        max_trials=rng.randint(1, 25),
        parallel=rng.choice(["auto", 1, 3]),
        rungs=rng.choice([None, {"eta": 2}, {"eta": 3, "first": 2}]),
        target=rng.choice([None, None, 0.95, 0.05]),
        gpu_hours=rng.choice([None, None, 0.01]),
        max_failures=rng.choice([0, 3, 25]),
    )
    world = World(rng, rng.randint(1, 4))
    end = carry_on(request, world)
    trials = world.trials.values()
    values = [v for each in trials for _, _, v in each["curve"] if v is not None]
    if end.outcome == "DONE":
        assert len(trials) == request.max_trials
        assert all(each["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for each in trials)
        assert values or all(world.kinds[n] == "cancelled" for n in world.trials)
    elif end.outcome == "TARGET":
        assert max(values) >= request.target if request.maximize else min(values) <= request.target
    elif end.outcome == "BUDGET":
        assert sum(each["gpu_s"] for each in trials) >= 36
    else:
        bad = sum(world.kinds[number] in ("nan", "crash", "silent") for number in world.trials)
        assert bad > request.max_failures or not values
    assert {each["number"] for each in trials} == set(range(len(trials)))
