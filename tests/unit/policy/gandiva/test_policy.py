import pytest

from rota.policy.registry import create
from rota.report.metrics import mean
from rota.sim.machine import FREE, Costs
from rota.testing.builders import job, run, simulation

DAY = 86400.0
SWITCH = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=0.0, cold_start_s=0.25)


def service_at(until_s, jobs, cluster="1x4", costs=FREE, **settings):
    """Each job's run time up to a time."""
    sim = simulation(jobs, create("gandiva", settings), cluster, costs)
    while (
        min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= until_s
    ):
        sim.step()
    return [sim.state.service(row, until_s) for row in range(len(sim.state.spec))]


def test_six_jobs_on_four_gpus_have_two_thirds_of_one_each():
    jobs = [job(i, lasts=DAY) for i in range(6)]
    after_18_min = service_at(1080.0, jobs, costs=SWITCH)
    assert after_18_min == pytest.approx([720.0] * 6, abs=60.0)
    assert after_18_min == pytest.approx([720.0] * 6, rel=0.01)
    assert sum(after_18_min) / 1080.0 >= 0.98 * 4


def test_jobs_that_fit_together_are_never_interrupted():
    sim = simulation([job(i, lasts=500) for i in range(4)], create("gandiva"), "1x4")
    state = sim.run().state
    assert sum(state.preemptions) == 0
    assert list(state.finish_s) == [500.0] * 4


def test_turns_are_in_proportion_to_priority():
    jobs = [job(0, lasts=DAY, priority=75), job(1, lasts=DAY, priority=25)]
    first, second = service_at(60.0 * 400, jobs, "1x1")
    assert first / second == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("priority", [3, 50, 70, 90])
def test_jobs_that_had_the_same_per_priority_are_in_order_of_arrival(priority):
    jobs = [
        job("old", 8, lasts=777, priority=priority),
        job("new", 8, at=60, lasts=60, priority=priority),
    ]
    state, _ = run(jobs, create("gandiva", {"quantum_s": "30"}), "1x8")
    # new starts level with old, which is first therefore: 30 s for old, then turns for new.
    assert list(state.finish_s) == [837.0, 180.0]


def test_jobs_of_unlike_priority_that_had_the_same_per_priority_are_in_order_of_arrival():
    jobs = [job("a", lasts=DAY, priority=70), job("b", lasts=DAY, priority=10)]
    # 0-70 a; b at its first turn has 10 s for each 70 s of a: then they are level, and a is first.
    assert service_at(80.0, jobs, "1x1", quantum_s="10") == [70.0, 10.0]
    assert service_at(90.0, jobs, "1x1", quantum_s="10") == [80.0, 10.0]


def test_gangs_take_turns_whole():
    jobs = [job("wide", 4, lasts=DAY), *(job(f"x{i}", lasts=DAY) for i in range(4))]
    wide, *narrow = service_at(60.0 * 100, jobs)
    assert wide == pytest.approx(3000.0, rel=0.03)
    assert narrow == pytest.approx([3000.0] * 4, rel=0.03)


def test_a_gang_takes_the_turn_of_a_single_job_where_a_gpu_would_be_idle():
    """Three single jobs and a gang of two on four GPUs: one of the three makes way, in turn."""
    jobs = [job("wide", 2, lasts=DAY), *(job(f"x{i}", lasts=DAY) for i in range(3))]
    wide, *narrow = service_at(60.0 * 100, jobs)
    assert 2 * wide + sum(narrow) >= 0.9 * 4 * 6000.0
    # The gang may be ahead by the turns that were to be had beside it, by half a turn at first.
    assert narrow == pytest.approx([wide] * 3, rel=0.03)


def test_single_jobs_are_not_starved_by_a_gang_that_needs_all_of_the_node():
    jobs = [job("wide", 4, lasts=DAY), *(job(f"x{i}", lasts=DAY) for i in range(3))]
    wide, *narrow = service_at(60.0 * 100, jobs)
    assert [wide, *narrow] == pytest.approx([3000.0] * 4, rel=0.03)


def test_a_newcomer_neither_shuts_the_others_out_nor_waits_for_their_history():
    jobs = [*(job(i, lasts=DAY) for i in range(4)), job(9, at=7200.0, lasts=DAY)]
    before = service_at(7200.0, jobs)
    after = service_at(7200.0 + 60 * 100, jobs)
    assert before[:4] == [7200.0] * 4
    gained = [late - early for late, early in zip(after, [*before[:4], 0.0], strict=True)]
    assert gained == pytest.approx([4800.0] * 5, rel=0.03)


def test_gpus_that_become_free_within_a_round_are_used_at_once():
    jobs = [job(0, lasts=10), *(job(i, lasts=DAY) for i in range(1, 5))]
    sim = simulation(jobs, create("gandiva"), "1x4")
    while sim.engine.now_s < 10.0:
        sim.step()
    assert sim.state.first_start_s[4] == 10.0


def test_the_quantum_is_a_setting():
    jobs = [job(0, lasts=DAY), job(1, lasts=DAY)]
    assert service_at(45.0, jobs, "1x1", quantum_s="15") == [30.0, 15.0]


def test_slicing_brings_first_results_far_earlier_than_running_to_completion():
    def average_first_start(policy):
        jobs = [job(i, lasts=8 * 3600.0) for i in range(8)]
        state = simulation(jobs, create(policy), "1x4", SWITCH).run().state
        return mean(state.first_start_s)

    assert average_first_start("gandiva") <= 60.0
    assert average_first_start("fifo") >= 4 * 3600.0


def first_100_s(policy):
    """When each of eight jobs of 8 h on four GPUs has done its first minute of work (G9)."""
    sim = simulation([job(i, lasts=8 * 3600.0) for i in range(8)], create(policy), "1x4", SWITCH)
    state, done = sim.state, dict[int, float]()
    while len(done) < 8 and sim.step():
        now_s = sim.engine.now_s
        for row in range(8):
            if row not in done and state.work(row, now_s) >= HUNDRED_S - 1:
                done[row] = now_s - (state.work(row, now_s) - HUNDRED_S)
    return mean(done.values())


HUNDRED_S = 60.0  # for 100 mini-batches


def test_the_first_hundred_mini_batches_come_within_three_minutes_not_after_hours():
    assert first_100_s("fifo") == pytest.approx(4 * 3600.0 + HUNDRED_S, rel=0.01)
    assert first_100_s("gandiva") <= 60.0 + 2 * HUNDRED_S
