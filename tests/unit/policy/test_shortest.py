from rota.policy.shortest import ShortestRemaining
from rota.testing.builders import job, run


def test_a_shorter_job_takes_the_gpu_and_gives_it_back():
    jobs = [job("long", lasts=100), job("short", at=10, lasts=20)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [120.0, 30.0]
    assert list(state.preemptions) == [1, 0]


def test_equal_jobs_are_not_swapped():
    jobs = [job("a", lasts=100), job("b", at=50, lasts=50)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [100.0, 150.0]
    assert sum(state.preemptions) == 0


def test_what_counts_is_what_is_left_not_the_whole_duration():
    jobs = [job("a", lasts=100), job("b", at=95, lasts=50)]
    state, _ = run(jobs, ShortestRemaining(), "1x1")
    assert list(state.finish_s) == [100.0, 150.0]
