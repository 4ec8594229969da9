"""What the story of a job tells of the processes that were asked to end for its suspension."""

import pytest

from rota.explain.why import explain
from rota.model.commands import Suspend
from rota.model.events import JobSuspended
from rota.model.job import JobState, Program
from support.driven import cluster_with_a_job_that_is


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ((), ""),
        ((None, "step-7.pt"), "; it saved step-7.pt"),
        ((None, ""), "; it saved nothing in ROTA_CHECKPOINT_DIR"),
        ((3, "a.pt"), "; it saved a.pt; it ended with exit code 3 after SIGTERM"),
        ((-9, "a.pt"), "; it saved a.pt; it was killed when its grace of 10s was over"),
        ((-11, "a.pt"), "; it saved a.pt; it was killed by SIGSEGV after SIGTERM"),
    ],
)
def test_its_story_tells_what_it_saved_and_how_it_ended(how, words):
    cluster = cluster_with_a_job_that_is(JobState.SUSPENDING)
    assert isinstance(cluster.state.outstanding[0], Suspend)
    program = Program("python train.py", "/work", suspend="restart", grace_s=10.0)
    cluster.state.spec[0] = cluster.state.spec[0]._replace(program=program)
    cluster.happens(JobSuspended, 0, cluster.now_s, *how)
    _, line = list(cluster.state.story(0))[-1]
    assert line.startswith("suspended")
    assert line.endswith(words)
    assert (";" in line) == bool(words)
    sentence = explain(cluster.state, 0, cluster.now_s)["sentence"]
    exit_code = how[0] if how else None
    assert (words.rpartition("; ")[2] in sentence) == (exit_code is not None or not words)
    assert ("when it was suspended" in sentence) == (exit_code is not None)
