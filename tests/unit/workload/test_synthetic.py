"""Generated load has the shape that was asked for, and the same seed gives the same bits."""

from collections import Counter
from hashlib import sha256

import pytest

from rota.errors import TraceError
from rota.workload.profiles import HOURS, MODELS, PROFILES
from rota.workload.synthetic import generate

JOBS = 50_000


@pytest.fixture(scope="module")
def philly():
    return generate("philly", num_jobs=JOBS, num_gpus=1024, load=0.8, seed=3)


def rank(values, share):
    return sorted(values)[int(share * len(values))]


def load(trace, num_gpus, span_s):
    return sum(spec.num_gpus * spec.duration_s for spec in trace) / num_gpus / span_s


def dispersion_about_the_cycle(trace, profile):
    """The variance of the arrivals in ten minutes about what hour and day expect, over the mean."""
    slots = int(trace.jobs[-1].submit_s // 600)
    counts = Counter(int(spec.submit_s // 600) for spec in trace)
    weights = [profile.days[s // 144 % 7] * HOURS[s // 6 % 24] for s in range(slots)]
    scale = sum(counts[slot] for slot in range(slots)) / sum(weights)
    expected = [weight * scale for weight in weights]
    return sum((counts[s] - expected[s]) ** 2 for s in range(slots)) / sum(expected)


def test_durations_have_the_quantiles_and_the_mean_of_the_philly_log(philly):
    durations = [spec.duration_s for spec in philly]
    published = {0.1: 61, 0.5: 1144, 0.9: 11265}
    for share, seconds in published.items():
        assert rank(durations, share) == pytest.approx(seconds, rel=0.05)
    assert sum(durations) / JOBS == pytest.approx(13136, rel=0.05)
    assert max(durations) <= 53 * 86400 + 1
    assert min(durations) >= 1


@pytest.mark.parametrize("name", PROFILES)
def test_gang_sizes_have_the_shares_of_the_table(name):
    trace = generate(name, num_jobs=JOBS, num_gpus=1024, load=0.8, seed=3)
    counts = Counter(spec.num_gpus for spec in trace)
    for size, share in PROFILES[name].gpus:
        assert counts[size] == pytest.approx(share * JOBS, rel=0.05, abs=1)


@pytest.mark.parametrize(
    ("name", "mean_s", "median_s", "mean_gpus"),
    [
        ("helios-earth", 5131, 234, 2.10),
        ("acme", 1414, 122, 5.7),
        ("pai", 4787, 481, None),
    ],
)
def test_other_profiles_have_the_published_mean_and_median(name, mean_s, median_s, mean_gpus):
    trace = generate(name, num_jobs=JOBS, num_gpus=1024, seed=5)
    durations = [spec.duration_s for spec in trace]
    assert rank(durations, 0.5) == pytest.approx(median_s, rel=0.05)
    # The tail is so heavy that some seeds miss the mean by more than 5 %.
    assert sum(durations) / JOBS == pytest.approx(mean_s, rel=0.08)
    if mean_gpus:
        assert sum(s.num_gpus for s in trace) / JOBS == pytest.approx(mean_gpus, rel=0.05)


def test_eight_gpu_jobs_hold_about_half_of_the_gpu_time_of_philly(philly):
    times = Counter()
    for spec in philly:
        times[spec.num_gpus] += spec.num_gpus * spec.duration_s
    published = {1: 0.181, 2: 0.032, 4: 0.167, 8: 0.484, 16: 0.115, 32: 0.018}
    for size, share in published.items():
        assert times[size] / times.total() == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("asked", [0.5, 0.8, 1.0, 1.2, 1.5])
def test_a_number_of_jobs_arrives_in_the_span_that_makes_the_load(asked):
    trace = generate(num_jobs=20_000, num_gpus=512, load=asked)
    assert len(trace) == 20_000
    last_s = trace.jobs[-1].submit_s
    assert load(trace, 512, last_s) == pytest.approx(asked, rel=0.05)


@pytest.mark.parametrize("asked", [0.5, 1.5])
@pytest.mark.parametrize("name", ["philly", "philly-multi", "acme"])
def test_a_span_holds_the_jobs_that_make_the_load(name, asked):
    span_s = 14 * 86400.0
    trace = generate(name, span_s=span_s, num_gpus=512, load=asked, seed=1)
    assert load(trace, 512, span_s) == pytest.approx(asked, rel=0.05)
    assert trace.jobs[-1].submit_s <= span_s


@pytest.mark.parametrize("name", ["philly", "philly-multi", "acme"])
def test_arrivals_are_fifteen_times_as_bursty_as_poisson(name):
    trace = generate(name, span_s=28 * 86400.0, num_gpus=512, load=0.8, seed=2)
    assert dispersion_about_the_cycle(trace, PROFILES[name]) == pytest.approx(15, rel=0.25)


def test_arrivals_follow_the_hour_and_the_day():
    trace = generate(span_s=56 * 86400.0, num_gpus=1024, seed=4)
    hours = Counter(int(spec.submit_s // 3600) % 24 for spec in trace)
    days = Counter(int(spec.submit_s // 86400) % 7 for spec in trace)
    assert 5 < sum(hours[h] for h in (16, 17)) / sum(hours[h] for h in (5, 6)) < 14
    shares = [days[day] / len(trace) for day in range(7)]
    assert shares == pytest.approx(PROFILES["philly"].days, abs=0.03)


def test_sweeps_are_many_equal_jobs_of_one_user_within_a_minute(philly):
    alike = Counter(
        (s.user, s.duration_s) for s in philly if s.num_gpus == 1 and s.duration_s > 600
    )
    (user, duration_s), many = alike.most_common(1)[0]
    assert 20 <= many <= 100
    times = [s.submit_s for s in philly if (s.user, s.duration_s) == (user, duration_s)]
    assert sum(abs(at_s - sorted(times)[many // 2]) <= 60 for at_s in times) >= 20


def test_models_go_by_the_gpu_time_of_the_job(philly):
    for spec in philly:
        hours = spec.num_gpus * spec.duration_s / 3600
        assert spec.model in next(models for most, models in MODELS if hours < most)


def test_every_job_has_an_owner_of_the_profile(philly):
    names = dict(PROFILES["philly"].vcs)
    assert {spec.vc for spec in philly} == set(names)
    share = sum(spec.vc == "vc0" for spec in philly) / JOBS
    assert share == pytest.approx(0.5, abs=0.05)
    assert all(spec.user.startswith(spec.vc + "-u") for spec in philly)


def test_the_same_arguments_give_the_same_bits_on_every_machine():
    trace = generate("philly", num_jobs=500, num_gpus=64, seed=7)
    assert list(trace) == list(generate("philly", num_jobs=500, num_gpus=64, seed=7))
    assert list(trace) != list(generate("philly", num_jobs=500, num_gpus=64, seed=8))
    text = repr([(s.job_id, s.num_gpus, s.submit_s, s.duration_s, s.vc) for s in trace])
    assert sha256(text.encode()).hexdigest()[:16] == "acf46e0894700efc"


def test_another_load_moves_the_arrivals_of_the_same_jobs():
    low, high = (generate(num_jobs=2000, num_gpus=64, load=x) for x in (0.5, 1.5))
    work = [sorted((s.num_gpus, s.duration_s) for s in trace) for trace in (low, high)]
    assert work[0] == work[1]
    assert low.jobs[-1].submit_s > 2.5 * high.jobs[-1].submit_s


def test_gangs_that_do_not_fit_are_left_out_and_said_to_be():
    trace = generate("acme", num_jobs=5000, num_gpus=16)
    assert max(spec.num_gpus for spec in trace) == 16
    assert trace.notes == ["gangs of more than 16 GPUs are left out"]


def test_a_span_too_short_for_the_load_still_has_a_job():
    assert len(generate("philly", span_s=1.0, num_gpus=1)) == 1
    assert len(generate("philly", num_jobs=1, num_gpus=1)) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_gpus": 8}, "either num_jobs or span_s"),
        ({"num_gpus": 8, "num_jobs": 5, "span_s": 5}, "either num_jobs or span_s"),
        ({"profile": "phily", "num_gpus": 8, "num_jobs": 5}, "did you mean 'philly'"),
        ({"num_gpus": 0, "num_jobs": 5}, "num_gpus is 0"),
        ({"num_gpus": 8, "num_jobs": 0}, "num_jobs is 0"),
        ({"num_gpus": 8, "span_s": float("nan")}, "span_s is nan"),
        ({"num_gpus": 8, "num_jobs": 5, "load": 0}, "load is 0"),
        ({"num_gpus": 8, "num_jobs": 5, "load": float("inf")}, "load is inf"),
        ({"num_gpus": 64, "num_jobs": 10, "load": 1e308}, "load is 1e.308; it must be from"),
        ({"num_gpus": 64, "num_jobs": 10, "load": 1e-320}, "it must be from 0.000001 to 1,000,000"),
        ({"num_gpus": 8, "span_s": 1e-300}, "span_s is 1e-300; it must be from 1 s to ten years"),
        ({"num_gpus": 1, "num_jobs": 500_000, "load": 0.1}, "more GPUs, fewer jobs"),
        ({"num_gpus": 1_000_000, "span_s": 3e8}, "shorter span or fewer GPUs"),
    ],
)
def test_what_cannot_be_generated_is_refused_with_the_fix(arguments, says):
    with pytest.raises(TraceError, match=says):
        generate(**arguments)
