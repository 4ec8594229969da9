"""What was tried with a job: read from marks, kept when they forget, and told by name."""

import pytest

from rota.explain.probes import tell
from rota.model.probe import Probe, Probes, probes_in
from rota.testing.builders import job
from support.driven import DrivenCluster

PACK = [90.0, "pack", 1.0, 1.2, True]
MOVE = [120.0, "move", 1.0, None, True]


@pytest.mark.parametrize("mark", [None, 3.5, "text", {}, {"trials": []}, {"tried": []}])
def test_marks_that_tell_of_no_trial(mark):
    assert probes_in(mark) == []


def test_marks_from_before_partners_were_noted_are_read_with_those_after():
    mark = {"trials": [PACK, MOVE], "tried": [[[2], [[1, 0]], [[0, 0]]]]}
    assert probes_in(mark) == [Probe(*PACK), Probe(*MOVE, (2,), ((1, 0),), ((0, 0),))]


def test_trials_outlast_the_mark_that_told_them():
    trials = Probes()
    told = [[float(at_s), "pack", 1.0, 1.2, True] for at_s in range(8)]
    for end in range(1, 9):
        trials.note(0, {"trials": told[max(0, end - 5) : end]})
        trials.note(0, {"home": [[0, 1]]})  # other policies, and other entries, take nothing away
        trials.note(0, None)
    assert trials.of(0) == [Probe(*each) for each in told]
    assert trials.of(1) == []


def test_a_mark_that_is_written_again_tells_nothing_twice():
    trials = Probes()
    for _ in range(3):
        trials.note(0, {"trials": [PACK, MOVE]})
    assert trials.of(0) == [Probe(*PACK), Probe(*MOVE)]


def test_partners_and_places_are_told_by_name_as_far_as_they_are_known():
    state = DrivenCluster(job("a"), job("b"), cluster="2x4").state
    names = [node.name for node in state.nodes]
    pack, move, old = tell(
        state,
        [
            Probe(*PACK, (1,), ((0, 0b100),)),
            Probe(*MOVE, (), ((1, 0),), ((0, 0),)),
            Probe(*MOVE),
        ],
    )
    assert (pack["with"], pack["on"], "from" in pack) == (["b"], f"{names[0]}:2", False)
    assert (move["on"], move["from"], "with" in move) == (names[1], names[0], False)
    assert set(old) == {"at_s", "what", "predicted", "measured", "kept"}
