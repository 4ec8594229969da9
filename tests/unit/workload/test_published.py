from collections import Counter

import pytest

from rota.workload.published import SHORT_S, tiresias_480


def kind(spec):
    size = "small" if spec.num_gpus <= 4 else "large"
    return f"{size}, {'short' if spec.duration_s < SHORT_S else 'long'}"


@pytest.mark.parametrize("seed", range(5))
def test_the_bins_have_the_published_shares(seed):
    counts = Counter(map(kind, tiresias_480(seed)))
    assert counts == {
        "small, short": 305,  # 63.5 %
        "small, long": 60,  # 12.5 %
        "large, short": 79,  # 16.5 %
        "large, long": 36,  # 7.5 %
    }


def test_arrivals_and_run_times_are_as_published():
    traces = [tiresias_480(seed) for seed in range(20)]
    last = [trace.jobs[-1].submit_s for trace in traces]
    assert sum(last) / len(last) == pytest.approx(480 * 30, rel=0.03)
    durations = [spec.duration_s for trace in traces for spec in trace]
    assert 120 <= min(durations) < 125
    assert 7000 < max(durations) <= 7200


def test_the_load_is_what_the_docstring_says():
    loads = []
    for seed in range(20):
        trace = tiresias_480(seed)
        gpu_s = sum(spec.num_gpus * spec.duration_s for spec in trace)
        loads.append(gpu_s / (60 * trace.jobs[-1].submit_s))
    assert sum(loads) / len(loads) == pytest.approx(1.8, abs=0.1)


def test_a_seed_gives_the_same_jobs_each_time_and_another_one_others():
    assert tiresias_480(1).jobs == tiresias_480(1).jobs
    assert tiresias_480(1).jobs != tiresias_480(2).jobs


def test_fewer_jobs_keep_the_shares():
    counts = Counter(map(kind, tiresias_480(1, num_jobs=40)))
    assert sum(counts.values()) == 40
    assert counts["small, short"] == 25
