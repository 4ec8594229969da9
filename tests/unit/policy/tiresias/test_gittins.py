"""The order inside the queues of tiresias-gittins, and where its distribution comes from."""

import pytest

from rota.errors import PolicySettingError
from rota.model.events import NodeJoined, NodeLost
from rota.policy.registry import create
from rota.policy.tiresias.gittins import TiresiasGittins
from rota.policy.tiresias.policy import Tiresias
from rota.testing.builders import job, random_trace, run, simulation, toy_trio

OFF = {"promote_knob": "0"}
# Half of all jobs are short: who has run for longer than those will go on for long.
HEAVY = "100,100,100,100,10000,10000"
# All jobs are equally large: who has run for longest has the least to go.
EQUAL = "300,300,300"


def gittins(**settings):
    return create("tiresias-gittins", OFF | settings)


def finishes(jobs, policy, cluster="1x1"):
    state, _ = run(jobs, policy, cluster)
    return {spec.job_id: state.finish_s[row] for row, spec in enumerate(state.spec)}


@pytest.mark.parametrize("thresholds", ["4", "4,8"])
def test_the_worked_example_of_three_jobs(thresholds):
    state, _ = run(toy_trio(), gittins(thresholds=thresholds, distribution="4,8,12"), "1x2")
    assert list(state.finish_s) == [2.0, 12.0, 16.0]


@pytest.mark.parametrize(
    ("distribution", "first"), [(HEAVY, "new"), (EQUAL, "ahead")], ids=["heavy tail", "equal"]
)
def test_among_waiting_jobs_of_a_queue_the_higher_index_goes_first(distribution, first):
    policy = gittins(thresholds="200", distribution=distribution)
    sim = simulation([job("ahead", lasts=250), job("new", lasts=250)], policy, "1x1")
    sim.step()
    sim.engine.now_s = 150.0
    sim.state.apply(NodeLost(150.0, "node0"))  # `ahead` had 150 of 200 GPU-seconds
    sim.step()
    sim.state.apply(NodeJoined(150.0, "node0", 1))
    sim.step()
    assert [sim.state.spec[row].job_id for row in (0, 1) if sim.state.target[row]] == [first]


def test_a_job_that_has_gpus_keeps_them_until_it_reaches_the_threshold():
    # With progress its index falls below that of the newcomer, at once and all the time.
    jobs = [job("old", lasts=250), job("new", at=1, lasts=250)]
    state, _ = run(jobs, gittins(thresholds="200", distribution=HEAVY), "1x1")
    assert state.first_start_s[1] == 200.0
    assert list(state.preemptions) == [1, 1]


@pytest.mark.parametrize(
    ("distribution", "first"),
    [("350,350", "ahead"), ("120,120,9000", "behind")],
    ids=["equal", "heavy tail"],
)
def test_each_queue_ranks_for_a_grant_of_its_own_threshold(distribution, first):
    # Both sink at 100, and `ahead` goes on at 200, until a newcomer puts it out from 250 to 260.
    # Then it has 150 and `behind` 100 of the 300 of the second queue.
    jobs = [job("ahead", lasts=290), job("behind", lasts=290), job("new", at=250, lasts=10)]
    finish_s = finishes(jobs, gittins(thresholds="100,300", distribution=distribution))
    ended_first = min(("ahead", "behind"), key=finish_s.__getitem__)
    assert ended_first == first


def test_the_last_queue_is_first_in_first_out():
    settings = {"thresholds": "100", "distribution": HEAVY}
    for seed in range(3):
        jobs = [spec._replace(num_gpus=1, submit_s=0.0) for spec in random_trace(seed)]
        plain = finishes(jobs, create("tiresias", OFF | {"thresholds": "100"}))
        assert finishes(jobs, gittins(**settings)) == plain


def test_a_heavy_tail_does_not_make_it_thrash():
    pairs = []
    for seed in range(6):
        jobs = random_trace(seed, num_jobs=60)
        sizes = ",".join(f"{spec.duration_s * spec.num_gpus}" for spec in jobs)
        plain, _ = run(jobs, create("tiresias", OFF | {"thresholds": "100,400"}), "1x8")
        ranked, _ = run(jobs, gittins(thresholds="100,400", distribution=sizes), "1x8")
        pairs.append((sum(ranked.preemptions), sum(plain.preemptions)))
    assert sum(ours for ours, _ in pairs) <= 1.1 * sum(las for _, las in pairs), pairs


# -- where the sizes come from ---------------------------------------------------------------------


class Counted(TiresiasGittins):
    """Notes how many sizes each arrangement was made with."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.used = []

    def _learn(self, view):
        gittins = super()._learn(view)
        self.used.append((len(view.completed_gpu_s), len(gittins) if gittins else 0))
        return gittins


def test_sizes_are_learned_from_the_jobs_that_ended_once_there_are_enough():
    policy = Counted(thresholds=(100.0, 400.0), promote_knob=0.0, min_samples=7)
    state, _ = run(random_trace(1), policy, "1x8")
    assert list(state.completed_gpu_s)
    assert {used for ended, used in policy.used if ended < 7} == {0}
    later = [(ended, used) for ended, used in policy.used if ended >= 7]
    assert later
    assert all(ended == used for ended, used in later), "each counts while they are few"


def test_a_large_sample_is_renewed_by_a_sixteenth_at_a_time():
    jobs = [job(i, at=i, lasts=1 + i % 7) for i in range(300)]
    policy = Counted(thresholds=(2.0,), promote_knob=0.0)
    run(jobs, policy, "1x2")
    sizes = sorted({used for _, used in policy.used if used > 64})
    assert len(sizes) <= 16 * 3
    assert all(15 / 16 * ended < used <= ended for ended, used in policy.used if ended >= 16)


def test_until_then_the_order_is_that_of_plain_tiresias():
    for seed in range(3):
        jobs = random_trace(seed)
        plain, _ = run(jobs, create("tiresias", {"thresholds": "100"}), "1x8")
        learning = create("tiresias-gittins", {"thresholds": "100", "min_samples": "1000"})
        learned, _ = run(jobs, learning, "1x8")
        assert learned.finish_s == plain.finish_s


def test_a_distribution_from_a_file_is_that_of_the_same_numbers(tmp_path):
    file = tmp_path / "sizes.csv"
    file.write_text("gpu_s\n" + HEAVY.replace(",", "\n"))
    policy = gittins(thresholds="100,400", distribution=str(file))
    assert str(file) in policy.identity
    jobs = random_trace(3)
    inline = gittins(thresholds="100,400", distribution=HEAVY)
    assert run(jobs, policy, "1x8")[0].finish_s == run(jobs, inline, "1x8")[0].finish_s


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("distribution", "no/such.csv", "No such file.*one a line"),
        ("distribution", "4,-8", "'-8' must be GPU-seconds"),
        ("distribution", "", "give a file"),
        ("min_samples", "0", "whole number from 1"),
        ("min_samples", "many", "min_samples='many'"),
        ("thresholds", "8,4", "thresholds must rise"),
        ("within", "entry", "no setting 'within'"),
    ],
)
def test_a_setting_that_can_not_be_used_is_refused(key, text, told):
    with pytest.raises(PolicySettingError, match=told):
        create("tiresias-gittins", {key: text})


def test_with_one_threshold_the_order_is_that_of_plain_tiresias():
    for seed in range(3):
        jobs = random_trace(seed)
        plain, _ = run(jobs, create("tiresias", OFF | {"thresholds": "100"}), "1x8")
        ranked, _ = run(jobs, gittins(thresholds="100", distribution=HEAVY), "1x8")
        assert ranked.finish_s == plain.finish_s


def test_by_default_there_is_a_queue_between_the_first_and_the_last():
    policy = create("tiresias-gittins")
    assert isinstance(policy, Tiresias)
    assert (policy.thresholds, policy.promote_knob) == ((3250.0, 7200.0), 8.0)
    assert str(policy.settings["distribution"]) == "learned"
