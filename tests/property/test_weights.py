"""Flow jobs on one GPU: whatever their needs and weights, its time is shared max-min fairly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.predict.interference import Load, speed_by_weight

loads = st.lists(
    st.builds(
        Load, st.just(""), st.floats(0.01, 1.0), st.floats(1e-3, 1e6) | st.sampled_from([1.0, 2.0])
    ),
    min_size=2,
    max_size=6,
)


@given(loads)
def test_nobody_could_have_more_without_somebody_who_has_less_by_weight_losing(jobs):
    speeds = [speed_by_weight(job, jobs[:at] + jobs[at + 1 :]) for at, job in enumerate(jobs)]
    times = [job.utilisation * speed for job, speed in zip(jobs, speeds, strict=True)]
    needed = sum(job.utilisation for job in jobs)
    assert sum(times) == pytest.approx(min(1.0, needed), rel=1e-6)
    levels = [time / job.weight for job, time in zip(jobs, times, strict=True)]
    slowed = [level for level, speed in zip(levels, speeds, strict=True) if speed < 1]
    assert all(0 < speed <= 1 for speed in speeds)
    assert slowed == pytest.approx([max(slowed, default=0)] * len(slowed), rel=1e-6)
    if slowed:
        assert max(levels) <= max(slowed) * (1 + 1e-6)
