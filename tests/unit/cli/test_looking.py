"""Shared GPUs, turns, trials and lost nodes, as they look in a terminal."""

import csv
import io
import json
import time

import pytest

from rota.cli import text as text_module
from rota.cli.looking import cut_to, last_lines
from rota.cli.present import job_text, jobs_text, progress_text
from rota.cli.verdict import why_text
from rota.errors import NotFoundError
from rota.folder import Folder
from rota.model.allocation import shared_on_node
from rota.model.decide.diff import diff
from rota.model.events import (
    BurstPlanned,
    CommandSent,
    DecisionTaken,
    FillMeasured,
    JobFinished,
    JobLaunched,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    WorkerReported,
)
from rota.model.job import JobState
from rota.model.notes import DesiredNodes, Notes, Packed
from rota.model.probe import Probe
from rota.testing.builders import job
from support.served import StandInController, served

TRIED = Probe(0.0, "pack", 1.0, 1.6, True, (1,), ((0, 1),))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, StandInController(folder, num_gpus=1, policy="gandiva")) as it:
        yield it


@pytest.fixture
def rota(cluster, rota):
    """The program, with a cluster to talk to."""
    return rota


def hand_in(rota, *names):
    for name in names:
        rota("run", "--name", name, "--", "x")


def pack(cluster, gain=1.6):
    """Jobs 1 and 2 share the GPU."""
    state, now_s = cluster.controller.state, cluster.controller.now_s()
    both = dict.fromkeys((0, 1), shared_on_node(0, 1))
    policy = "gandiva" if not state.policy else state.policy
    notes = Notes({}, {}, {0: (TRIED,)}, {0: Packed((0, 1), gain)})
    seq = state.decision_seq + 1
    cluster.apply(DecisionTaken(now_s, seq, policy, both, {}, {}, None, None, notes))
    for command in cluster.do(lambda: diff(state)):
        cluster.apply(CommandSent(now_s, command), JobLaunched(now_s, command.row, command.attempt))


class TestSharing:
    def test_ps_says_with_whom_a_gpu_is_shared(self, rota, cluster):
        hand_in(rota, "a", "b", "c")
        pack(cluster)
        lines = rota("ps")[1].splitlines()
        assert "here:0 (with 2)" in lines[2]
        assert "here:0 (with 1)" in lines[3]
        assert "with" not in lines[4]
        jobs = json.loads(rota("ps", "-o", "json")[1])
        assert [each["shared_with"] for each in jobs] == [["2"], ["1"], []]

    def test_for_programs_it_is_a_column_of_its_own(self, rota, cluster):
        hand_in(rota, "a", "b")
        pack(cluster)
        header, first, _ = csv.reader(io.StringIO(rota("ps", "-o", "csv")[1]))
        told = dict(zip(header, first, strict=True))
        assert (told["NODE"], told["WITH"]) == ("here:0", "2")
        assert "(with" not in rota("ps", "-o", "wide")[1]

    def test_why_and_show_tell_what_is_known_of_the_pack(self, rota, cluster):
        hand_in(rota, "a", "b")
        pack(cluster)
        gain = "here:0 with job 2, kept: together they do 1.6 times the work of turns"
        for verb in ("why", "show"):
            out = rota(verb, "1")[1]
            assert "it runs on here:0, which it shares with job 2" in out
            assert gain in out
            assert "pack with job 2 on here:0: predicted 1, measured 1.6, kept" in out
        assert "shares here:0 with job 2" in rota("show", "1")[1]
        assert json.loads(rota("show", "1", "--json")[1])["sharing"]["gain"] == 1.6

    def test_a_pack_on_trial_is_called_one(self, rota, cluster):
        hand_in(rota, "a", "b")
        pack(cluster, gain=None)
        assert "here:0 with job 2, on trial" in rota("why", "1")[1]


class TestFilling:
    """A foreground job on all GPUs, and a background job beside it."""

    @pytest.fixture(autouse=True)
    def jobs(self, rota, cluster):
        gpus = cluster.controller.state.total_gpus
        rota("run", "--name", "front", "--gpus", str(gpus), "--", "x")
        rota("run", "--name", "back", "--background", "--", "x")
        cluster.do(cluster.controller.turn)
        now_s = cluster.controller.now_s()
        cluster.apply(FillMeasured(now_s, 1, 0, 1.04, 0.38, 1.02, 1.06, 12))

    def test_ps_says_who_fills_whom(self, rota):
        header, front, back = rota("ps", "-o", "wide")[1].splitlines()
        assert header.split()[-3:] == ["FILL", "HARVEST", "SLOWDOWN"]
        assert front.split()[-5:] == ["by", "2", "38%", "1.04", "(1.02-1.06)"]
        assert back.split()[-5:] == ["beside", "1", "38%", "1.04", "(1.02-1.06)"]
        told = json.loads(rota("ps", "-o", "json")[1])
        assert [each["filling"]["with"] for each in told] == [["2"], ["1"]]

    def test_nodes_says_which_gpus_are_filled(self, rota):
        out = rota("nodes")[1].splitlines()
        assert out[0].split()[-1] == "GPU:FILL"
        assert out[1].endswith("0:2 38% 1.04 (1.02-1.06)")

    def test_why_and_show_tell_of_both(self, rota):
        for verb in ("why", "show"):
            told = " ".join(rota(verb, "2")[1].split())
            assert "it runs on here:0, beside job 1" in told
            assert "beside job 1 on here:0, at 38 % of its speed alone, foreground steps" in told
            assert "on trial beside job 1" in told
            assert "job 2 fills here:0" in " ".join(rota(verb, "1")[1].split())

    def test_plan_says_beside_whom_a_job_would_run(self, rota, cluster):
        cluster.apply(JobFinished(cluster.controller.now_s(), 1, JobState.CANCELLED))
        code, out, _ = rota("plan", "--background", "--", "x")
        assert code == 0
        assert "would start now, on here:0, beside job 1" in out

    def test_a_job_that_waits_is_told_of_the_gaps(self, rota, cluster):
        for _ in range(cluster.controller.state.total_gpus):
            rota("run", "--background", "--", "x")
        cluster.do(cluster.controller.turn)
        job_id = cluster.controller.state.spec[-1].job_id
        told = " ".join(rota("why", job_id)[1].split())
        assert "WAIT_GAPS" in told
        assert "here:0, perhaps 50 % beside job 1: job 2 fills it" in told


class TestPlanByLayer:
    def test_why_and_show_tell_of_the_plan(self, rota, cluster):
        hand_in(rota, "a")
        cluster.apply(BurstPlanned(1.0, 0, 32, (0.05, 0.03), (0.125,)))
        for verb in ("why", "show"):
            told = " ".join(rota(verb, "1")[1].split())
            assert "by layer a step of 32 samples is predicted to take 50 ms on 1 GPU" in told
            assert "30 ms on 2 GPUs" in told
            found = json.loads(rota(verb, "1", "--json")[1])["burst"]
            assert (found["idle"], found["by_gpus"]) == ([0.125], [0.05, 0.03])


class TestData:
    @pytest.mark.parametrize(("wait_s", "percent"), [(0.19, 38), (0.005, 1)])
    def test_show_tells_how_long_steps_wait(self, rota, cluster, wait_s, percent):
        hand_in(rota, "a")
        cluster.do(cluster.controller.turn)
        for command in cluster.do(lambda: diff(cluster.controller.state)):
            cluster.apply(CommandSent(1.0, command), JobLaunched(1.0, 0, command.attempt))
        times = {"steps": 10, "step_s": 0.5, "wait_s": wait_s, "since_s": 1.0, "workers": 2}
        told = {"at_s": 2.0, "step": 10, "phases": {"train": times}}
        cluster.apply(WorkerReported(2.0, 0, told))
        line = f"data         waits for data {percent} % of each step"
        assert line in rota("show", "1")[1]
        assert json.loads(rota("why", "1", "--json")[1])["data_wait"]["wait_s"] == wait_s


class TestTurns:
    def test_why_tells_whose_turn_it_is_where_the_job_lives(self, rota, cluster):
        hand_in(rota, "a", "b", "c")
        cluster.do(cluster.controller.turn)
        out = rota("why", "3")[1]
        assert "its turn on here" in out
        assert "it is number 2 of 2; the turn ends in " in out
        assert "turns           on here: 1 now, then 2, 3; the turn ends at " in out
        assert "by arrival" not in out
        assert "turns        on here: 1 now, then 2, 3" in rota("show", "3")[1]
        assert json.loads(rota("why", "3", "--json")[1])["turns"]["position"] == 2

    def test_who_is_handed_in_learns_its_place(self, rota, cluster):
        hand_in(rota, "a", "b")
        verdict = json.loads(rota("why", "2", "--json")[1])
        assert verdict["sentence"] == "the policy has yet to decide about it"
        err = rota("run", "--name", "c", "--", "x")[2]
        assert "the policy has yet to decide about it" in err
        assert "come first" not in err


class TestNodes:
    def lose(self, cluster, ago_s):
        now_s = cluster.controller.now_s()
        cluster.apply(NodeJoined(now_s, "gone", 4, "cpu"), NodeLost(now_s, "gone"))
        cluster.controller.lost_s["gone"] = now_s - ago_s

    def names(self, rota, *options):
        return [node["name"] for node in json.loads(rota("nodes", "-o", "json", *options)[1])]

    def test_how_many_nodes_the_policy_asks_for_is_told(self, rota, cluster):
        assert "asks for" not in rota("nodes")[1]
        state, now_s = cluster.controller.state, cluster.controller.now_s()
        notes = Notes(nodes=DesiredNodes(3, 0.917))
        cluster.apply(DecisionTaken(now_s, 1, state.policy, {}, {}, {}, None, None, notes))
        assert rota("nodes")[1].splitlines()[-1] == "gandiva asks for 3 nodes; utility 0.92"
        assert [node["name"] for node in json.loads(rota("nodes", "-o", "json")[1])] == ["here"]

    def test_a_lost_node_is_listed_for_an_hour_and_afterwards_on_demand(self, rota, cluster):
        self.lose(cluster, 3500.0)
        assert self.names(rota) == ["here", "gone"]
        assert "lost" in rota("nodes")[1]
        cluster.controller.lost_s["gone"] -= 200.0
        assert self.names(rota) == ["here"]
        assert self.names(rota, "--all") == ["here", "gone"]

    def test_it_is_listed_as_long_as_a_job_asks_for_more_than_the_others_have(self, rota, cluster):
        self.lose(cluster, 7200.0)
        cluster.apply(JobSubmitted(cluster.controller.now_s(), job("wants it", 4)))
        assert self.names(rota) == ["here", "gone"]
        cluster.apply(JobFinished(cluster.controller.now_s(), 0, JobState.FAILED))
        assert self.names(rota) == ["here"]


class TestNarrow:
    """80 columns."""

    @pytest.fixture(autouse=True)
    def _narrow(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")

    def test_ps_leaves_out_what_is_needed_least(self, rota, cluster):
        hand_in(rota, "a-rather-long-name-of-a-job", "b", "c")
        cluster.do(cluster.controller.turn)
        lines = rota("ps")[1].splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[:3] == ["ID", "NAME", "STATE"]
        assert "NODE" in lines[1]
        assert "PRIO" not in lines[1]
        assert "PRIO" in rota("ps", "-o", "wide")[1]
        assert jobs_text([], "table").split()[-1] == "EXIT"

    def test_why_and_show_break_their_lines(self, rota, cluster):
        hand_in(rota, "a", "b", "c")
        pack(cluster)
        rota("run", "--", "python", "train.py", "--" + "x" * 90)
        for verb, which in (("why", "1"), ("why", "3"), ("show", "1")):
            out = rota(verb, which)[1]
            broken = [line for line in out.splitlines() if not line.startswith("  workdir ")]
            assert max(map(len, broken)) <= 80, out
            assert "work of turns" in " ".join(out.split()) or which == "3"
        command = "command      python train.py --" + "x" * 90
        assert command in rota("show", "4")[1]  # to be copied as it is


def verdict_of(**more):
    nothing = dict.fromkeys(("would_start_if", "position", "resizing", "turns", "sharing"))
    verdict = {"job_id": "1", "state": "RUNNING", "sentence": "it runs", "blockers": []}
    return verdict | nothing | {"warnings": [], "trials": [], "history": []} | more


def test_a_move_tells_from_where_to_where_and_in_exchange_with_whom():
    trial = {"at_s": 0.0, "what": "move to t4", "predicted": 0.8, "measured": 0.75, "kept": False}
    trial |= {"on": "n-1", "from": "n-0", "with": ["7"]}
    last = why_text(verdict_of(trials=[trial])).splitlines()[-1]
    assert last.endswith(
        "move to t4, n-0 to n-1, with job 7 in exchange: predicted 0.8, measured 0.75, undone"
    )


@pytest.mark.parametrize(("count", "text"), [(0, "0 times"), (1, "once"), (2, "2 times")])
def test_things_are_counted_in_words(rota, cluster, count, text):
    hand_in(rota, "a")
    shown = json.loads(rota("show", "1", "--json")[1]) | {"preemptions": count, "migrations": count}
    assert f"preempted    {text}, moved {text}\n" in job_text(shown, verdict_of())


def test_of_a_long_story_the_beginning_and_the_end_are_shown(rota, cluster):
    hand_in(rota, "a")
    story = [{"at_s": time.time(), "line": f"line {n}"} for n in range(100)]
    shown = json.loads(rota("show", "1", "--json")[1]) | {"story": story}
    lines = job_text(shown, verdict_of()).partition("  story\n")[2].splitlines()
    assert (len(lines), lines[0][-6:], lines[-1][-7:]) == (52, "line 0", "line 99")
    assert "49 more: rota show 1 --json" in lines[1]


def test_times_are_told_as_the_wall_clock_shows_them(monkeypatch):
    monkeypatch.setattr(text_module, "_ahead_s", float)
    shown = text_module.clock(1e9)
    text_module.follow(lambda: 3600.0)
    assert text_module.clock(1e9 + 3600.0) == shown != text_module.clock(1e9)


def test_how_a_job_ended_is_said_once(rota, cluster):
    hand_in(rota, "a")
    now_s = cluster.controller.now_s()
    cluster.apply(JobFinished(now_s, 0, JobState.FAILED, 7, "killed by a fault"))
    told = "FAILED with exit code 7: killed by a fault"
    assert f"job 1 is {told}\n" in rota("why", "1")[1]
    shown, _, _ = rota("show", "1")[1].partition("  story")
    assert f"state        {told}\n" in shown
    assert (shown.count("FAILED"), shown.count("exit code")) == (1, 1)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({}, "-"),
        ({"step": 120, "total": None}, "120"),
        ({"step": 120, "total": 1000}, "120/1000 12%"),
        ({"step": 120, "total": None, "samples": 480, "total_samples": 1000}, "120 48%"),
        ({"step": 120, "total": 1000, "samples": 480, "total_samples": 1000}, "120/1000 12%"),
        ({"step": 0, "total": None, "samples": 0, "total_samples": 0}, "0"),
    ],
    ids=str,
)
def test_progress_is_told_by_steps_or_where_batches_vary_by_samples(progress, text):
    assert progress_text(progress) == text


class Printed:
    """A client of a cluster on which jobs have printed something."""

    def __init__(self, text):
        self.text, self.asked = text, []

    def logs(self, job_id, *, tail):
        self.asked.append((job_id, tail))
        if self.text is None:
            raise NotFoundError("its output is gone")
        yield self.text


def test_a_failed_job_tells_what_it_printed_last():
    client = Printed("one\ntwo \x1b[31m" + "x" * 1000 + "\n")
    lines = last_lines(client, {"id": "7", "state": "FAILED"})
    assert client.asked == [("7", 10)]
    assert "rota logs 7" in lines[1] and lines[2] == "  one"
    assert lines[3].startswith("  two ") and "\x1b" not in lines[3] and len(lines[3]) <= 402


@pytest.mark.parametrize(
    ("text", "state"), [("one", "SUCCEEDED"), ("", "FAILED"), (None, "FAILED")]
)
def test_others_and_those_without_output_tell_nothing(text, state):
    assert last_lines(Printed(text), {"id": "7", "state": state}) == []


def test_what_is_too_high_for_the_terminal_is_cut():
    text = "\n".join("abcde")
    assert cut_to(text, 5) == text
    assert cut_to(text, 4) == "a\nb\nc\n... 2 more lines"
