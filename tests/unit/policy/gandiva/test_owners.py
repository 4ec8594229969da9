"""Owners take turns under Gandiva where jobs of several are there: no queue keeps others out."""

import pytest

from rota.errors import PolicySettingError
from rota.explain.why import explain
from rota.model.events import JobSubmitted
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.gandiva import policy as gandiva
from rota.policy.gandiva.owners import parts
from rota.policy.registry import create
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, random_trace, simulation, trace
from support.driven import DrivenCluster

LONG_S = 1e6
SLOW = Costs(suspend_s=0.5, resume_s=2.0, migrate_s=4.0, cold_start_s=8.0)


class Forgetful(gandiva.Gandiva):
    """Takes a whole decision every time."""

    def decide(self, view):
        self._rotation = None
        return super().decide(view)


def many(number, user, *, at=0.0, gpus=1, first=0, **more):
    """Long jobs of a user."""
    return [
        job(f"{user}{first + i}", gpus, at=at, lasts=LONG_S + i, user=user, **more)
        for i in range(number)
    ]


def until(sim, at_s):
    """The state at the first event from a time on."""
    while sim.engine.now_s < at_s and sim.step():
        sim.state.validate()
    return sim.state


def had(sim, at_s):
    """The time of the first event from ``at_s`` on, and each user's GPU-seconds until then."""
    state, found = until(sim, at_s), {}
    for row, spec in enumerate(state.spec):
        used = state.service(row, sim.engine.now_s) * spec.num_gpus
        found[spec.user] = found.get(spec.user, 0.0) + used
    return sim.engine.now_s, found


def shares(jobs, cluster, from_s, until_s, **settings):
    """GPUs that each user has had on average between two times."""
    sim = simulation(jobs, create("gandiva", settings), cluster)
    (from_s, before), (until_s, after) = had(sim, from_s), had(sim, until_s)
    return {user: (after[user] - before.get(user, 0.0)) / (until_s - from_s) for user in after}


@pytest.mark.parametrize(
    ("wanted", "weights", "expected"),
    [
        ({"a": 12, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 12, "b": 12}, {"a": 1, "b": 3}, {"a": 0.5, "b": 1.5}),
        ({"a": 1, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 1}, {"a": 2 / 3, "b": 2 / 3, "c": 2 / 3}),
        ({"a": 1, "b": 1}, {"a": 1, "b": 9}, {"a": 1, "b": 1}),
    ],
)
def test_a_part_is_what_can_be_used_of_a_fair_share(wanted, weights, expected):
    assert parts(2, wanted, weights) == pytest.approx(expected)


def test_a_single_job_beside_a_long_queue_of_another_user_runs_from_the_next_turn_on():
    jobs = [*many(12, "ann"), *many(1, "bob", at=400.0, priority=90)]
    sim = simulation(jobs, create("gandiva"), "1x2")
    state = until(sim, 4000.0)
    row = next(row for row, spec in enumerate(state.spec) if spec.user == "bob")
    assert 400.0 < state.first_start_s[row] <= 460.0
    now_s = sim.engine.now_s
    assert state.service(row, now_s) == pytest.approx(now_s - state.first_start_s[row])


def test_users_have_equal_parts_whatever_their_queues():
    jobs = [*many(40, "ann"), *many(3, "bob", at=100.0), *many(9, "eve", at=200.0)]
    found = shares(jobs, "1x4", 600.0, 12_600.0)
    assert found == pytest.approx({"ann": 4 / 3, "bob": 4 / 3, "eve": 4 / 3}, rel=0.02)


def test_what_a_user_can_not_use_is_shared_by_the_others():
    jobs = [*many(40, "ann"), *many(1, "bob", at=100.0), *many(40, "eve", at=100.0)]
    found = shares(jobs, "1x5", 600.0, 12_600.0)
    assert found == pytest.approx({"ann": 2.0, "bob": 1.0, "eve": 2.0}, rel=0.02)


def test_shares_and_queues_may_be_given():
    jobs = [*many(20, "ann", vc="x"), *many(20, "bob", vc="y")]
    found = shares(jobs, "1x4", 600.0, 12_600.0, shares="bob=3")
    assert found == pytest.approx({"ann": 1.0, "bob": 3.0}, rel=0.02)
    found = shares(jobs, "1x4", 600.0, 12_600.0, fair_share="vc", shares="x=3")
    assert found == pytest.approx({"ann": 3.0, "bob": 1.0}, rel=0.02)
    found = shares(jobs[:24], "1x4", 600.0, 12_600.0, fair_share="no")
    assert found["ann"] > 2 * found["bob"]


def test_time_on_gangs_and_on_single_gpus_counts_by_gpus():
    jobs = [*many(8, "ann", gpus=4), *many(8, "bob")]
    found = shares(jobs, "1x4", 600.0, 24_600.0)
    assert found == pytest.approx({"ann": 2.0, "bob": 2.0}, rel=0.05)


@pytest.mark.parametrize("cluster", ["2x1", "2x2", "4x1"])
def test_parts_are_those_of_the_cluster_not_of_a_node(cluster):
    jobs = [*many(16, "ann"), *many(4, "bob", at=100.0)]
    found = shares(jobs, cluster, 600.0, 12_600.0)
    assert found["bob"] == pytest.approx(found["ann"], rel=0.05)


def test_who_was_away_is_owed_nothing():
    """Bob comes late, to a cluster that Ann has had alone for a day; both have halves from then."""
    jobs = [*many(4, "ann"), *many(4, "bob", at=86_400.0)]
    found = shares(jobs, "1x2", 86_700.0, 87_900.0)
    assert found == pytest.approx({"ann": 1.0, "bob": 1.0}, rel=0.1)


def test_who_could_not_use_its_part_does_not_keep_the_others_waiting_later():
    """Bob's one job runs for a day beside two users; the jobs that he brings then have his part."""
    late = many(9, "bob", at=86_400.0, first=1)
    jobs = [*many(9, "ann"), *many(1, "bob"), *many(9, "eve"), *late]
    found = shares(jobs, "1x6", 86_700.0, 87_900.0)
    assert found == pytest.approx({"ann": 2.0, "bob": 2.0, "eve": 2.0}, rel=0.2)


def test_a_lead_that_nobody_could_help_is_forgotten():
    """Ann's gang fits on no node that is there until another one joins; Bob has all meanwhile."""
    sim = simulation([*many(3, "ann", gpus=4), *many(9, "bob")], create("gandiva"), "1x4")
    state = until(sim, 3000.0)
    owners = state.policy_mark["owners"]
    assert set(owners) == {"ann", "bob"}
    levels = {name: entry[0] for name, entry in owners.items()}
    assert abs(levels["ann"] - levels["bob"]) <= 600.0


def test_an_owner_has_a_home_at_once_where_others_have_all_of_them():
    jobs = [*many(30, "ann"), *many(10, "bob", at=50.0)]
    sim = simulation(jobs, create("gandiva"), "1x2")
    state = until(sim, 50.0)
    homes = [spec.user for row, spec in enumerate(state.spec) if state.marks[row].get("home")]
    assert (homes.count("ann"), homes.count("bob")) == (8, 4)  # at limit=4, and half of that


def test_of_one_owner_those_of_the_highest_priority_come_first():
    """They are let in before those that came earlier, and beside as many of a lower priority."""
    jobs = [*many(20, "ann"), *many(1, "ann", at=400.0, first=20, priority=90)]
    sim = simulation(jobs, create("gandiva"), "1x2")
    state = until(sim, 4000.0)
    assert 400.0 < state.first_start_s[20] <= 400.0 + 60.0 * 6
    assert state.service(20, 4000.0) > 1.4 * max(state.service(row, 4000.0) for row in range(20))


def test_the_order_is_by_priority():
    jobs = [
        *many(4, "ann"),
        *many(1, "ann", at=1.0, first=4),
        *many(1, "ann", at=2.0, first=5, priority=90),
    ]
    sim = simulation(jobs, create("gandiva", {"limit": "2"}), "1x2")
    state = until(sim, 2.0)
    policy = create("gandiva", {"limit": "2"})
    line = [state.spec[row].job_id for row in policy.order(View(state, 2.0, policy))]
    assert line.index("ann5") < line.index("ann4")


def test_with_one_user_there_is_nothing_to_remember():
    sim = simulation(many(12, "ann"), create("gandiva"), "1x2")
    assert "owners" not in until(sim, 1000.0).policy_mark


def test_a_job_that_never_fits_makes_no_second_user():
    jobs = [*many(12, "ann"), *many(1, "bob", gpus=3)]
    cluster = DrivenCluster(*jobs, cluster="1x2", policy=create("gandiva"))
    cluster.settle()
    assert cluster.state.reason[12] == Reason.NEVER_FITS
    assert "owners" not in cluster.state.policy_mark


@pytest.mark.parametrize("costs", [FREE, SLOW], ids=["free", "slow"])
@pytest.mark.parametrize("seed", range(2))
def test_turns_of_owners_are_those_of_whole_decisions(seed, costs):
    """Users with few and with many jobs, such that most decisions are turns alone."""

    jobs = [
        each._replace(duration_s=30 * each.duration_s, user="aaab"[row % 4])
        for row, each in enumerate(random_trace(seed, num_jobs=30))
    ]
    logs = []
    for policy in (gandiva.Gandiva, Forgetful):
        sim = simulation(trace(*jobs), policy(quantum_s=20.0), "1x8,2x2", costs)
        sim.state.log = []
        until(sim, 20_000.0)
        logs.append([repr(event).replace("Forgetful", "Gandiva") for event in sim.state.log])
    assert logs[0] == logs[1]


def test_packing_goes_on_between_users():
    """Jobs that leave half of a GPU idle are packed whoever they are of, and parts stay even."""
    jobs = [
        each._replace(model="vae", gpu_util=0.3, memory_gb=1.0)
        for each in [*many(6, "ann"), *many(2, "bob", at=100.0)]
    ]
    sim = simulation(jobs, create("gandiva", {"gpu_memory_gb": "16"}), "1x1")
    state = until(sim, 2000.0)
    assert any(mark.get("pack") for mark in state.marks if mark)
    assert "owners" in state.policy_mark


# -- what people are told ---------------------------------------------------------------------


def why(cluster, row):
    policy = cluster.policy
    view = View(cluster.state, cluster.now_s, policy)
    turns, ahead = policy.turns(view, row), policy.ahead(view, row)
    return explain(cluster.state, row, cluster.now_s, turns=turns, ahead=ahead)


def test_who_waits_for_a_turn_is_told_who_comes_first_and_why():
    cluster = DrivenCluster(*many(4, "ann"), cluster="1x2", policy=create("gandiva"))
    cluster.settle()
    cluster.happens(JobSubmitted, many(3, "bob", at=1.0)[0])
    cluster.settle()
    told = why(cluster, 3)
    assert told["reason"] == "SLICE_WAITING_TURN"
    assert "5 jobs share 2 GPUs" in told["sentence"]
    assert (
        "job bob0 comes before it, because its owner has had less of a fair share"
        in (told["sentence"])
    )
    assert "it is the next one" in why(cluster, 4)["sentence"]


def test_who_waits_for_a_place_is_told_of_the_limit_and_who_comes_first():
    policy = create("gandiva", {"limit": "2"})
    cluster = DrivenCluster(*many(6, "ann"), cluster="1x2", policy=policy)
    cluster.settle()
    told = why(cluster, 5)
    assert told["reason"] == Reason.WAIT_LIMIT.name
    assert told["sentence"].endswith(
        ": 4 jobs share 2 GPUs; job ann4 comes before it, because it came earlier"
    )
    assert [blocker["rule"] for blocker in told["blockers"]] == ["WAIT_LIMIT"]
    assert told["blockers"][0]["held_by"] == ["ann4"]
    assert told["would_start_if"].startswith("one of the jobs that take turns ended")


# -- settings -----------------------------------------------------------------------------------


def test_shares_without_owners_are_refused():
    with pytest.raises(PolicySettingError, match="no effect with fair_share=no"):
        create("gandiva", {"fair_share": "no", "shares": "ann=2"})
    with pytest.raises(PolicySettingError, match="fair_share=user or fair_share=vc"):
        create("gandiva", {"quotas": "equal", "shares": "ann=2"})
    with pytest.raises(PolicySettingError, match="there is no setting 'half_life_s'"):
        create("gandiva", {"half_life_s": "60"})


def test_beside_settings_of_every_ordering_owners_are_ranked_as_under_these():
    policy = create("gandiva", {"quotas": "equal", "fair_share": "user", "shares": "ann=2"})
    assert policy.stages.fair_share.shares == {"ann": 2.0}
    assert create("gandiva", {"quotas": "equal"}).stages.fair_share is None


def test_a_gang_has_turns_though_its_owner_has_its_part_by_a_job_of_one_gpu():
    """Ann's one job and Bob's job of one GPU use both GPUs, each an equal part."""
    jobs = [*many(1, "ann"), *many(1, "bob", gpus=2), *many(1, "bob", first=1)]
    sim = simulation(jobs, create("gandiva"), "1x2")
    state = until(sim, 6000.0)
    assert 300.0 <= state.service(1, sim.engine.now_s) <= 2000.0
    found = shares(jobs, "1x2", 600.0, 12_600.0)
    assert found["ann"] >= 0.7


def test_jobs_have_turns_on_a_node_that_another_user_could_use_alone():
    jobs = [*many(8, "ann"), *many(1, "bob", at=100.0)]
    sim = simulation(jobs, create("gandiva"), "2x1")
    state = until(sim, 12_600.0)
    assert min(state.service(row, sim.engine.now_s) for row in range(8)) >= 300.0
    assert shares(jobs, "2x1", 600.0, 12_600.0)["bob"] >= 0.75
