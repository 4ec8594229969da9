"""What Gandiva tries is measured, kept where it pays, and undone where it does not (OSDI 2018)."""

from itertools import combinations

import pytest

from rota.model.cluster import parse_cluster
from rota.model.events import NodeLost, ResumeRequested, SuspendRequested
from rota.model.job import Elastic
from rota.model.reason import Reason
from rota.policy.gandiva import packing as gandiva_packing
from rota.policy.registry import create
from rota.predict.interference import Interference
from rota.sim.machine import FREE, Costs
from rota.sim.simulation import Simulation
from rota.testing.builders import job, trace

DAY = 86400.0
SWITCH = Costs(suspend_s=0.125, resume_s=0.125, migrate_s=1.5, cold_start_s=0.25)


def sim_of(jobs, cluster, pairs=None, costs=FREE, **settings):
    interference = Interference(pairs) if pairs is not None else None
    policy = create("gandiva", settings)
    return Simulation(
        trace(*jobs), parse_cluster(cluster), policy, costs, interference=interference
    )


def until(sim, at_s):
    while min(t for t in (sim.engine.next_time_s(), sim.state.wake_at_s) if t is not None) <= at_s:
        sim.step()
        sim.state.validate()
    return sim


def idle_job(name, model, **more):
    return job(name, lasts=DAY)._replace(model=model, gpu_util=0.4, **more)


def trials(sim, row):
    return [(what, kept) for _, what, _, _, kept, *_ in sim.state.notes.probes.get(row, ())]


# -- packing -------------------------------------------------------------------------------------


def test_a_pair_that_does_more_work_together_stays_packed():
    jobs = [idle_job("a", "x"), idle_job("b", "y")]
    sim = until(sim_of(jobs, "1x1", {("x", "y"): (0.6, 0.6)}), 3600.0)
    assert [trials(sim, row) for row in (0, 1)] == [[("pack", True)]] * 2
    assert all(target is not None and target.shared for target in sim.state.target)
    measured = sim.state.notes.probes[0][0].measured
    assert measured == pytest.approx(1.2)
    work = [sim.state.work(row, 3600.0) for row in (0, 1)]
    assert sum(work) == pytest.approx(1.2 * 3600, rel=0.05)


def test_a_pair_that_does_less_is_undone_and_not_tried_again():
    jobs = [idle_job("a", "x"), idle_job("b", "y")]
    sim = until(sim_of(jobs, "1x1", {("x", "y"): (0.45, 0.5)}), 3600.0)
    assert [trials(sim, row) for row in (0, 1)] == [[("pack", False)]] * 2
    assert sim.state.marks[0]["apart"] == [1]
    work = [sim.state.work(row, 3600.0) for row in (0, 1)]
    # A trial costs at most its own length.
    assert sum(work) >= 3600 - 30.0
    assert work == pytest.approx([1800, 1800], abs=61)


def test_who_loses_its_gpu_as_a_pack_is_undone_is_told_so():
    jobs = [idle_job("a", "x"), idle_job("b", "y")]
    sim = sim_of(jobs, "1x1", {("x", "y"): (0.45, 0.5)})
    until(sim, 0.0)
    while not any(trials(sim, row) for row in (0, 1)):
        sim.step()
    left = [row for row in (0, 1) if sim.state.target[row] is None]
    assert [sim.state.reason[row] for row in left] == [Reason.PACK_UNDONE]


def test_jobs_that_do_not_fit_the_memory_together_are_never_packed():
    jobs = [idle_job("a", "x", memory_gb=9.0), idle_job("b", "y", memory_gb=8.0)]
    sim = until(sim_of(jobs, "1x1", {("x", "y"): (0.9, 0.9)}, gpu_memory_gb="16"), 1800.0)
    assert trials(sim, 0) == []
    room = until(sim_of(jobs, "1x1", {("x", "y"): (0.9, 0.9)}, gpu_memory_gb="20"), 1800.0)
    assert trials(room, 0) == [("pack", True)]


def test_a_node_tells_the_memory_of_its_gpus():
    jobs = [idle_job("a", "x", memory_gb=9.0), idle_job("b", "y", memory_gb=8.0)]
    pairs = Interference({("x", "y"): (0.9, 0.9)})

    def packed(memory_gb):
        node = parse_cluster("1x1")[0]._replace(memory_gb=memory_gb)
        policy = create("gandiva")
        sim = Simulation(trace(*jobs), [node], policy, FREE, interference=pairs)
        return trials(until(sim, 1800.0), 0)

    assert packed(16.0) == []
    assert packed(20.0) == [("pack", True)]


def test_a_job_whose_memory_is_not_known_is_not_packed_where_memory_counts():
    jobs = [idle_job("a", "x", memory_gb=1.0), idle_job("b", "y")]
    pairs = {("x", "y"): (0.9, 0.9)}
    assert trials(until(sim_of(jobs, "1x1", pairs, gpu_memory_gb="16"), 1800.0), 0) == []
    assert trials(until(sim_of(jobs, "1x1", pairs), 1800.0), 0) == [("pack", True)]


def test_a_trial_in_which_a_job_tells_nothing_is_given_up_and_the_others_get_their_turns(
    monkeypatch,
):
    """On trial the two come first, so that the third would never run."""
    jobs = [idle_job("a", "x"), idle_job("b", "y"), job("c", lasts=DAY)]
    sim = sim_of(jobs, "1x1", {("x", "y"): (0.9, 0.9)}, trial_s="30")
    while sim.step() and not (sim.state.marks[0] or {}).get("pack"):
        pass
    began_s = sim.engine.now_s
    monkeypatch.setattr(gandiva_packing, "look", lambda view, row: None)
    until(sim, began_s + 590.0)
    assert sim.state.service(2, sim.engine.now_s) <= 60.0
    until(sim, began_s + 1800.0)
    assert sim.state.notes.probes[0][0][1:5] == ("pack", 1.0, None, False)
    assert sim.state.service(2, sim.engine.now_s) > 300.0
    assert sim.state.policy_mark.get("kinds") is None


def test_jobs_that_have_ended_need_not_be_kept_apart_any_more():
    """Each short one is packed with the long one in vain; only the last is still there."""
    short = [job(f"s{i}", at=1000 * i, lasts=300) for i in range(4)]
    short = [each._replace(model="y", gpu_util=0.4) for each in short]
    stays = job("t", at=4000, lasts=DAY)._replace(model="y", gpu_util=0.4)
    sim = sim_of([idle_job("long", ""), *short, stays], "1x1", {("", "y"): (0.4, 0.4)})
    until(sim, 5000.0)
    assert len(trials(sim, 0)) == 5
    assert sim.state.marks[0]["apart"] == [5]


def test_jobs_are_packed_only_where_they_would_take_turns():
    jobs = [idle_job("a", "x"), idle_job("b", "y")]
    assert trials(until(sim_of(jobs, "1x2", {("x", "y"): (0.9, 0.9)}), 1800.0), 0) == []
    off = until(sim_of(jobs, "1x1", {("x", "y"): (0.9, 0.9)}, pack="off"), 1800.0)
    assert trials(off, 0) == []


def test_nobody_is_packed_if_that_saves_no_turn():
    """Beside a gang of two the single jobs have both GPUs in their turn: one would be idle."""
    jobs = [job("wide", 2, lasts=DAY), idle_job("a", "x"), idle_job("b", "x")]
    sim = until(sim_of(jobs, "1x2", {("x", "x"): (1.0, 1.0)}), 3600.0)
    assert not sim.state.notes.probes and not any("pack" in mark for mark in sim.state.marks)
    assert sim.state.service(0, 3600.0) == pytest.approx(1800, abs=120)


def test_a_pack_is_spread_over_gpus_that_nobody_needs_any_more():
    jobs = [idle_job("a", "x"), idle_job("b", "x"), job("c", lasts=1200)._replace(model="y")]
    sim = sim_of(jobs, "1x2", {("x", "x"): (0.9, 0.9)})
    until(sim, 600.0)
    assert any(target is not None and target.shared for target in sim.state.target)
    until(sim, 7200.0)
    assert sim.state.finish_s[2] > 0
    assert [target.shared for target in sim.state.target[:2]] == [False, False]
    assert sim.state.speed[0] == sim.state.speed[1] == 1.0


def test_a_third_joins_a_pair_if_all_of_them_do_more_work_then():
    jobs = [idle_job(name, "x") for name in "abc"]
    alike = {("x", "x"): (0.95, 0.95)}
    sim = until(sim_of(jobs, "1x1", alike), 3600.0)
    assert sim.state.marks[0]["pack"][0] == [0, 1, 2]
    assert sim.state.marks[2]["pack"][1] == pytest.approx(3 * 0.95**2)
    # Three at 0.36 do 1.08; a pair and one alone in turns do (1.2 + 1) / 2.
    worse = {("x", "x"): (0.6, 0.6)}
    pair = until(sim_of(jobs, "1x1", worse), 3600.0)
    packs = [mark["pack"][0] for mark in pair.state.marks if "pack" in mark]
    assert len(packs) == 2
    assert packs[0] == packs[1]
    assert len(packs[0]) == 2
    work = [pair.state.work(row, 3600.0) for row in range(3)]
    assert min(work) > 600  # the odd one out still has its turns


def test_a_job_whose_partner_has_ended_has_the_gpu_for_itself():
    jobs = [idle_job("a", "x"), job("b", lasts=600)._replace(model="y", gpu_util=0.4)]
    sim = until(sim_of(jobs, "1x1", {("x", "y"): (0.8, 0.8)}), 7200.0)
    assert sim.state.finish_s[1] > 0
    assert not sim.state.target[0].shared
    assert sim.state.speed[0] == 1.0


def test_a_bad_pair_is_undone_though_one_of_it_was_slowed_in_another_bad_pair_just_before():
    """What a job did in a pack is not its own speed: against that the next pack would gain."""
    jobs = [idle_job(name, name) for name in "abcdef"]
    pairs = dict.fromkeys(combinations("abcdef", 2), (0.45, 0.45))
    sim = until(sim_of(jobs, "1x2", pairs, costs=SWITCH), 7200.0)
    verdicts = [verdict for row in range(6) for verdict in sim.state.notes.probes[row]]
    assert len(verdicts) >= 12
    assert max(verdict.measured for verdict in verdicts) < 1.0
    assert not any("pack" in mark for mark in sim.state.marks)


def test_two_packs_never_share_a_gpu():
    models = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "y", "f": "x", "g": "y", "h": "x"}
    jobs = [idle_job(name, model) for name, model in models.items()]
    pairs = {("x", "x"): (0.9, 0.9), ("y", "y"): (0.45, 0.45), ("x", "y"): (0.45, 0.45)}
    sim = sim_of(jobs, "1x2", pairs, costs=SWITCH)
    crowds = 0
    while sim.engine.now_s < 7200.0 and sim.step():
        on = {}
        for row, target in enumerate(sim.state.target):
            if target is not None:
                pack = (sim.state.marks[row] or {}).get("pack")
                on.setdefault(target.parts, set()).add(tuple(pack[0]) if pack else (row,))
        crowds += sum(len(packs) > 1 for packs in on.values())
    assert crowds == 0


def test_a_pack_that_a_member_has_left_takes_in_no_newcomer_with_which_it_does_less():
    """Two at 0.95 do 1.9; with a third at a half they would do 1.45, which is more than one."""
    good = [idle_job("a", "x"), idle_job("b", "x")]
    ends = job("c", lasts=1200)._replace(model="x", gpu_util=0.4)
    late = [job(name, at=3600, lasts=DAY)._replace(model="y", gpu_util=0.4) for name in "de"]
    pairs = {("x", "x"): (0.95, 0.95), ("x", "y"): (0.5, 0.5), ("y", "y"): (0.4, 0.4)}
    sim = until(sim_of([*good, ends, *late], "1x1", pairs), 3 * 3600.0)
    assert sim.state.finish_s[2] > 0
    assert sim.state.marks[0]["pack"][0] == [0, 1]


def test_who_leaves_a_pack_by_its_owner_is_not_charged_for_what_the_others_had():
    """The pack had the GPU two thirds of the time, a third for each: as much as the third job."""
    jobs = [idle_job("a", "x"), idle_job("b", "x"), job("c", lasts=DAY)]
    sim = until(sim_of(jobs, "1x1", {("x", "x"): (0.9, 0.9)}), 14400.0)
    assert sim.state.marks[0]["pack"][0] == [0, 1]
    for row in (0, 1):
        sim.state.apply(SuspendRequested(sim.engine.now_s, row))
    sim.step()
    until(sim, 14500.0)
    assert sim.state.target[0] is None
    sim.state.apply(ResumeRequested(sim.engine.now_s, 0))
    sim.step()
    until(sim, 15000.0)
    before_s = sim.state.service(0, 15000.0)
    until(sim, 16800.0)
    assert sim.state.service(0, 16800.0) - before_s == pytest.approx(900, abs=61)


# -- homes ---------------------------------------------------------------------------------------


def test_a_nearly_empty_node_is_emptied_into_fuller_ones():
    """Free (3, 1, 0) of 4 each: the job alone on its node goes to the one with a free GPU."""
    jobs = [
        job("alone", 1, lasts=DAY),
        job("b", 3, lasts=DAY),
        job("c", 4, lasts=DAY),
    ]
    sim = sim_of(jobs, "3x4", affinity="strict")
    until(sim, 0.0)
    assert sim.state.target[0].nodes() == sim.state.target[1].nodes()


def test_a_job_that_others_have_left_alone_goes_and_its_node_is_nobodys_again():
    """G5: free (3, 1, 0) of 4 each; the node that becomes empty has no affinity any more."""
    short = [job(f"s{i}", 1, lasts=100) for i in range(2)]
    sim = sim_of(
        [job("a", 1, lasts=DAY), job("b", 3, lasts=DAY), job("c", 4, lasts=DAY), *short], "3x4"
    )
    until(sim, 99.0)
    assert sim.state.marks[0]["home"] == [[0, 1]]
    assert [sim.state.marks[row]["home"] for row in (1, 2)] == [[[1, 3]], [[2, 4]]]
    assert sim.state.policy_mark["affinity"]["0"] == 1
    until(sim, 101.0)
    assert sim.state.marks[0]["home"] == [[1, 1]]
    assert sim.state.target[0].nodes() == (1,)
    assert sim.state.migrations[0] == 1
    assert "0" not in sim.state.policy_mark["affinity"]


def fragmented(late, c_lasts=DAY, **settings):
    """Three nodes of two: one GPU is free on each of the first two; a gang of two comes late."""
    jobs = [
        job("a", lasts=DAY),
        job("b", lasts=100),
        job("c", lasts=c_lasts),
        job("d", lasts=100),
        job("pair", 2, lasts=DAY),
        *late,
    ]
    sim = sim_of(jobs, "3x2", costs=SWITCH, **settings)
    sim.state.is_live = True  # as on a live cluster
    until(sim, 150.0)
    assert [sim.state.target[row].nodes() for row in (0, 2)] == [(0,), (1,)]
    return sim


@pytest.mark.parametrize("limit", ["1", "4"])
def test_a_gang_that_waits_beside_free_gpus_is_made_room_for(limit):
    sim = fragmented([job("gang", 2, at=200, lasts=DAY)], limit=limit)
    until(sim, 1000.0)
    assert sim.state.first_start_s[5] < 203.0
    assert list(sim.state.migrations) == [1, 0, 0, 0, 0, 0]
    assert sim.state.target[0].nodes() == sim.state.target[2].nodes() == (1,)
    assert sim.state.target[5].nodes() == (0,)
    ((_, what, predicted, measured, kept, *_),) = sim.state.notes.probes[0]
    assert (what, predicted, kept) == ("move to make room for job gang", 1.0, True)
    assert measured == pytest.approx(1.0)


def test_no_room_is_made_for_a_gang_where_moves_are_switched_off():
    sim = fragmented([job("gang", 2, at=200, lasts=DAY)], limit="1", migrate="off")
    until(sim, 1000.0)
    assert sim.state.first_start_s[5] < 0
    assert sim.state.reason[5] == Reason.WAIT_GANG_FRAGMENTED


def test_room_is_made_once_those_that_were_moved_have_stayed_for_a_while():
    """The first gang has gone; beside it is a job that can't leave, beside the moved one nobody."""
    late = [
        job("first", 2, at=200, lasts=50),
        job("stays", at=260, lasts=DAY),
        job("second", 2, at=310, lasts=DAY),
    ]
    sim = fragmented(late, c_lasts=300, limit="1", stay_s="500")
    until(sim, 300.0)
    sim.state.portable[6] = False
    until(sim, 2000.0)
    assert [sim.state.marks[row]["home"] for row in (0, 6, 7)] == [[[0, 1]], [[0, 1]], [[1, 2]]]
    assert list(sim.state.migrations) == [2, 0, 0, 0, 0, 0, 0, 0]
    assert sim.state.first_start_s[5] < 203.0
    # Moved at 200 s, it may be moved again at 700 s; somebody looks once in a quantum.
    assert 700.0 <= sim.state.first_start_s[7] < 763.0


def test_who_waits_goes_where_a_gpu_has_become_free():
    jobs = [
        *(job(f"s{i}", 1, lasts=100) for i in range(2)),
        *(job(f"l{i}", 1, lasts=DAY) for i in range(4)),
    ]
    sim = until(sim_of(jobs, "2x2", costs=SWITCH, quantum_s="60"), 3600.0)
    assert [target is not None for target in sim.state.target] == [True] * 4 + [False] * 2
    assert max(sim.state.migrations) <= 2


def test_a_gang_in_fragments_is_brought_together_when_there_is_room():
    jobs = [
        job("x", 3, lasts=500),
        job("y", 3, lasts=DAY),
        job("gang", 2, at=1, lasts=DAY),
    ]
    sim = sim_of(jobs, "2x4", costs=SWITCH)
    until(sim, 100.0)
    assert len(sim.state.target[2].parts) == 2
    until(sim, 1000.0)
    assert len(sim.state.target[2].parts) == 1
    assert sim.state.migrations[2] == 1


class Slower:
    """Jobs run at half their speed on one node."""

    def __init__(self, node):
        self.node = node

    def speed(self, spec, allocation, _):
        return 0.5 if self.node in allocation.nodes() else 1.0


def test_a_move_that_slows_the_job_is_undone_and_not_repeated_for_a_while():
    """Emptying the first node would pay, were the second not slow."""
    jobs = [job("a", 1, lasts=DAY), job("b", 3, at=100, lasts=DAY)]
    policy = create("gandiva", {"stay_s": "10000"})
    sim = Simulation(trace(*jobs), parse_cluster("2x4"), policy, SWITCH, speeds=Slower(1))
    until(sim, 120.0)
    assert sim.state.target[0].nodes() == (1,)
    until(sim, 9000.0)
    assert trials(sim, 0) == [("move", False)]
    assert sim.state.target[0].nodes() == (0,)
    assert sim.state.migrations[0] == 2
    # What the trial cost: half of the work of thirty seconds, and two moves.
    assert sim.state.work(0, 9000.0) > 9000 - 15 - 2 * 2.5 - 1


def test_a_job_whose_moves_are_undone_is_moved_less_and_less_often():
    """Jobs that come and go on the third node are occasions to empty the first one again."""
    passing = [job(f"s{i}", 4, at=200 + 100 * i, lasts=90) for i in range(280)]
    jobs = [job("a", 1, lasts=DAY), job("b", 3, at=100, lasts=DAY), *passing]
    sim = Simulation(
        trace(*jobs), parse_cluster("3x4"), create("gandiva", {}), SWITCH, speeds=Slower(1)
    )
    moved = []
    for hours in (2, 8):
        until(sim, hours * 3600.0)
        moved.append(sim.state.migrations[0])
    assert 2 <= moved[0] <= 10
    assert moved[1] - moved[0] <= 4
    assert sim.state.target[0].nodes() == (0,)


# -- sizes ---------------------------------------------------------------------------------------


def elastic(name, sizes, **more):
    return job(name, sizes[0], **more)._replace(elastic=Elastic(tuple(sizes)))


def test_an_elastic_job_grows_into_idle_gpus_and_shrinks_for_who_arrives():
    jobs = [elastic("e", (1, 2, 3, 4), lasts=DAY), job("late", 1, at=1000, lasts=DAY)]
    sim = until(sim_of(jobs, "1x4", idle_s="30"), 999.0)
    assert sim.state.num_gpus[0] == 4
    until(sim, 1001.0)
    assert sim.state.num_gpus[0] == 3
    assert sim.state.first_start_s[1] <= 1001.0
    until(sim, 3000.0)
    assert sim.state.num_gpus[0] == 3


def test_a_job_of_fixed_size_never_changes_it():
    sim = until(sim_of([job("fixed", 1, lasts=DAY)], "1x4", idle_s="30"), 999.0)
    assert sim.state.num_gpus[0] == 1


def test_growing_can_be_left_out():
    jobs = [elastic("e", (1, 2, 3, 4), lasts=DAY)]
    assert until(sim_of(jobs, "1x4", grow="off"), 999.0).state.num_gpus[0] == 1


# -- failures ------------------------------------------------------------------------------------


def test_jobs_of_a_lost_node_find_other_homes():
    jobs = [job(i, 1, lasts=DAY) for i in range(4)]
    sim = until(sim_of(jobs, "2x2"), 100.0)
    lost = sim.state.nodes[0].name
    sim.state.apply(NodeLost(sim.engine.now_s, lost))
    sim.step()
    until(sim, 1000.0)
    assert all(mark["home"][0][0] == 1 for mark in sim.state.marks)
    assert sum(target is not None for target in sim.state.target) == 2
