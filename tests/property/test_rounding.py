"""What is one instant on paper is one in the simulator, in fractions of a second too."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.policy.base import to_instant
from rota.policy.registry import create
from rota.testing.builders import job, run

# Every policy with settings in seconds, or GPU-seconds, for the scale 1.
SCALED = {
    "fifo": {},
    "fifo-backfill": {},
    "smallest-first": {},
    "srtf": {},
    "srsf": {},
    "las": {"quantum_s": 30},
    "round-robin": {"quantum_s": 30},
    "gandiva": {"quantum_s": 30, "pass_s": 300},
    "tiresias": {"thresholds": 60, "promote_knob": 0},
    "tiresias-gittins": {"thresholds": 120, "promote_knob": 2, "distribution": 600},
}
UNSCALED = {"promote_knob"}
JOBS = st.lists(
    st.tuples(
        st.integers(0, 10).map(lambda n: 6 * n),
        st.sampled_from([0, 6, 12, 30, 60, 90, 201, 777]),
        st.sampled_from([1, 2, 3, 4]),
    ),
    min_size=1,
    max_size=12,
).map(tuple)


def finishes(name, jobs, parts):
    """When the jobs end, and preemptions, all seconds being ``parts`` to the second."""
    specs = [
        job(f"{i:02}", gpus, at=at / parts, lasts=lasts / parts)
        for i, (at, lasts, gpus) in enumerate(jobs)
    ]
    given = {
        key: str(value if key in UNSCALED else value / parts) for key, value in SCALED[name].items()
    }
    state, _ = run(specs, create(name, given), "1x4")
    return list(state.finish_s), sum(state.preemptions)


@pytest.mark.parametrize("parts", [10, 1000])
@pytest.mark.parametrize("name", SCALED)
@given(jobs=JOBS)
@example(jobs=((5, 60, 3), (6, 1, 2), (66, 200, 2)))
@settings(max_examples=40, deadline=None)
def test_a_trace_in_fractions_of_a_second_is_the_one_in_seconds_scaled(name, parts, jobs):
    whole, preemptions = finishes(name, jobs, 1)
    scaled, same = finishes(name, jobs, parts)
    assert scaled == pytest.approx([at / parts for at in whole], abs=1e-6)
    assert same == preemptions


@given(st.integers(0, 10**15))
def test_rounding_leaves_times_given_to_the_microsecond_as_they_are(micros):
    assert to_instant(micros / 1e6) == micros / 1e6
    assert to_instant(float("inf")) == float("inf")
