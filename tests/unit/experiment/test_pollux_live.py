"""The figures of trainings on two slots, from the times that they took."""

from contextlib import nullcontext

import pytest

from rota.experiment import pollux_live
from rota.experiment.pollux_live import TRAININGS, Run, figures_of


def course(*times_s, **changes):
    counts = {"resizes": 0, "retunes": 0, "preemptions": 0} | changes
    return Run(dict(zip((each.name for each in TRAININGS), times_s, strict=True)), **counts)


def test_figures_are_medians_over_seeds_beside_the_static_split():
    static = [course(20.0, 20.0, 40.0), course(22.0, 18.0, 44.0)]
    ours = [course(10.0, 12.0, 18.0, resizes=2, retunes=5), course(14.0, 10.0, 16.0, preemptions=1)]
    found = {figure.name: figure for figure in figures_of(static, ours)}
    first = found["latency-bound: time to target"]
    assert (first.baseline, first.ours, first.least, first.most) == (21.0, 12.0, 10.0, 14.0)
    gain = found["static over goodput"]
    assert (gain.least, gain.most) == (pytest.approx(2.0), pytest.approx(2.1))
    assert gain.ok
    assert found["changes of size"].ours == 1.0
    assert found["changes of batch alone"].ours == 2.5
    assert found["preemptions"].ours == 0.5


def test_sizes_that_bring_little_do_not_hold():
    static, ours = [course(20.0, 20.0, 40.0)], [course(19.0, 20.0, 33.0)]
    (gain,) = [f for f in figures_of(static, ours) if f.judged]
    assert not gain.ok


def test_the_settings_tell_what_policies_with_them_are_told_of_lengths(monkeypatch):
    monkeypatch.setattr(pollux_live, "cluster", lambda *args, **more: nullcontext())
    monkeypatch.setattr(pollux_live, "_runs", lambda *args: [course(20.0, 20.0, 40.0)])
    assert pollux_live.run().settings["information"] == {"pollux": "none", "fifo": "none"}
