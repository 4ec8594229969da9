"""What Gandiva learns of kinds of jobs from its trials, and what it does with that."""

import pytest

from rota.model.cluster import parse_cluster
from rota.model.view import View
from rota.policy.gandiva.signatures import MOST_KNOWN, SignatureGains
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import FREE
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace

DAY = 86400.0


def sim_of(jobs, cluster, pairs, **settings):
    policy = create("gandiva", settings)
    interference = Interference(pairs)
    return Simulation(trace(*jobs), parse_cluster(cluster), policy, FREE, interference=interference)


def until(sim, at_s):
    while min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= at_s:
        sim.step()
        sim.state.validate()
    return sim


def idle_job(name, model, at=0.0, lasts=DAY):
    return job(name, at=at, lasts=lasts)._replace(model=model, gpu_util=0.4)


def trials(sim, row):
    return [list(probe[:5]) for probe in sim.state.notes.probes.get(row, [])]


def test_measurements_of_the_same_kinds_are_averaged_in_any_order():
    gains = SignatureGains({})
    gains.learn(["a", "b"], 1.2)
    gains.learn(["b", "a"], 1.6)
    assert SignatureGains(gains.mark()).gain(["a", "b"]) == pytest.approx(1.4)
    assert gains.gain(["a"]) is None
    assert gains.gain(["a", "b", "b"]) is None


def test_one_bad_result_may_be_chance_and_two_are_not():
    gains = SignatureGains({})
    gains.learn(["a", "b"], 0.9)
    assert not gains.is_sure(["a", "b"])
    gains.learn(["a", "b"], 0.8)
    assert gains.is_sure(["b", "a"])


def test_nothing_is_learned_of_jobs_without_a_kind():
    gains = SignatureGains({})
    gains.learn(["a", ""], 1.5)
    assert gains.mark() == {}
    assert gains.gain(["", "a"]) is None


def test_what_was_measured_on_one_gpu_type_is_not_taken_for_another():
    gains = SignatureGains({})
    for _ in range(2):
        gains.learn(["a", "b"], 0.8, on="slow")
    assert gains.is_sure(["a", "b"], on="slow")
    assert gains.gain(["a", "b"], on="slow") == pytest.approx(0.8)
    assert gains.gain(["a", "b"], on="fast") is None
    assert not gains.is_sure(["a", "b"], on="fast")


def test_a_pair_that_failed_twice_on_one_gpu_type_is_tried_on_another():
    jobs = [idle_job(f"a{i}", "x", at=4000.0 * (i > 3)) for i in range(8)]
    pairs = {("x", "x"): (0.45, 0.45)}
    sim = until(sim_of(jobs, "1x2:slow,1x2:fast", pairs, types="off", migrate="off"), 4 * 3600.0)
    known = sim.state.policy_mark["kinds"]
    assert sorted(known) == ["x + x on fast", "x + x on slow"]
    assert all(times == 2 for times, _ in known.values())


def test_what_was_measured_longest_ago_is_forgotten_first():
    gains = SignatureGains({})
    for number in range(MOST_KNOWN):
        gains.learn([str(number)], 1.0)
    gains.learn(["0"], 1.0)
    gains.learn(["new"], 1.0)
    assert len(gains.mark()) == MOST_KNOWN
    assert gains.gain(["0"]) == 1.0
    assert gains.gain(["1"]) is None


def test_the_trial_of_a_pair_foretells_what_others_of_its_kinds_do():
    jobs = [idle_job(name, "x") for name in "abcd"]
    sim = until(sim_of(jobs, "1x1", {("x", "x"): (0.8, 0.8)}, gpu_memory_gb="0"), 2 * 3600.0)
    predicted = [
        (round(was, 3), kept) for row in range(4) for _, _, was, _, kept in trials(sim, row)
    ]
    assert (1.0, True) in predicted  # the first pair, of which nothing was known
    later = idle_job("e", "x", at=600.0, lasts=3600.0)
    early = [idle_job("a", "x"), idle_job("b", "x", lasts=300.0)]
    sim = until(sim_of([*early, later], "1x1", {("x", "x"): (0.8, 0.8)}), 1800.0)
    assert [round(was, 2) for _, _, was, _, _ in trials(sim, 2)] == [1.6]


def test_a_pair_of_which_there_are_profiles_is_expected_to_do_what_these_say(monkeypatch):
    monkeypatch.setattr(View, "pair", lambda view, row, other: (0.9, 0.8))
    jobs = [idle_job("a", "x"), idle_job("b", "y")]
    sim = until(sim_of(jobs, "1x1", {("x", "y"): (0.6, 0.6)}), 1800.0)
    [(_, _, predicted, measured, kept)] = trials(sim, 0)
    assert (predicted, measured, kept) == (pytest.approx(1.7), pytest.approx(1.2), True)


def test_a_pack_is_judged_by_what_its_jobs_did_themselves_not_by_others_of_their_kinds(monkeypatch):
    monkeypatch.setattr(View, "step_s", lambda view, row, placement: 1e-3)
    sim = sim_of([idle_job("a", "x"), idle_job("b", "y")], "1x1", {("x", "y"): (0.8, 0.8)})
    until(sim, 0.0)
    assert not any("pack" in (sim.state.marks[row] or {}) for row in (0, 1))
    assert trials(until(sim, 300.0), 0)[0][2:] == [1.0, pytest.approx(1.6), True]


def test_jobs_of_kinds_that_failed_twice_are_not_tried_any_more():
    jobs = [idle_job(f"a{i}", "x") for i in range(6)]
    sim = until(sim_of(jobs, "1x2", {("x", "x"): (0.45, 0.45)}), 4 * 3600.0)
    failed = {at_s for row in range(6) for at_s, *_ in trials(sim, row)}
    assert len(failed) == 2
    assert not any(kept for row in range(6) for *_, kept in trials(sim, row))
    assert not any(target is not None and target.shared for target in sim.state.target)


def test_pairs_of_known_kinds_are_packed_all_at_once_and_still_measured():
    first = [idle_job("a", "x"), idle_job("b", "x", lasts=300.0)]
    crowd = [idle_job(f"c{i}", "x", at=1000.0) for i in range(5)]
    jobs = [*first, *[idle_job(f"o{i}", "x", lasts=400.0) for i in range(5)], *crowd]
    sim = sim_of(jobs, "1x4", {("x", "x"): (0.9, 0.9)})
    packs_on_trial = 0
    while sim.engine.now_s < 3600.0 and sim.step():
        marks = [mark for mark in sim.state.marks if mark]
        on_trial = {tuple(m["pack"][0]) for m in marks if "pack" in m and m["pack"][1] is None}
        packs_on_trial = max(packs_on_trial, len(on_trial))
    assert packs_on_trial >= 2
    assert all(kept for row in range(len(jobs)) for *_, kept in trials(sim, row))


ALONE = {("x", "x"): (0.9, 0.9), ("x", "y"): (0.3, 0.3), ("y", "y"): (0.4, 0.4)}


def one_apart():
    """Two of a kind are packed on one node until one ends; one of it is on another, with others."""
    alike = [idle_job("a", "x"), idle_job("b", "x"), idle_job("c", "x", lasts=600.0)]
    return [*alike, *[job(f"d{i}", at=120.0, lasts=DAY)._replace(model="y") for i in range(2)]]


def test_a_job_goes_to_another_node_to_join_a_pack_of_a_kind_that_is_known_to_gain():
    sim = until(sim_of(one_apart(), "2x1", ALONE), 4 * 3600.0)
    assert [sim.state.marks[row]["pack"][0] for row in range(2)] == [[0, 1]] * 2
    assert trials(sim, 1)[-1][2:] == [pytest.approx(1.8), pytest.approx(1.8), True]
    assert len({sim.state.marks[row]["home"][0][0] for row in range(2)}) == 1
    assert sum(sim.state.migrations) >= 1


def test_a_job_that_joins_a_pack_elsewhere_starts_level_with_those_who_live_there(monkeypatch):
    """It comes from a node where all are new; beside the pack another job wants its turns."""
    monkeypatch.setattr(View, "pair", lambda view, row, other: (0.9, 0.9))
    jobs = [
        idle_job("a", "x"),
        job("b", lasts=7000.0),
        job("c", at=1.0, lasts=DAY),
        job("d", at=7050.0, lasts=DAY),
        idle_job("e", "x", at=7100.0),
    ]
    sim = until(sim_of(jobs, "2x1", {("x", "x"): (0.9, 0.9)}), 0.0)
    sim.state.portable[0] = False
    until(sim, 1.0)
    sim.state.portable[2] = False
    until(sim, 7200.0)
    assert [sim.state.marks[row]["home"] for row in (0, 2, 4)] == [[[0, 1]]] * 3
    before_s = sim.state.service(2, 7200.0)
    after_s = sim.state.service(2, until(sim, 9000.0).engine.now_s)
    assert after_s - before_s >= 540  # a third, but for the trial


def test_who_went_to_a_pack_in_vain_goes_back_and_has_its_turns_there(monkeypatch):
    """It was credited with what the others there had; those where it comes back had far less."""
    monkeypatch.setattr(View, "pair", lambda view, row, other: (0.9, 0.9))
    jobs = [
        idle_job("a", "x"),
        job("b", lasts=7000.0),
        job("c", at=1.0, lasts=DAY),
        job("d", at=7050.0, lasts=DAY),
        idle_job("e", "x", at=7100.0),
    ]
    sim = until(sim_of(jobs, "2x1", {("x", "x"): (0.3, 0.3)}), 0.0)
    sim.state.portable[0] = False
    until(sim, 1.0)
    sim.state.portable[2] = False
    until(sim, 7200.0)
    assert sim.state.marks[4]["home"] == [[0, 1]]
    until(sim, 9000.0)
    assert [(what, kept) for _, what, _, _, kept in trials(sim, 4)] == [("pack", False)]
    assert sim.state.marks[4]["home"] == sim.state.marks[3]["home"] == [[1, 1]]
    before_s = [sim.state.service(row, 9000.0) for row in (3, 4)]
    until(sim, 10800.0)
    ran_s = [sim.state.service(r, 10800.0) - s for r, s in zip((3, 4), before_s, strict=True)]
    assert ran_s == pytest.approx([900.0, 900.0], abs=61)


def test_with_migration_off_nobody_changes_nodes_to_be_packed():
    sim = until(sim_of(one_apart(), "2x1", ALONE, migrate="off"), 4 * 3600.0)
    assert sum(sim.state.migrations) == 0
