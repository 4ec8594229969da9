"""Under the default policy nobody is kept out by the queues of others, whatever these are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.policy.gandiva.owners import parts
from rota.policy.registry import create
from rota.testing.builders import job, simulation

QUANTUM_S = 60.0
LONG_S = 1e7
TURNS = 3  # until a newcomer has its first turn, and of the whole cluster that parts are off by
CLUSTERS = {"1x1": 1, "1x2": 2, "1x4": 4, "2x2": 4, "3x1": 3}
QUEUES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 14), min_size=2)


def long_jobs(queues, gpus=1, at=0.0):
    return [
        job(f"{user}{i}", gpus, at=at, lasts=LONG_S + i, user=user)
        for user, number in queues.items()
        for i in range(number)
    ]


def used(sim, at_s):
    """When it is, and each user's GPU-seconds so far."""
    while sim.engine.now_s < at_s and sim.step():
        pass
    now_s, found = sim.engine.now_s, dict.fromkeys("abc", 0.0)
    for row, spec in enumerate(sim.state.spec):
        found[spec.user] += sim.state.service(row, now_s) * spec.num_gpus
    return now_s, found


@given(queues=QUEUES, cluster=st.sampled_from(["1x1", "1x2", "1x4"]))
@settings(max_examples=20, deadline=None)
def test_no_user_falls_behind_its_part_by_more_than_a_few_turns(queues, cluster):
    gpus = CLUSTERS[cluster]
    sim = simulation(long_jobs(queues), create("gandiva"), cluster)
    due = parts(gpus, queues, dict.fromkeys(queues, 1.0))
    begin_s, before = used(sim, 0.0)
    for at_s in range(600, 6600, 600):
        now_s, found = used(sim, at_s)
        for user, part in due.items():
            missing = part * (now_s - begin_s) - (found[user] - before[user])
            assert missing <= TURNS * QUANTUM_S * gpus


@given(
    others=st.integers(1, 40),
    gpus=st.sampled_from([1, 2]),
    at_s=st.integers(0, 2000),
    cluster=st.sampled_from(list(CLUSTERS)),
    priority=st.sampled_from([10, 50, 90]),
    limit=st.sampled_from(["2", "4"]),
)
@settings(max_examples=30, deadline=None)
def test_a_newcomer_has_its_first_turn_soon_whatever_is_queued(
    others, gpus, at_s, cluster, priority, limit
):
    first = long_jobs({"a": others}, min(gpus, int(cluster[-1])))
    late = job("late", 1, at=at_s, lasts=LONG_S, user="b", priority=priority)
    sim = simulation([*first, late], create("gandiva", {"limit": limit}), cluster)
    used(sim, at_s + TURNS * QUANTUM_S)
    row = next(row for row, spec in enumerate(sim.state.spec) if spec.user == "b")
    assert 0.0 <= sim.state.first_start_s[row] - at_s <= TURNS * QUANTUM_S


@pytest.mark.parametrize("others", [1, 12, 30])
@given(low=st.integers(1, 12), at_s=st.integers(61, 1000))
@settings(max_examples=6, deadline=None)
def test_the_highest_priority_of_a_user_is_let_in_and_has_a_turn_first(others, low, at_s):
    """Of jobs that a newcomer brings at once; it has half of two GPUs, so one runs at a time."""
    more = {"at": at_s, "lasts": LONG_S, "user": "b"}
    late = [job(f"low{i}", 1, priority=10, **more) for i in range(low)]
    high = job("x", 1, priority=90, **more)
    sim = simulation([*long_jobs({"a": others + 1}), *late, high], create("gandiva"), "1x2")
    used(sim, at_s + TURNS * QUANTUM_S)
    row = next(row for row, spec in enumerate(sim.state.spec) if spec.job_id == "x")
    assert 0.0 <= sim.state.first_start_s[row] - at_s <= TURNS * QUANTUM_S
    used(sim, at_s + 40 * QUANTUM_S)
    ran_s = {
        spec.job_id: sim.state.service(row, sim.engine.now_s)
        for row, spec in enumerate(sim.state.spec)
        if spec.user == "b"
    }
    assert ran_s["x"] == max(ran_s.values())
    assert ran_s["x"] >= 0.25 * sum(ran_s.values())
