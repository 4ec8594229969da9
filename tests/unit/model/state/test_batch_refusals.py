"""A batch that a job does not take: what is left of it, and what nobody asks for again."""

import pytest

from rota.errors import TransitionError
from rota.explain.why import explain
from rota.model.allocation import on_node
from rota.model.commands import Launch, Resize, Retune
from rota.model.decide.diff import diff
from rota.model.events import (
    BatchRefused,
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobResized,
    JobRetuned,
    JobSubmitted,
    NodeJoined,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import Adapt, Elastic, JobState, Program, Suspension
from rota.model.measured.reports import BatchRange
from rota.model.state.state import ClusterState
from rota.model.view import View
from rota.store.codec import decode, encode
from rota.testing.builders import job

TOLD = {"initial": 12, "most": 256, "most_per_gpu": 64, "gpus": 1, "accumulation": 0, "steps": 5}


class Job:
    """A live job that runs on the first of the slots of node 0, with a batch if it is given one."""

    def __init__(self, batch=None, gpu_types=("t4", "a100")):
        self.events, self.state = [], ClusterState()
        for number, gpu_type in enumerate(gpu_types):
            self.happens(NodeJoined(0.0, f"n{number}", 2, "gpu", gpu_type))
        spec = job("a", 1, elastic=Elastic((1, 2)))
        spec = spec._replace(program=Program("python t.py", "/w"), adapt=Adapt(256, 64))
        self.happens(JobSubmitted(0.0, spec))
        self.gets(on_node(0, 1).with_batch(batch))
        self.happens(JobLaunched(1.0, 0, 1))
        self.happens(WorkerRegistered(1.0, 0, Suspension.BOUNDARY, True, True, 8))
        self.tells(12, 1.0)

    def happens(self, event):
        self.state.apply(event)
        self.events.append(event)

    def gets(self, place):
        """The policy gives it that; the commands for it, which are sent."""
        fields = (2.0, self.state.decision_seq + 1, "p", {0: place}, {}, {}, None, None)
        self.happens(DecisionTaken(*fields))
        commands = diff(self.state)
        for command in commands:
            self.happens(CommandSent(2.0, command))
        return commands

    def tells(self, per_gpu, at_s):
        told = TOLD | {"per_gpu": per_gpu, "step_s": 0.2, "gradient_s": 0.1}
        self.happens(WorkerReported(at_s, 0, {"at_s": at_s, "step": 5, "adaptation": told}))

    def refuses(self, *batch, of_a_gpu=True):
        self.happens(BatchRefused(3.0, 0, batch, "no room", of_a_gpu))

    def most_per_gpu(self):
        return getattr(View(self.state, 9.0, None).batch_range(0), "most_per_gpu", None)

    def warnings(self):
        return explain(self.state, 0, 9.0)["warnings"]


def test_a_retune_that_is_refused_is_over_without_a_pause_and_the_batch_stays():
    found = Job(batch=(12, 0))
    (retune,) = found.gets(on_node(0, 1).with_batch((48, 0)))
    assert isinstance(retune, Retune)
    found.refuses(48, 0)
    state = found.state
    assert state.outstanding[0] is None
    assert state.held[0] == state.target[0] == on_node(0, 1).with_batch((12, 0))
    assert not state.unsettled
    assert not state.backoff
    assert state.decision_needed
    assert state.story(0)[-1] == (3.0, "48 samples a GPU refused: no room")


@pytest.mark.parametrize("place", [on_node(0, 1), on_node(0, 0b11)], ids=["launch", "resize"])
def test_a_batch_that_came_with_gpus_and_is_refused_is_not_what_the_job_has(place):
    found = Job(batch=(48, 0))
    if place.num_gpus == 2:
        (resize,) = found.gets(place.with_batch((48, 0)))
        assert isinstance(resize, Resize)
        found.happens(JobResized(2.0, 0, resize.allocation))
    found.refuses(48, 0)
    assert found.state.held[0] == found.state.target[0] == place
    assert not found.state.unsettled
    assert found.state.decision_needed


def test_as_many_samples_on_such_a_gpu_or_more_are_not_among_the_batches_any_more():
    found = Job()
    assert View(found.state, 9.0, None).batch_range(0) == BatchRange(12, 256, 1, 64)
    found.refuses(48, 0)
    assert found.most_per_gpu() == 24, "half of it, as nothing larger has been measured"
    found.tells(40, 4.0)
    assert found.most_per_gpu() == 40
    found.refuses(40, 1)
    assert found.most_per_gpu() == 20
    found.refuses(60, 0)
    assert found.most_per_gpu() == 20, "what is known already says no less"
    assert found.warnings() == [
        "batches of 40 samples or more at once on a GPU t4 are not chosen any more: no room"
    ]


def test_gpus_of_another_type_may_take_it_and_the_first_ones_still_do_not():
    found = Job()
    found.refuses(48, 0)
    for node, most in ((1, 64), (0, 24)):
        found.state.target[0] = on_node(node, 1)
        assert found.most_per_gpu() == most
    found.state.target[0] = None
    assert found.most_per_gpu() == 24, "it may come to lie on any"


def test_a_batch_that_is_wrong_as_a_whole_says_nothing_of_a_gpu():
    found = Job(batch=(48, 0))
    found.refuses(48, 0, of_a_gpu=False)
    assert found.state.held[0].batch is None
    assert found.most_per_gpu() == 64
    assert found.warnings() == []


def test_a_job_that_takes_not_even_one_sample_gets_no_batch_chosen():
    found = Job()
    found.refuses(1, 5)
    assert found.most_per_gpu() is None


def test_a_refusal_of_what_the_job_has_had_for_a_while_makes_its_batch_unknown():
    """As when a batch fits at first, and a later one of its size does not."""
    found = Job(batch=(12, 0))
    found.gets(on_node(0, 1).with_batch((48, 0)))
    found.happens(JobRetuned(3.0, 0, (48, 0)))
    found.refuses(48, 0)
    assert found.state.held[0] == found.state.target[0] == on_node(0, 1)


def test_refusals_outlast_a_restart_of_the_controller_and_end_with_the_job():
    found = Job()
    found.refuses(48, 0)
    again = ClusterState()
    for event in found.events:
        again.apply(decode(encode(event)))
    assert again.refused == found.state.refused != {}
    found.happens(JobFinished(5.0, 0, JobState.SUCCEEDED, 0, ""))
    assert not found.state.refused


def test_only_a_job_with_gpus_refuses_a_batch():
    state = ClusterState()
    state.apply(JobSubmitted(0.0, job("a", 1)))
    with pytest.raises(TransitionError, match="told of a batch"):
        state.apply(BatchRefused(1.0, 0, (8, 0), "no"))


def test_a_launch_is_not_held_up_by_a_refusal():
    found = Job(batch=(48, 0))
    found.refuses(48, 0)
    assert [type(e.command) for e in found.events if isinstance(e, CommandSent)] == [Launch]
    assert not found.state.backoff
