"""What is said of jobs that share a GPU, by the state, the verdict and the stories."""

import pytest

from rota.explain.sharing import sharing_of
from rota.explain.why import explain
from rota.model.allocation import on_node, shared_on_node
from rota.model.events import DecisionTaken, JobFinished
from rota.model.job import JobState
from rota.model.notes import Notes
from rota.model.notes import Packed as Pack
from rota.model.reason import Reason
from rota.testing.builders import job
from support.driven import DrivenCluster

GPU, SHARED = on_node(0, 1), shared_on_node(0, 1)


class Packed(DrivenCluster):
    """Jobs a, b and c on a node, and decisions that a test makes itself."""

    def __init__(self, *allocations):
        super().__init__(*(job(name) for name in "abc"), cluster="1x2")
        self.decides(dict(enumerate(allocations)))

    def decides(self, allocations, reasons=None, notes=None):
        seq = self.state.decision_seq + 1
        self.happens(DecisionTaken, seq, "", allocations, reasons or {}, {}, None, None, notes)
        while commands := self.send():
            for command in commands:
                self.confirm(command)

    def told(self, row):
        return [line for _, line in self.state.story(row) if "share" in line or "alone" in line]


def test_nobody_shares_a_gpu_that_a_job_has_alone():
    cluster = Packed(GPU)
    assert cluster.state.sharers(0) == []
    assert sharing_of(cluster.state, 0) is None
    assert explain(cluster.state, 0, 1.0)["sentence"] == "it runs on node0:0"
    assert cluster.told(0) == []


def test_jobs_that_share_a_gpu_name_each_other():
    cluster = Packed(SHARED, SHARED, SHARED)
    assert cluster.state.sharers(1) == [0, 2]
    verdict = explain(cluster.state, 1, 1.0)
    assert verdict["sentence"] == "it runs on node0:0, which it shares with jobs a, c"
    unknown = {"with": ["a", "c"], "on": "node0:0", "on_trial": False, "gain": None}
    assert verdict["sharing"] == unknown


@pytest.mark.parametrize(("gain", "on_trial"), [(None, True), (1.6, False)])
def test_what_its_policy_knows_of_a_pack_is_told(gain, on_trial):
    cluster = Packed(SHARED, SHARED)
    cluster.decides({}, notes=Notes(packs={0: Pack((0, 1), gain)}))
    told = sharing_of(cluster.state, 0)
    assert (told["with"], told["on_trial"], told["gain"]) == (["b"], on_trial, gain)


def test_a_gain_of_other_jobs_together_is_not_taken_for_theirs():
    cluster = Packed(SHARED, SHARED)
    cluster.decides({}, notes=Notes(packs={0: Pack((0, 1, 2), 1.6)}))
    assert sharing_of(cluster.state, 0)["gain"] is None


def test_stories_tell_with_whom_a_job_shares_when_that_changes_and_only_then():
    cluster = Packed(GPU)
    cluster.decides({0: SHARED, 1: SHARED})
    nobody = dict.fromkeys((0, 1))
    waits = dict.fromkeys((0, 1), int(Reason.SLICE_WAITING_TURN))
    for _ in range(2):  # turns that end and begin anew
        cluster.decides(nobody, waits)
        cluster.decides({0: SHARED, 1: SHARED})
    cluster.decides({2: SHARED})
    cluster.happens(JobFinished, 1, JobState.SUCCEEDED)
    cluster.decides({2: None}, {2: int(Reason.PACK_UNDONE)})
    cluster.decides({0: GPU})
    assert cluster.told(0) == [
        "shares node0:0 with job b",
        "shares node0:0 with jobs b, c",
        "has node0:0 alone",
    ]
    assert cluster.told(1) == ["shares node0:0 with job a", "shares node0:0 with jobs a, c"]
    assert cluster.told(2) == ["shares node0:0 with jobs a, b", "shares its GPU no longer"]
