"""Figures of fairness against their definitions, taken literally."""

from hypothesis import given
from hypothesis import strategies as st

from rota.report.fairness import jain_index, mean_active
from rota.report.history import Moment
from rota.report.sketch import course

TIMES = st.integers(0, 50)
JOBS = st.lists(st.tuples(TIMES, st.one_of(st.none(), TIMES)), min_size=1, max_size=12)


@given(JOBS)
def test_active_jobs_are_those_between_submission_and_finish(jobs):
    jobs.sort(key=lambda job: job[0])
    jobs = [(start, None if lasts is None else start + lasts) for start, lasts in jobs]
    found = mean_active(
        [float(start) for start, _ in jobs],
        [-1.0 if end is None else float(end) for _, end in jobs],
    )
    for (start, end), mean in zip(jobs, found, strict=True):
        if end is None or end == start:
            assert mean == 1.0
            continue
        by_second = [
            sum(a <= second < (101 if b is None else b) for a, b in jobs)
            for second in range(start, end)
        ]
        assert abs(mean - sum(by_second) / (end - start)) < 1e-9


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=30))
def test_jains_index_lies_between_one_over_n_and_one(shares):
    index = jain_index(shares)
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 8)), min_size=2, max_size=20),
    st.integers(1, 50),
)
def test_a_course_keeps_the_averages_over_the_whole_run(steps, points):
    moments, at_s = [], 0.0
    for length, held in steps:
        moments.append(Moment(at_s, held, held, held, 8, 0, 8 - held))
        at_s += length
    moments.append(Moment(at_s, 0, 0, 0, 8, 0, 8))
    found = course(moments, points)
    if at_s == 0:
        assert found.at_s == []
        return
    whole = sum(length * held for length, held in steps) / at_s
    assert abs(sum(found.waiting_jobs) / points - whole) < 1e-6
    assert abs(sum(found.used) / points * 8 - whole) < 1e-6
