"""What is said of background jobs and of foreground jobs whose GPUs they fill."""

from math import nan

import pytest

from rota.cli.present import jobs_text, nodes_text
from rota.cli.verdict import filling_text, why_text
from rota.explain.filling import filling_of
from rota.explain.why import explain
from rota.model.allocation import background_on_node, on_node
from rota.model.events import (
    DecisionTaken,
    FillMeasured,
    JobFinished,
    NodeLost,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import JobState, Program, Share, Suspension
from rota.model.notes import Notes, Undone
from rota.model.reason import Reason
from rota.testing.builders import job
from support.driven import DrivenCluster

GPU = on_node(0, 1)
BACK = background_on_node(0, 1)
WHY = "kept beside job a, whose steps are not shown to be beyond the limit"


class Filled(DrivenCluster):
    """Foreground jobs a and c, background jobs b and d, and decisions that a test makes."""

    def __init__(self, slowdown=None):
        fore, back = Share("foreground", slowdown), Share("background")
        jobs = job("a", share=fore), job("b", share=back), job("c"), job("d", share=back)
        super().__init__(*jobs, cluster="1x2")

    def decides(self, allocations, reasons=None, notes=None):
        seq = self.state.decision_seq + 1
        self.happens(DecisionTaken, seq, "", allocations, reasons or {}, {}, None, None, notes)
        while commands := self.send():
            for command in commands:
                self.confirm(command)

    def why(self, row, **more):
        return explain(self.state, row, self.now_s, **more)


@pytest.fixture
def filled():
    """Job b fills the GPU of job a; jobs c and d wait."""
    cluster = Filled()
    cluster.decides({0: GPU, 1: BACK}, notes=Notes(why={1: WHY}))
    cluster.passes(5.0)
    cluster.happens(FillMeasured, 1, 0, 1.04, 0.38, 1.021, 1.06, 12)
    return cluster


def test_of_a_gang_each_tells_the_gpus_that_both_have():
    fore, back = Share("foreground"), Share("background")
    cluster = DrivenCluster(job("a", share=fore), job("g", 2, share=back), cluster="1x3")
    Filled.decides(cluster, {0: GPU, 1: background_on_node(0, 5)})
    cluster.passes(5.0)
    cluster.happens(FillMeasured, 1, 0, 1.04, 0.38)
    told = [filling_of(cluster.state, row) for row in (0, 1)]
    assert [each["on"] for each in told] == ["node0:0", "node0:0,2"]
    assert told[0]["sentence"].startswith("job g fills node0:0, at 38 %")
    assert told[1]["sentence"].startswith("beside job a on node0:0,2, at 38 %")


def test_a_gang_that_waits_tells_how_many_gpus_it_needs(filled):
    cluster = DrivenCluster(job("g", 2, share=Share("background")), cluster="1x2")
    Filled.decides(cluster, {}, {0: Reason.WAIT_GAPS})
    verdict = explain(cluster.state, 0, cluster.now_s)
    assert verdict["blockers"][0]["need"].startswith("2 GPUs of one node")
    assert verdict["would_start_if"].startswith("2 GPUs of a node were idle")


def test_a_background_job_that_runs_tells_beside_whom(filled):
    told = filling_of(filled.state, 1)
    assert told.pop("sentence") == (
        "beside job a on node0:0, at 38 % of its speed alone, "
        f"foreground steps take 1.04 times as long (1.02 to 1.06, limit 1.1); {WHY}"
    )
    figures = {"harvest": 0.38, "slowdown": 1.04, "interval": [1.021, 1.06], "limit": 1.1}
    assert told == {"role": "background", "with": ["a"], "on": "node0:0"} | figures
    assert filled.why(1)["sentence"] == "it runs on node0:0, beside job a"


def test_a_foreground_job_tells_who_fills_it(filled):
    told = filling_of(filled.state, 0)
    assert told.pop("sentence") == (
        "job b fills node0:0, at 38 % of the speed alone, "
        "foreground steps take 1.04 times as long (1.02 to 1.06, limit 1.1)"
    )
    figures = {"harvest": 0.38, "slowdown": 1.04, "interval": [1.021, 1.06], "limit": 1.1}
    assert told == {"role": "foreground", "with": ["b"], "on": "node0:0"} | figures
    assert filled.why(0)["sentence"] == "it runs on node0:0, with job b in its gaps"


def test_nothing_is_told_of_other_foreground_jobs(filled):
    assert filling_of(filled.state, 2) is None
    assert filled.why(2)["filling"] is None


def test_a_background_job_that_waits_has_nobody(filled):
    none = dict.fromkeys(("on", "harvest", "slowdown", "interval", "limit"))
    expected = {"role": "background", "with": [], "sentence": "it has no GPU"} | none
    assert filling_of(filled.state, 3) == expected
    assert filling_text(expected) is None


def test_nothing_is_told_of_jobs_that_have_ended(filled):
    filled.happens(JobFinished, 1, JobState.SUCCEEDED)
    assert filling_of(filled.state, 1) is None
    assert filling_of(filled.state, 0) is None


def test_without_an_interval_as_in_older_logs_the_slowdown_alone_is_told(filled):
    filled.happens(FillMeasured, 1, 0, 1.04, 0.38)
    told = filling_of(filled.state, 1)
    assert (told["slowdown"], told["interval"]) == (1.04, None)
    assert "take 1.04 times as long (limit 1.1)" in told["sentence"]


def test_a_job_on_an_idle_gpu_is_alone(filled):
    filled.happens(JobFinished, 0, JobState.SUCCEEDED)
    told = filling_of(filled.state, 1)
    assert (told["with"], told["slowdown"], told["limit"], told["harvest"]) == (
        [],
        None,
        None,
        None,
    )
    assert told["sentence"].startswith("alone on node0:0")
    filled.happens(FillMeasured, 1, -1, 1.0, 1.0)
    assert filling_of(filled.state, 1)["harvest"] == 1.0


def test_what_is_no_number_is_not_told(filled):
    filled.happens(FillMeasured, 1, 0, nan, nan)
    told = filling_of(filled.state, 1)
    assert (told["slowdown"], told["harvest"]) == (None, None)
    assert told["sentence"] == f"beside job a on node0:0; {WHY}"


# -- jobs that wait --------------------------------------------------------------------------------


def test_a_job_that_waits_tells_of_the_largest_gaps(filled):
    gaps = "the largest gaps: node0:0, perhaps 50 % beside job a: job b fills it"
    filled.decides({}, {3: Reason.WAIT_GAPS}, Notes(why={3: gaps}))
    verdict = filled.why(3)
    (blocker,) = verdict["blockers"]
    assert (blocker["rule"], blocker["have"], blocker["held_by"]) == ("WAIT_GAPS", gaps, ["b"])
    assert verdict["would_start_if"] == (
        "a GPU was idle, a foreground job left more of one, or a job that fills one ended"
    )
    assert verdict["position"] is None


def test_a_job_that_was_undone_tells_beside_whom_and_when_it_is_tried_again(filled):
    undone = Undone(0, 1.42, 1.1, filled.now_s + 600.0, 1.3, 1.55)
    filled.decides({1: None}, {1: Reason.FILL_UNDONE}, Notes(why={1: "all"}, undone={1: undone}))
    filled.passes(100.0)
    verdict = filled.why(1)
    assert verdict["reason"] == "FILL_UNDONE"
    (blocker,) = verdict["blockers"]
    assert blocker["have"] == (
        "beside job a it made a step take 1.42 times (1.3 to 1.55) as long, 1.1 at most; "
        "it is tried there again in 500 s; all"
    )
    assert verdict["would_start_if"] == "a GPU was idle, or its pause was over"
    assert "FILL_UNDONE" in why_text(verdict)


def test_without_a_stage_a_background_job_is_told_the_fix(filled):
    filled.decides({}, {3: Reason.WAIT_GAPS})
    verdict = filled.why(3, fills=False)
    (blocker,) = verdict["blockers"]
    assert blocker["have"] == "the policy places no background job: fill=off"
    assert verdict["sentence"] == blocker["have"]
    (warning,) = verdict["warnings"]
    assert warning == (
        "share.role has no effect: background jobs wait while fill=off; "
        "`rota up --set fill=on` lets it run"
    )
    assert verdict["would_start_if"] == "background jobs were placed: `rota up --set fill=on`"


def test_without_a_stage_the_limit_of_a_foreground_job_has_no_effect():
    cluster = Filled(slowdown=1.2)
    (warning,) = cluster.why(0, fills=False)["warnings"]
    assert warning.startswith("share has no effect: nothing is run beside it while fill=off")
    assert cluster.why(0)["warnings"] == []
    assert cluster.why(2, fills=False)["warnings"] == []


@pytest.mark.parametrize(
    ("suspension", "step", "warns"),
    [
        (Suspension.PROCESS, None, True),
        (Suspension.PROCESS, 3, False),
        (Suspension.BOUNDARY, None, False),
        (Suspension.UNKNOWN, None, False),
    ],
)
def test_a_limit_that_nobody_can_judge_is_told(suspension, step, warns):
    live = job("a", share=Share("foreground", 1.2), program=Program("python x.py", "/"))
    cluster = DrivenCluster(live, cluster="1x1")
    cluster.settle()
    cluster.happens(WorkerRegistered, 0, suspension, True)
    cluster.happens(WorkerReported, 0, {"step": step})
    warnings = explain(cluster.state, 0, 0.0)["warnings"]
    assert [each.startswith("share.max_slowdown can't be judged") for each in warnings] == (
        [True] if warns else []
    )


def test_a_job_whose_node_was_lost_waits(filled):
    filled.happens(NodeLost, "node0")
    assert filling_of(filled.state, 1)["with"] == []
    assert filled.why(1)["state"] == "PENDING"


# -- tables ----------------------------------------------------------------------------------------

BESIDE = {"role": "background", "with": ["1"], "on": "n:0", "harvest": 0.384, "slowdown": 1.042}
BESIDE |= {"interval": [1.021, 1.064]}
BY = BESIDE | {"role": "foreground", "with": ["2"]}
IDLE = BESIDE | {"with": [], "harvest": None, "slowdown": None, "interval": None}
WAITS = IDLE | {"on": None}


def listed(*fillings):
    told = {"name": "x", "state": "RUNNING", "reason": "NONE", "priority": 50, "num_gpus": 1}
    told |= {"gpus": [], "share": 0.5, "age_s": 1.0, "run_s": 1.0, "progress": {}, "eta_s": None}
    told |= {"queue": "", "user": "", "attempt": 1, "exit_code": None, "message": ""}
    told |= {"shared_with": [], "position": None}
    return [told | {"id": str(n), "filling": each} for n, each in enumerate(fillings, 1)]


@pytest.mark.parametrize("output", ["table", "wide"])
def test_the_table_of_jobs_says_who_fills_whom(output):
    lines = jobs_text(listed(BY, BESIDE, IDLE, WAITS), output).splitlines()
    assert lines[0].split()[-3:] == ["FILL", "HARVEST", "SLOWDOWN"]
    ends = [line.split() for line in lines[1:]]
    assert ends[0][-5:] == ["by", "2", "38%", "1.04", "(1.02-1.06)"]
    assert ends[1][-5:] == ["beside", "1", "38%", "1.04", "(1.02-1.06)"]
    assert ends[2][-4:] == ["idle", "GPU", "-", "-"]
    assert ends[3][-3:] == ["-", "-", "-"]


@pytest.mark.parametrize("output", ["table", "wide", "csv"])
def test_without_background_jobs_the_table_of_jobs_is_as_it_was(output):
    assert "FILL" not in jobs_text(listed(None, None), output)


def test_the_table_of_nodes_says_which_gpus_are_filled():
    node = {"name": "n", "kind": "gpu", "num_gpus": 2, "alive": True, "holders": [["1"], []]}
    lines = nodes_text([node | {"fillers": [BESIDE | {"id": "2"}, None]}]).splitlines()
    assert lines[0].split()[-2:] == ["GPU:JOB", "GPU:FILL"]
    assert lines[1].endswith("0:1      0:2 38% 1.04 (1.02-1.06)")
    assert "FILL" not in nodes_text([node | {"fillers": [None, None]}])
