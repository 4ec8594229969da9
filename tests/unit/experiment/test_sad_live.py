"""The figures of trainings on two cores, from the speeds that they had."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from rota.experiment import sad_live
from rota.experiment.sad_live import EQUAL, OFF, SAD, TRAININGS, Run, figures_of, kept_of


def speeds(*each):
    return dict(zip(TRAININGS, each, strict=True))


EVEN = Run(speeds(5.0, 5.0, 2.0, 2.0), speeds(4.0, 4.0, 2.0, 2.0), speeds(0.5, 0.5, 0.5, 0.5))
APPORTIONED = Run(
    speeds(8.0, 9.0, 2.0, 1.9), speeds(7.6, 8.8, 2.0, 1.9), speeds(0.9, 0.9, 0.1, 0.1)
)
FREE = Run(speeds(8.0, 8.0, 2.0, 2.0), speeds(1.0, 4.0, 2.0, 2.0), {})


def test_speeds_are_held_against_an_even_split_of_the_same_repeat():
    slower = Run({name: speed / 2 for name, speed in EVEN.alone.items()}, EVEN.beside, EVEN.cores)
    halved = APPORTIONED._replace(
        alone={name: speed / 2 for name, speed in APPORTIONED.alone.items()}
    )
    runs = {SAD: [APPORTIONED, halved], EQUAL: [EVEN, slower], OFF: [FREE, FREE]}
    found = {figure.name: figure for figure in figures_of(runs)}
    gain = found["mean speed over equal, sad"]
    assert gain.least == gain.most == pytest.approx((1.6 + 1.8 + 1.0 + 0.95) / 4)
    assert gain.ok
    assert found["loader-1: cores, sad"].ours == 0.9


def test_the_slowest_beside_a_fifth_job_is_judged():
    assert kept_of(FREE) == 0.125
    runs = {SAD: [APPORTIONED], EQUAL: [EVEN], OFF: [FREE]}
    found = {figure.name: figure for figure in figures_of(runs)}
    kept = found["kept by the slowest beside a fifth, sad"]
    assert (kept.ours, kept.ok) == (pytest.approx(0.95), True)
    assert not found["kept by the slowest beside a fifth, off"].judged
    judged = [f.ok for f in figures_of(runs | {SAD: [EVEN]}) if f.judged]
    assert judged == [False, False]


def test_ways_take_turns_and_each_comes_first_in_turn(monkeypatch):
    taken = []

    def cluster(home, **_):
        node = {"cores_held_by": "affinity"}
        return nullcontext(SimpleNamespace(way=home.name, nodes=lambda: [node]))

    def one_run(client, folder):
        taken.append(client.way)
        return APPORTIONED if client.way == SAD else EVEN

    monkeypatch.setattr(sad_live, "cluster", cluster)
    monkeypatch.setattr(sad_live, "_learn", lambda *_, **__: None)
    monkeypatch.setattr(sad_live, "_run", one_run)
    outcome = sad_live.run()
    assert outcome.settings["held_by"] == "affinity"
    assert outcome.holds
    rounds = [taken[i : i + 3] for i in range(0, len(taken), 3)]
    assert all(set(each) == {SAD, EQUAL, OFF} for each in rounds)
    assert {each[0] for each in rounds} == {SAD, EQUAL, OFF}
