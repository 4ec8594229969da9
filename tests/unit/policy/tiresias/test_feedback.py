"""Feedback queues kept from decision to decision: what a promotion costs."""

from rota.policy.tiresias.policy import Tiresias
from rota.testing.builders import job, simulation


class Place(int):
    """A place in a queue that counts how often any such place is looked at."""

    times = 0

    def __add__(self, other):
        return Place(int(self) + other)

    def __sub__(self, other):
        return Place(int(self) - other)

    def __hash__(self):
        Place.times += 1
        return int.__hash__(self)

    def __lt__(self, other):
        Place.times += 1
        return int(self) < int(other)

    def __gt__(self, other):
        Place.times += 1
        return int(self) > int(other)


def places_looked_at(waiting, rounds):
    """For each of the promotions after so many rounds, while so many wait in the second queue.

    These have run for long, and so they are not promoted soon; then as many others as wait have
    the GPUs in turns: each is promoted as soon as it sinks, for it has waited long enough before.
    """
    policy = Tiresias((10.0,), 1.0)
    old = [job(f"old{i:03}", lasts=1e6) for i in range(waiting)]
    new = [job(f"young{i:03}", at=1e5 + i % waiting, lasts=1e6) for i in range(3 * waiting)]
    sim = simulation(old + new, policy, f"1x{waiting}")
    while sim.engine.now_s < 1e5 + 3 * waiting:
        sim.step()
    assert all(mark[0] == 1 for mark in sim.state.marks[:waiting])
    queues = policy._queues
    queues._first_serial = Place(queues._first_serial)
    queues._last_serial = Place(queues._last_serial)
    begin_s = sim.engine.now_s
    while sim.engine.now_s < begin_s + 30 * rounds:
        sim.step()
    Place.times, promoted, decisions = 0, 0, sim.decisions
    while sim.decisions < decisions + 40:
        sim.step()
        marks = sim.state.marks[waiting:]
        promoted += sum(mark[5] == sim.engine.now_s for mark in marks)
    assert promoted >= 40
    return Place.times / promoted


def test_a_promotion_costs_the_same_however_many_were_promoted_before():
    assert places_looked_at(2, 200) < 1.5 * places_looked_at(2, 20)


def test_a_promotion_costs_the_same_however_many_wait():
    assert places_looked_at(100, 2) < 1.5 * places_looked_at(10, 2)
