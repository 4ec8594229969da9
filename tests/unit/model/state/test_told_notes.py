"""What notes of plans leave standing, one after another, and what marks of old logs told."""

import pytest

from rota.model.events import DecisionTaken
from rota.model.notes import MOST_WARNINGS, DesiredNodes, Notes, Packed, Reserved
from rota.model.probe import Probe
from rota.model.state.told_notes import ToldNotes
from rota.store.codec import decode, encode

PACK = Probe(90.0, "pack", 1.0, 1.2, True)
MOVE = Probe(120.0, "move", 1.0, None, True, (2,), ((1, 0),), ((0, 0),))


def told(*notes):
    standing = ToldNotes()
    for at_s, each in enumerate(notes):
        list(standing.note(float(at_s), each))
    return standing


def test_what_notes_do_not_mention_stays():
    pack = Packed((0, 1), None)
    standing = told(
        Notes({0: "it grows"}, {1: ("odd steps",)}, {0: (PACK,)}, {0: pack}), Notes({1: "new"})
    )
    assert standing.why == {0: "it grows", 1: "new"}
    assert standing.warnings == {1: ("odd steps",)}
    assert standing.packs == {0: pack}
    assert standing.probes == {0: [PACK]}


def test_packs_and_warnings_are_taken_back():
    standing = told(
        Notes(warnings={0: ("odd",)}, packs={0: Packed((0, 1), 1.5)}),
        Notes(warnings={0: ()}, packs={0: None}),
    )
    assert not standing.warnings and not standing.packs
    assert standing.warned == {0: {"odd": (0.0, "odd")}}, "it has warned"


def test_the_number_of_nodes_is_that_of_the_last_notes():
    wish = DesiredNodes(3, 0.5)
    assert told(Notes(nodes=wish)).nodes == wish
    assert told(Notes(nodes=wish), Notes()).nodes is None


def test_each_kind_of_warning_is_new_once_and_few_are_told():
    standing = ToldNotes()
    first = list(standing.note(1.0, Notes(warnings={0: ("lost: 1 s", "slow: 2 s")})))
    again = list(standing.note(2.0, Notes(warnings={0: ("lost: 3 s",)})))
    assert first == [(0, "lost: 1 s"), (0, "slow: 2 s")]
    assert not again
    for letter in range(50):
        list(standing.note(3.0, Notes(warnings={0: ("x" * letter,)})))
    assert len(standing.warned[0]) == MOST_WARNINGS


@pytest.mark.parametrize("live", [True, False])
def test_notes_end_with_their_job_and_probes_outlast_it(live):
    notes = Notes({0: "a"}, {0: ("w",)}, {0: (PACK,)}, {0: Packed((0, 1), 1.5)})
    standing = told(notes)
    standing.end(0, keep_warnings=not live)
    assert not (standing.why or standing.warnings or standing.packs)
    assert bool(standing.warned) is not live
    assert standing.probes == {0: [PACK]}


def test_another_policy_begins_without_notes_but_probes_are_history():
    standing = told(Notes({0: "a"}, {}, {0: (PACK,)}, {0: Packed((0, 1), 1.5)}, DesiredNodes(1, 1)))
    standing.forget()
    assert not standing.why and not standing.packs and standing.nodes is None
    assert standing.probes == {0: [PACK]}


def test_a_reservation_stands_until_other_notes_or_another_policy():
    standing = told(Notes(reserved=Reserved(3, 9.0, (1,))))
    assert standing.reserved == Reserved(3, 9.0, (1,))
    assert told(Notes(reserved=Reserved(3, 9.0, (1,))), Notes()).reserved is None
    standing.forget()
    assert standing.reserved is None


def old(marks, policy_mark=None):
    """A decision as it was stored before plans had notes."""
    fields = DecisionTaken(1.0, 1, "gandiva", {}, {}, marks, policy_mark, None)
    record = encode(fields)
    del record["notes"]
    return decode(record).notes


@pytest.mark.parametrize("mark", [None, 3.5, "text", {}, {"trials": []}, {"tried": []}])
def test_old_marks_that_tell_nothing(mark):
    notes = old({0: mark})
    assert not notes.probes and not notes.why and notes.packs == {0: None}


def test_old_marks_tell_of_probes_with_and_without_partners():
    mark = {"trials": [list(PACK[:5]), list(MOVE[:5])], "tried": [[[2], [[1, 0]], [[0, 0]]]]}
    assert old({0: mark}).probes == {0: (PACK, MOVE)}


def test_old_marks_tell_of_sizes_warnings_packs_and_nodes():
    mark = {"why": "it grows", "warnings": ["odd"], "pack": [[0, 1], 1.6, 1, 1.0, None, 0.0]}
    wish = {"desired": 2, "utility": 0.5, "below_since_s": None}
    packs = {0: Packed((0, 1), 1.6)}
    expected = Notes({0: "it grows"}, {0: ("odd",)}, {}, packs, DesiredNodes(2, 0.5))
    assert old({0: mark}, {"nodes": wish}) == expected


def test_probes_that_old_marks_repeat_are_kept_once():
    probes = [Probe(float(at_s), "pack", 1.0, 1.2, True) for at_s in range(8)]
    notes = (Notes(probes={0: tuple(probes[max(0, end - 5) : end])}) for end in range(1, 9))
    assert told(*notes, *([Notes(probes={0: tuple(probes[3:])})] * 2)).probes == {0: probes}
