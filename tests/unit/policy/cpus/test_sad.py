"""CPU cores by what they are worth to each job, and trials of jobs whose curve is not known."""

import json

import pytest

from rota.model.allocation import of_parts, on_node, shared_on_node
from rota.model.cluster import Node
from rota.model.commands import Launch, SetCpus
from rota.model.decide.decision import Decider
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    CpusSet,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeCpusChanged,
    joined,
)
from rota.model.job import Elastic, JobState
from rota.model.measured.cpu_points import CpuPlace, CpuPoint
from rota.model.measured.phase_times import PhaseTime
from rota.model.measured.profile import Profile
from rota.model.measured.reports import CoreTime
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.policy.cpus.sad import Sad
from rota.policy.cpus.trials import Trial
from rota.predict.cpu_demand import CpuDemand
from rota.testing.builders import job
from support.places import Places

FLAT = CpuDemand({"": 1.0}, 0.0)
HUNGRY = CpuDemand({"": 0.0}, 6.0)  # as fast as it has cores
COUNTS = (1, 3, 8, 24)


class Told:
    """Reports of the tests: the curve of a job by phase, at the cores that it has told of."""

    def __init__(self):
        self.curves, self.known, self.phases = {}, {}, {}

    def phase(self, row):
        return self.phases.get(row, "train")

    def core_times(self, row, place, phase, now_s):
        curve, counts = self.curves.get((row, phase)), self.known.get((row, phase), ())
        gpus = place.num_gpus
        return tuple(
            CoreTime("", int(1000 * count * gpus), curve.step_s(count)) for count in sorted(counts)
        )


class Cluster:
    """One node of 8 GPUs and 24 cores, or so many; jobs of one GPU each with these curves."""

    def __init__(self, *curves, nodes=((8, 24),), gpus=1, **settings):
        self.state, self.told = ClusterState(), Told()
        self.state.cores = self.told
        self.policy, self.now_s = Places(Sad(**settings)), 0.0
        for index, (count, cores) in enumerate(nodes):
            self.state.apply(joined(0.0, Node(f"n{index}", count, millicores=1000 * cores)))
        for row, curve in enumerate(curves):
            self.state.apply(JobSubmitted(0.0, job(row, gpus, lasts=1e6)))
            if curve is not None:
                self.knows(row, curve)
        self.decider = Decider(self.state, self.policy)

    def knows(self, row, curve, counts=COUNTS, phase="train"):
        self.told.curves[row, phase] = curve
        self.told.known[row, phase] = set(counts)

    def decide(self, *places, at=None, **changes):
        """The cores of every job after a decision with the first jobs in these places."""
        self.policy.changes = dict(enumerate(places))
        self.policy.changes |= {int(name[1:]): place for name, place in changes.items()}
        self.now_s = self.now_s + 1.0 if at is None else at
        event = self.decider.decide(self.now_s)
        while commands := diff(self.state):
            for command in commands:
                self.state.apply(CommandSent(self.now_s, command))
                if isinstance(command, Launch):
                    self.state.apply(JobLaunched(self.now_s, command.row, command.attempt))
                elif isinstance(command, SetCpus):
                    self.state.apply(CpusSet(self.now_s, command.row, command.millicores))
        self.event = event
        return dict(self.state.target_cpus)

    def wakes_until(self, until_s):
        """Decide whenever the stage asks for it."""
        found = []
        while (at_s := self.state.wake_at_s) is not None and at_s <= until_s:
            self.decide(at=at_s)
            found.append(self.event)
        return found


def gpus(count, node=0):
    return [on_node(node, 1 << gpu) for gpu in range(count)]


def test_cores_go_to_the_job_that_gains_and_nobody_falls_below_its_share():
    cluster = Cluster(HUNGRY, *[FLAT] * 7)
    assert cluster.decide(*gpus(8)) == {0: 17000} | dict.fromkeys(range(1, 8), 1000)
    cluster = Cluster(HUNGRY, HUNGRY, *[None] * 6)
    assert cluster.decide(*gpus(8)) == dict.fromkeys(range(8), 3000)


def test_without_a_floor_a_job_gives_way_to_one_that_gains_more():
    steep = CpuDemand({"": 0.0}, 12.0, gamma=1.0)
    slow = CpuDemand({"": 9.0}, 3.0)
    places = gpus(2)
    kept = Cluster(steep, slow, nodes=((2, 6),)).decide(*places)
    given = Cluster(steep, slow, nodes=((2, 6),), floor="none").decide(*places)
    assert kept[1] > given[1] == 1000


def test_cores_are_apportioned_anew_when_a_job_goes_and_when_one_comes():
    cluster = Cluster(HUNGRY, None, None, nodes=((3, 9),))
    assert cluster.decide(*gpus(2)) == {0: 6000, 1: 3000}
    assert cluster.decide(j2=on_node(0, 4)) == {0: 3000, 1: 3000, 2: 3000}
    cluster.state.apply(JobFinished(cluster.now_s, 1, JobState.SUCCEEDED))
    assert cluster.decide() == {0: 6000, 2: 3000}


def test_jobs_keep_their_cores_unless_a_change_gains_three_percent():
    cluster = Cluster(FLAT, None, nodes=((2, 8),))
    before = cluster.decide(*gpus(2))
    cluster.knows(1, CpuDemand({"": 1.0}, 0.05))
    assert cluster.decide(at=400.0) == before
    cluster.knows(1, HUNGRY)
    assert cluster.decide(at=450.0) == before  # not yet: the period is not over
    assert cluster.decide(at=800.0) == {0: 1000, 1: 7000}


def test_it_asks_to_be_woken_when_the_period_is_over():
    cluster = Cluster(FLAT, HUNGRY, nodes=((2, 8),), period_s=60.0)
    cluster.decide(*gpus(2), at=5.0)
    assert cluster.state.wake_at_s == 65.0
    cluster.decide(at=65.0)
    assert cluster.state.wake_at_s == 125.0


def test_the_longer_nothing_has_changed_the_longer_it_sleeps():
    cluster = Cluster(FLAT, HUNGRY, nodes=((2, 8),), period_s=60.0)
    cluster.decide(*gpus(2), at=0.0)
    assert [event.at_s for event in cluster.wakes_until(1000.0)] == [60.0, 120.0, 240.0, 480.0, 960]
    cluster.knows(0, HUNGRY)
    cluster.knows(1, FLAT)
    cluster.decide(at=1050.0)  # whatever calls for a decision
    assert cluster.state.target_cpus == {0: 7000, 1: 1000}
    assert cluster.state.wake_at_s == 1110.0


def test_a_job_that_tells_late_is_looked_at_again():
    cluster = Cluster(None, FLAT, nodes=((2, 8),))
    cluster.decide(*gpus(2), at=0.0)
    times = [event.at_s for event in cluster.wakes_until(1000.0)]
    assert times[:4] == [30.0, 60.0, 120.0, 240.0]
    cluster.knows(0, HUNGRY)
    cluster.wakes_until(2000.0)
    assert cluster.state.target_cpus == {0: 7000, 1: 1000}


def test_a_job_of_a_known_kind_is_looked_at_until_it_has_told_something_itself(monkeypatch):
    own = Profile()
    monkeypatch.setattr(View, "own_profile", lambda self, row: own if row == 0 else None)
    cluster = Cluster(HUNGRY, FLAT, nodes=((2, 8),))
    assert cluster.decide(*gpus(2), at=0.0) == {0: 7000, 1: 1000}
    assert [event.at_s for event in cluster.wakes_until(70.0)] == [30.0, 60.0]
    cluster.knows(0, FLAT)  # what it tells contradicts its kind
    cluster.knows(1, HUNGRY)
    point = own.cpu_points.setdefault(CpuPlace("", 1, 1, "train", 7000, None, None), CpuPoint())
    point.timed(PhaseTime("train", 20, 1.0, None, 0.0, None))
    assert [event.at_s for event in cluster.wakes_until(290.0)] == [120.0]
    assert cluster.state.target_cpus == {0: 1000, 1: 7000}


def test_a_phase_is_acted_on_at_once_but_not_back_and_forth():
    cluster = Cluster(*[FLAT] * 6, nodes=((8, 24),))
    cluster.knows(0, HUNGRY, phase="evaluate")
    before = cluster.decide(*gpus(6))
    cluster.told.phases[0] = "evaluate"
    cluster.state.changed.append(0)
    during = cluster.decide(at=100.0)
    assert before[0] == 4000
    assert during[0] == 24000 - 5 * 1000
    cluster.told.phases[0] = "train"
    cluster.state.changed.append(0)
    assert cluster.decide(at=105.0) == during
    assert cluster.state.wake_at_s == 120.0
    cluster.told.phases[0] = "evaluate"
    assert cluster.decide(at=120.0) == during


def test_a_gang_on_two_nodes_is_given_what_its_poorer_half_can_use():
    cluster = Cluster(HUNGRY, FLAT, HUNGRY, nodes=((4, 12), (4, 12)), gpus=2)
    spread = of_parts([(0, 1), (1, 1)])
    held = cluster.decide(spread, on_node(0, 0b110), on_node(1, 0b110))
    shares = dict(spread.shares(held[0]))
    assert shares[0] == shares[1]
    assert shares[0] + held[1] <= 12000
    assert shares[1] + held[2] <= 12000
    assert held[2] >= 6000


def test_a_gang_that_keeps_some_of_its_gpus_gives_the_cores_of_the_others_back():
    cluster = Cluster(None, nodes=((2, 6), (2, 6)), gpus=4)
    cluster.state.apply(JobSubmitted(0.0, job("elastic", 4, elastic=Elastic((2, 4)))))
    assert cluster.decide(j1=of_parts([(0, 3), (1, 3)])) == {1: 12000}
    assert cluster.decide(j1=on_node(0, 3)) == {1: 6000}


def test_packed_jobs_share_the_cores_of_their_gpu():
    cluster = Cluster(None, None, None, nodes=((2, 8),))
    held = cluster.decide(shared_on_node(0, 1), shared_on_node(0, 1), on_node(0, 2))
    assert held == {0: 2000, 1: 2000, 2: 4000}


@pytest.mark.parametrize(("cores", "quantum"), [(8, 1000), (7, 250), (4, 250), (2, 125)])
def test_the_fewer_cores_a_node_has_for_a_gpu_the_finer_they_are_dealt_out(cores, quantum):
    cluster = Cluster(CpuDemand({"": 0.0}, 50.0), *[FLAT] * 3, nodes=((4, cores),), floor="none")
    held = cluster.decide(*gpus(4))
    assert held == {0: 1000 * cores - 3 * quantum} | dict.fromkeys((1, 2, 3), quantum)


@pytest.mark.parametrize("cores", [8, 7, 4])
def test_where_parts_of_a_core_can_not_be_held_whole_ones_are_dealt_out(cores):
    cluster = Cluster(CpuDemand({"": 0.0}, 50.0), *[FLAT] * 3, nodes=((4, cores),), floor="none")
    cluster.state.apply(NodeCpusChanged(0.0, "n0", 1000 * cores, whole_cores=True))
    assert cluster.decide(*gpus(4)) == {0: 1000 * (cores - 3)} | dict.fromkeys((1, 2, 3), 1000)


def test_nothing_is_learned_from_parts_of_a_core_that_were_not_held():
    cluster = Cluster(*[HUNGRY] * 4, nodes=((4, 1),))
    for row in range(4):
        cluster.knows(row, FLAT, counts=(0.125, 0.25, 0.5))
    cluster.state.apply(NodeCpusChanged(0.0, "n0", 1000, whole_cores=True))
    assert cluster.decide(*gpus(4)) == dict.fromkeys(range(4), 250)
    assert all("not known yet" in why for why in cluster.state.notes.why_cpus.values())
    cluster.wakes_until(600.0)
    assert not any(cluster.state.stage_marks["cpus"][str(row)]["trial"] for row in range(4))


def test_cores_that_go_away_are_apportioned_at_once_and_nobody_has_none():
    cluster = Cluster(HUNGRY, None, nodes=((2, 8),))
    cluster.decide(*gpus(2))
    cluster.state.apply(NodeCpusChanged(2.0, "n0", 1000))
    assert cluster.decide() == {0: 500, 1: 500}


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
def test_a_job_that_tells_nonsense_takes_no_core_from_the_floors_of_others(step_s):
    cluster = Cluster(HUNGRY, HUNGRY, HUNGRY, nodes=((3, 9),))
    honest = cluster.told.core_times

    def times(row, place, phase, now_s):
        told = honest(row, place, phase, now_s)
        return tuple(each._replace(step_s=step_s) for each in told) if row == 0 else told

    cluster.told.core_times = times
    held = cluster.decide(*gpus(3))
    assert min(held[1], held[2]) >= 3000
    cluster.wakes_until(2000.0)
    assert min(cluster.state.target_cpus.values()) >= 1000
    assert all(cluster.state.target_cpus[row] >= 3000 for row in (1, 2))


def test_a_job_that_lies_about_its_phase_is_heard_every_twenty_seconds_and_others_keep_floors():
    cluster = Cluster(FLAT, HUNGRY, HUNGRY, nodes=((3, 9),))
    cluster.knows(0, CpuDemand({"": 0.0}, 1e6), phase="evaluate")
    before, changes = cluster.decide(*gpus(3)), 0
    for second in range(1, 101):
        cluster.told.phases[0] = ("train", "evaluate")[second % 2]
        cluster.state.changed.append(0)
        held = cluster.decide(at=10.0 + second)
        changes, before = changes + (held != before), held
        assert min(held[1], held[2]) >= 3000
    assert 1 <= changes <= 6


class TestTrials:
    def of_one(self, steps_s=0.05):
        """A job that has told of its share alone, beside one that lends."""
        cluster = Cluster(None, FLAT, nodes=((2, 8),))
        cluster.knows(0, CpuDemand({"": 0.0}, 4 * steps_s), counts=(4,))
        cluster.decide(*gpus(2))
        return cluster

    def test_a_job_is_tried_with_what_others_lend_for_two_percent_of_its_time(self):
        cluster = self.of_one()
        events = cluster.wakes_until(64.0)
        assert events[-1].at_s == pytest.approx(
            63.5, rel=0.01
        )  # 25 steps of 50 ms are 2 % of 62.5 s
        assert cluster.state.target_cpus == {0: 7000, 1: 1000}
        assert "is tried with 7 CPU cores" in cluster.state.notes.why_cpus[0]

    def test_a_trial_ends_when_the_job_has_told_and_is_told_as_such(self):
        cluster = self.of_one()
        cluster.wakes_until(64.0)
        cluster.told.known[0, "train"].add(7)
        cluster.wakes_until(65.0)
        (probe,) = cluster.state.notes.probes[0]
        assert probe.what == "7 CPU cores instead of 4"
        assert (probe.measured, probe.kept) == (pytest.approx(1.75, rel=0.02), True)
        assert cluster.state.target_cpus == {0: 7000, 1: 1000}

    def test_a_job_that_tells_nothing_of_trials_is_not_tried_again_and_again(self):
        cluster = self.of_one()
        cluster.wakes_until(100_000.0)
        probes = cluster.state.notes.probes[0]
        assert all(probe.measured is None and not probe.kept for probe in probes)
        assert len(probes) <= 6
        tried = cluster.state.stage_marks["cpus"]["0"]["tried"]["train "]
        assert max(tried.values()) <= 2
        spent = cluster.state.stage_marks["cpus"]["0"]["spent"]
        assert spent < 0.02 * 100_000

    def test_a_job_that_comes_ends_a_trial_and_has_its_share(self):
        cluster = Cluster(None, FLAT, None, nodes=((3, 12),))
        cluster.knows(0, CpuDemand({"": 0.0}, 0.2), counts=(4,))
        cluster.decide(*gpus(2))
        cluster.wakes_until(64.0)
        assert cluster.state.stage_marks["cpus"]["0"]["trial"]
        held = cluster.decide(j2=on_node(0, 4))
        assert not cluster.state.stage_marks["cpus"]["0"]["trial"]
        assert held[2] >= 4000
        assert cluster.state.notes.probes[0][0].measured is None

    @pytest.mark.parametrize("counts", [(1, 24), (3, 24), (1, 3, 24)])
    def test_a_job_whose_kind_has_had_more_cores_than_others_lend_keeps_to_what_they_lend(
        self, counts
    ):
        """Told of 24 cores elsewhere; here others need six of nine."""
        cluster = Cluster(None, HUNGRY, HUNGRY, nodes=((3, 9),))
        cluster.knows(0, CpuDemand({"": 0.1}, 0.4, gamma=4.0), counts=counts)
        cluster.decide(*gpus(3))
        given = [event.cpus or {} for event in cluster.wakes_until(2000.0)]
        assert min(cores.get(row, 3000) for cores in given for row in (1, 2)) == 3000

    def test_a_job_that_is_bounded_is_not_tried_with_more(self):
        cluster = Cluster(None, FLAT, nodes=((2, 16),))
        spec = cluster.state.spec[0]
        cluster.state.spec[0] = spec._replace(cpus_per_gpu=(1, 4))
        cluster.knows(0, CpuDemand({"": 0.1}, 0.4, gamma=4.0), counts=(1, 12))
        cluster.decide(*gpus(2))
        given = [event.cpus or {} for event in cluster.wakes_until(2000.0)]
        assert max(cores.get(0, 0) for cores in given) <= 4000

    def test_jobs_with_steps_of_minutes_or_none_told_are_not_tried(self):
        for steps_s, counts in ((200.0, (4,)), (0.01, ())):
            cluster = Cluster(None, FLAT, nodes=((2, 8),))
            cluster.knows(0, CpuDemand({"": 0.0}, 4 * steps_s), counts=counts)
            cluster.decide(*gpus(2))
            cluster.wakes_until(50_000.0)
            assert 0 not in cluster.state.notes.probes

    @pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
    def test_nonsense_among_what_a_job_tells_is_left_out_of_trials(self, step_s):
        cluster = Cluster(None, FLAT, nodes=((2, 8),))
        wrong, right = CoreTime("", 4000, step_s), CoreTime("", 3000, 0.05)
        cluster.told.core_times = lambda row, *asked: (right, wrong) if row == 0 else ()
        cluster.decide(*gpus(2))
        cluster.wakes_until(64.0)
        trial = Trial(*cluster.state.stage_marks["cpus"]["0"]["trial"])
        assert (trial.millicores, trial.lasts_s) == (4000, pytest.approx(25 * 0.05, rel=0.01))

    def test_a_job_that_tells_how_long_it_still_takes_is_tried_at_once(self):
        cluster = self.of_one()
        cluster.state.progress[0] = {"step": 10, "total": 100_000, "step_time_s": 0.05}
        cluster.wakes_until(40.0)  # it is looked at after 30 s
        assert cluster.state.target_cpus == {0: 7000, 1: 1000}

    @pytest.mark.parametrize(("models", "most"), [(("a", "a"), 1), (("a", "b"), 2), (("", ""), 2)])
    def test_of_a_kind_one_job_is_tried_at_a_time_on_all_nodes(self, models, most):
        cluster = Cluster(None, None, FLAT, FLAT, nodes=((2, 8), (2, 8)))
        for row, model in enumerate(models):
            cluster.state.spec[row] = cluster.state.spec[row]._replace(model=model)
            cluster.knows(row, CpuDemand({"": 0.0}, 0.2), counts=(4,))
        cluster.decide(on_node(0, 1), on_node(1, 1), on_node(0, 2), on_node(1, 2))
        at_once = []
        while (at_s := cluster.state.wake_at_s) is not None and at_s <= 150.0:
            cluster.decide(at=at_s)
            marks = cluster.state.stage_marks["cpus"]
            at_once.append(sum(bool(marks[str(row)]["trial"]) for row in (0, 1)))
        assert max(at_once) == most

    def test_a_known_kind_is_not_tried(self):
        cluster = Cluster(HUNGRY, FLAT, nodes=((2, 8),))
        cluster.knows(0, HUNGRY, counts=(1, 2, 4, 7))
        cluster.decide(*gpus(2))
        cluster.wakes_until(50_000.0)
        assert not cluster.state.notes.probes


def test_why_a_job_has_its_cores_is_told_in_a_sentence():
    most = CpuDemand({"": 0.0}, 6.0)
    cluster = Cluster(most, CpuDemand({"": 2.0}, 6.0), FLAT, None, nodes=((4, 12),))
    cluster.decide(*gpus(4))
    why = cluster.state.notes.why_cpus
    assert why[1].startswith("one core more would make it ")
    assert why[1].endswith(" faster; cores are worth more to job 0")
    assert why[2] == "more CPU cores would not make it faster"
    assert why[3] == "how its speed grows with CPU cores is not known yet"


def test_marks_are_json_and_end_with_their_jobs():
    cluster = Cluster(HUNGRY, FLAT, nodes=((2, 8),))
    cluster.decide(*gpus(2))
    marks = cluster.state.stage_marks["cpus"]
    assert json.loads(json.dumps(marks)) == marks
    for row in (0, 1):
        cluster.state.apply(JobFinished(cluster.now_s, row, JobState.SUCCEEDED))
    cluster.decide()
    assert set(marks) == {"round", "learned"}
