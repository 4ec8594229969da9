"""What users are told of the operations of a flow job."""

import pytest
from tests.support.driven import DrivenCluster

from rota.cli.flow import flow_lines
from rota.cli.verdict import why_text
from rota.explain.flow import flow_of, waits_text
from rota.explain.why import explain
from rota.model.events import ResumeRequested, SuspendRequested
from rota.model.job import Elastic, Program, Share
from rota.testing.builders import job

FLOW = {
    "devices": [0, 1, -1],
    "share": [0.625, 1.0, 0.0],
    "held_bytes": [1 << 20, 0, 512],
    "memory_bytes": 1 << 31,
    "tickets_per_s": 812.25,
    "weight": 4.0,
    "outstanding": 3,
    "slices": [[0, 1], [1]],
    "waits": {"what": "turn", "device": 1, "behind": "7"},
}
TURN = "its next operation waits for a turn on GPU 1 behind job 7"


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        (FLOW["waits"], TURN),
        ({"what": "turn"}, "its next operation waits for a turn"),
        (
            {"what": "turn", "device": 0, "behind": ""},
            "its next operation waits for a turn on GPU 0",
        ),
        ({"what": "ready"}, "its next operation waits for its inputs"),
        ({"what": "nobody"}, "its next operation waits for nobody"),
        ({"what": "work"}, "it has called no operation that is not done"),
    ],
)
def test_whose_turn_is_awaited(waits, text):
    assert waits_text(waits) == text


def running(share=None, elastic=None, **program):
    program = Program("python drive.py", "/", **program)
    cluster = DrivenCluster(job("1", 2, program=program, share=share, elastic=elastic))
    cluster.settle()
    return cluster


def test_a_running_flow_job_is_told_of_alone():
    cluster = running(processes="flow")
    state = cluster.state
    assert flow_of(state, 0, 1.0) is None
    assert explain(state, 0, 1.0, progress={"flow": FLOW})["flow"] == {**FLOW, "sentence": TURN}
    assert flow_of(running().state, 0, 1.0, {"flow": FLOW}) is None
    cluster.happens(SuspendRequested, 0, "", True)
    cluster.settle()
    assert flow_of(state, 0, 1.0, {"flow": FLOW}) is None


def test_the_operation_for_whose_end_a_job_keeps_its_gpus_is_told_while_it_is_being_suspended():
    cluster = running(processes="flow")
    awaited = {"operation": "step: loss", "device": 1, "since_s": 100.0}
    told = {"flow": {**FLOW, "awaited": awaited}}
    text = "it leaves its GPUs once step: loss has ended, which has run on GPU 1 for 12 s"
    assert explain(cluster.state, 0, 112.0, progress=told)["flow"]["sentence"] == text  # a resize
    cluster.happens(SuspendRequested, 0, "", True)
    [suspend] = cluster.send()
    verdict = explain(cluster.state, 0, 112.0, progress=told)
    assert verdict["state"] == "SUSPENDING"
    assert "operations      it leaves its GPUs once step: loss has ended" in why_text(verdict)
    cluster.confirm(suspend)
    assert explain(cluster.state, 0, 113.0, progress=told)["flow"] is None


def test_a_weight_alone_is_no_wish_about_background_jobs():
    share = Share("foreground", None, 4.0)
    state = running(share, processes="flow").state
    assert [explain(state, 0, 1.0, fills=fills)["warnings"] for fills in (False, True)] == [[], []]
    state = running(share._replace(max_slowdown=1.2), processes="flow").state
    assert explain(state, 0, 1.0, fills=False)["warnings"][0].startswith("share has no effect")


def test_a_flow_job_of_a_range_of_gpus_is_resized_once_its_agent_says_so():
    cluster = running(elastic=Elastic((2, 4)), processes="flow")
    told = explain(cluster.state, 0, 1.0, resizes=True)["resizing"]
    assert told == "it can't be resized yet: its agent has not told that it can be"


def test_an_idle_job_is_told_what_brings_it_back():
    cluster = running(processes="flow")
    cluster.happens(SuspendRequested, 0, "", True)
    cluster.settle()
    verdict = explain(cluster.state, 0, 1.0)
    assert verdict["reason"] == "IDLE"
    assert verdict["blockers"][0] == {
        "rule": "IDLE",
        "need": "a call of an operation",
        "have": "it has called no operation for a while",
        "held_by": [],
    }
    assert verdict["would_start_if"].startswith("it called an operation, or its owner let it go on")
    cluster.happens(ResumeRequested, 0, "", True)
    cluster.settle()
    assert explain(cluster.state, 0, 1.0)["sentence"].startswith("it runs on")


def test_slices_are_drawn_on_their_devices(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    verdict = explain(running(processes="flow").state, 0, 1.0, progress={"flow": FLOW})
    assert flow_lines(verdict) == [
        f"  operations   812 a second, 3 outstanding; {TURN}; weight 4",
        "    GPU  SHARE  STORE OF 2 GiB  SLICES",
        "    0    62%    1 MiB           #.",
        "    1    100%   0 B             ##",
        "    -    0%     512 B           ..",
    ]
    assert f"operations      {TURN}" in why_text(verdict)
    assert flow_lines(explain(running().state, 0, 1.0)) == []
