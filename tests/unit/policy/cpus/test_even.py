"""CPU cores shared out by GPUs, under any policy."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import PolicySettingError
from rota.model.allocation import of_parts, on_node, shared_on_node
from rota.model.cluster import Node
from rota.model.decide.decision import Decider
from rota.model.events import JobFinished, JobSubmitted, NodeLost, joined
from rota.model.job import JobState
from rota.model.state.state import ClusterState
from rota.policy.base import Policy, Setting
from rota.policy.cpus.even import Equal, Proportional, level
from rota.policy.cpus.stage import Resident
from rota.policy.registry import again, create
from rota.testing.builders import job
from support.places import Places


class Cluster:
    """Nodes of 4 GPUs with 24 and 12 cores; jobs of so many GPUs each."""

    def __init__(self, stage, *gpus, cores=(24, 12), bounds=None):
        self.state, self.policy, self.now_s = ClusterState(keep_stories=False), Places(stage), 0.0
        for index, count in enumerate(cores):
            node = Node(f"n{index}", 4, millicores=1000 * count)
            self.state.apply(joined(0.0, node))
        for row, count in enumerate(gpus):
            spec = job(row, count, cpus_per_gpu=(bounds or {}).get(row))
            self.state.apply(JobSubmitted(0.0, spec))
        self.decider = Decider(self.state, self.policy)

    def decide(self, **places):
        """The cores of every job after a decision with these changes: ``j0=ALLOCATION``."""
        self.policy.changes = {int(name[1:]): place for name, place in places.items()}
        self.now_s += 1.0
        self.decider.decide(self.now_s)
        return self.state.target_cpus


def test_all_cores_of_a_node_go_evenly_to_the_gpus_in_use():
    cluster = Cluster(Equal(), 1, 2, 1)
    assert cluster.decide(j0=on_node(0, 0b1)) == {0: 24000}
    assert cluster.decide(j1=on_node(0, 0b110)) == {0: 8000, 1: 16000}
    assert cluster.decide(j2=on_node(1, 0b1)) == {0: 8000, 1: 16000, 2: 12000}
    assert cluster.decide(j0=None) == {1: 24000, 2: 12000}


def test_the_static_share_of_a_gpu_is_its_part_of_the_node():
    cluster = Cluster(Proportional(), 1, 2)
    assert cluster.decide(j0=on_node(0, 0b1)) == {0: 6000}
    assert cluster.decide(j1=on_node(0, 0b110)) == {0: 6000, 1: 12000}
    assert cluster.decide(j1=None) == {0: 6000}


def test_cores_of_a_job_that_ends_go_to_the_others():
    cluster = Cluster(Equal(), 1, 1)
    cluster.decide(j0=on_node(0, 0b1), j1=on_node(0, 0b10))
    cluster.state.apply(JobFinished(2.0, 0, JobState.SUCCEEDED))
    assert cluster.decide() == {1: 24000}


def test_a_gang_on_two_nodes_gets_what_the_poorer_has_for_a_gpu():
    cluster = Cluster(Equal(), 3, 1)
    both = of_parts([(0, 0b11), (1, 0b1)])
    assert cluster.decide(j0=both) == {0: 36000}
    assert cluster.decide(j1=on_node(1, 0b10)) == {0: 18000, 1: 6000}


def test_jobs_that_share_a_gpu_share_its_cores():
    cluster = Cluster(Equal(), 1, 1, 1)
    found = cluster.decide(
        j0=shared_on_node(0, 0b1), j1=shared_on_node(0, 0b1), j2=on_node(0, 0b10)
    )
    assert found == {0: 6000, 1: 6000, 2: 12000}


def test_a_job_keeps_within_its_own_bounds():
    cluster = Cluster(Equal(), 1, 1, 2, bounds={0: (1, 2), 2: (8, 8)})
    found = cluster.decide(j0=on_node(0, 1), j1=on_node(0, 2), j2=on_node(0, 12))
    assert found == {0: 2000, 1: 6000, 2: 16000}


def test_jobs_on_nodes_whose_cores_are_unknown_are_held_to_none():
    cluster = Cluster(Equal(), 1, 2, cores=(24, 0))
    both = of_parts([(0, 0b10), (1, 0b1)])
    assert cluster.decide(j0=on_node(0, 0b1), j1=both) == {0: 12000}


def test_a_node_that_comes_back_with_fewer_cores_shares_out_those():
    cluster = Cluster(Equal(), 1, 1)
    cluster.decide(j0=on_node(0, 0b1), j1=on_node(1, 0b1))
    cluster.state.apply(NodeLost(1.5, "n0"))
    assert cluster.decide(j0=None) == {1: 12000}
    cluster.state.apply(joined(2.5, Node("n0", 4, millicores=3000)))
    assert cluster.decide(j0=on_node(0, 0b1)) == {0: 3000, 1: 12000}


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=8
    ),
    st.integers(1, 64),
    st.sampled_from([inf, 3000.0]),
)
def test_levels_are_within_bounds_and_use_what_they_can(jobs, cores, most):
    residents = [
        Resident(row, float(gpus), 1000.0 * least, 1000.0 * (least + more))
        for row, (gpus, least, more) in enumerate(jobs)
    ]
    millicores = 1000.0 * cores
    shares = level(residents, millicores, most)
    total, floors = sum(shares.values()), sum(each.least for each in residents)
    assert total <= millicores + 1e-6
    if floors >= millicores:
        assert total == pytest.approx(millicores)
        return
    level_of = {each.row: shares[each.row] / each.gpus for each in residents}
    free = [r for r in residents if r.least + 1e-6 < shares[r.row] < r.most - 1e-6]
    for each in residents:
        assert each.least - 1e-6 <= shares[each.row] <= each.most + 1e-6
    for one in free:
        assert level_of[one.row] == pytest.approx(level_of[free[0].row])
        assert level_of[one.row] <= most + 1e-6
        if level_of[one.row] < most - 1e-6:
            assert total == pytest.approx(millicores)


def test_any_policy_takes_the_settings_and_only_others_than_the_default_are_named():
    assert create("max-min-fairness", {"cpus": "off"}).cpus is None
    policy = create("gandiva", {"cpus": "equal", "pack": "on", "cpu_period_s": "60"})
    assert isinstance(policy.cpus, Equal)
    assert policy.cpus.period_s == 60.0
    assert policy.stages is create("gandiva").stages
    assert "cpu_period_s=60.0 cpus=equal" in policy.identity
    assert policy.settings["cpus"] == "equal"
    twin = again(policy)
    assert isinstance(twin.cpus, Equal)
    assert twin.cpus is not policy.cpus
    assert (twin.cpus.period_s, twin.identity) == (60.0, policy.identity)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"cpus": "some"}, "cpus='some' can't be used: it must be one of off, equal"),
        ({"cpu_floor": "none"}, "cpu_floor=none has no effect without cpus; give cpus too"),
        ({"cpus": "off", "cpu_period_s": "60"}, "cpu_period_s=60.0 has no effect without cpus"),
        ({"cpus": "equal", "cpu_period_s": "0"}, "cpu_period_s='0' can't be used"),
    ],
)
def test_settings_that_can_not_be_used_are_refused(given, what):
    with pytest.raises(PolicySettingError, match=what):
        create("pollux", given)


def test_a_policys_own_setting_of_the_same_name_stays_its_own(monkeypatch):
    class Theirs(Policy):
        SETTINGS = {"cpus": Setting(int, 1, "Its own.")}

        def __init__(self, cpus):
            self.mine = cpus

    monkeypatch.setattr("rota.policy.registry.policy_class", lambda name: Theirs)
    policy = create("theirs", {"cpus": "7"})
    assert (policy.mine, policy.cpus) == (7, None)


def test_a_node_with_fewer_cores_than_jobs_may_count_on_is_not_given_away_twice():
    """Its cores may become fewer at any time; a job without a wish keeps a thousandth."""
    cluster = Cluster(Equal(), 1, 1, cores=(1,), bounds={0: (1, 2)})
    given = cluster.decide(j0=on_node(0, 0b1), j1=on_node(0, 0b10))
    assert sum(given.values()) <= 1000
    assert min(given.values()) >= 1
