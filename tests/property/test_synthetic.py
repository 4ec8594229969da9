"""Whatever is asked of the generator, what comes is what was asked for, or an error."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.errors import TraceError
from rota.workload.profiles import PROFILES
from rota.workload.synthetic import generate


@given(
    profile=st.sampled_from(list(PROFILES)),
    num_jobs=st.integers(1, 400),
    num_gpus=st.integers(1, 5000),
    load=st.floats(0.01, 100) | st.floats(1e-6, 1e6),
    seed=st.integers(-5, 1 << 40),
)
@settings(max_examples=60, deadline=None)
def test_so_many_jobs_come_that_fit_in_order_and_at_the_load(
    profile, num_jobs, num_gpus, load, seed
):
    arguments = {"num_jobs": num_jobs, "num_gpus": num_gpus, "load": load, "seed": seed}
    try:
        trace = generate(profile, **arguments)
    except TraceError as error:
        assert "ten is the most" in str(error)
        return
    assert len(trace) == num_jobs
    assert [spec.job_id for spec in trace] == [str(row) for row in range(num_jobs)]
    assert all(1 <= spec.num_gpus <= num_gpus for spec in trace)
    assert all(1 <= spec.duration_s <= 53 * 86400 + 1 for spec in trace)
    times = [spec.submit_s for spec in trace]
    assert times == sorted(times)
    span_s = sum(spec.num_gpus * spec.duration_s for spec in trace) / num_gpus / load
    assert times[0] >= 0 and times[-1] <= span_s
    assert list(generate(profile, **arguments)) == list(trace)


@given(number=st.floats(), asked=st.sampled_from([{"num_jobs": 9}, {"span_s": 600.0}]))
@example(1e308, {"num_jobs": 9})
@example(5e-324, {"num_jobs": 9})
@settings(max_examples=60, deadline=None)
def test_no_number_is_too_odd_for_an_answer(number, asked):
    for given_ in ({**asked, "load": number}, {"span_s": number, "load": 1e-4}):
        try:
            trace = generate(num_gpus=4, **given_)
        except TraceError as error:
            assert f"{number}"[:3] in str(error) or "years" in str(error)
        else:
            assert all(0 <= spec.submit_s <= 10 * 365 * 86400 for spec in trace)


@given(
    profile=st.sampled_from(list(PROFILES)),
    span_s=st.floats(1, 86400.0),
    num_gpus=st.integers(1, 300),
    load=st.floats(0.1, 3) | st.floats(1e-6, 3),
)
@settings(max_examples=40, deadline=None)
def test_a_span_is_never_asked_for_more_than_the_load_but_for_one_job(
    profile, span_s, num_gpus, load
):
    trace = generate(profile, span_s=span_s, num_gpus=num_gpus, load=load)
    asked = sum(spec.num_gpus * spec.duration_s for spec in trace)
    assert len(trace) == 1 or asked <= load * num_gpus * span_s * (1 + 1e-9)
    assert 0 <= trace.jobs[0].submit_s <= trace.jobs[-1].submit_s <= span_s
