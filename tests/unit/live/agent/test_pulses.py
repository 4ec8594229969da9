"""Which rank hangs and which one lags behind, told from what they write."""

import math

import pytest

from rota.live.agent.pulses import HANGS_AFTER_S, LEAST_SAMPLES, Pulses
from rota.live.wire import COMPUTING, EVALUATING, PULSE, WAITING


class Gang:
    """Ranks whose pulses the test writes, and one look after each step."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        self.pulses = Pulses(folder)
        self.computed, self.samples = [0.0] * size, [0] * size
        self.now = 1000.0

    def write(self, slot, phase, since):
        beat = PULSE.pack(phase, since, self.computed[slot], self.samples[slot])
        (self.folder / f"rank{slot}.pulse").write_bytes(beat)

    def step(self, seconds):
        """A step in which each rank computes for so long; the straggler that is found."""
        for slot, each in enumerate(seconds):
            self.computed[slot] += each
            self.samples[slot] += 8
            self.write(slot, WAITING, self.now)
        self.now += 1
        return self.pulses.look(range(self.size), self.now)[1]

    def look(self, **more):
        return self.pulses.look(range(self.size), self.now, **more)[0]


def steps_until_found(gang, seconds, limit=100):
    for step in range(1, limit):
        found = gang.step(seconds)
        if found is not None:
            return step, found
    return None


@pytest.mark.parametrize(("relative", "steps"), [(0.5, 5), (0.25, 3), (0.75, 16)])
def test_a_rank_that_becomes_slow_is_found_after_as_many_steps_as_published(
    tmp_path, relative, steps
):
    gang = Gang(tmp_path, 5)
    for _ in range(LEAST_SAMPLES + 2):
        assert gang.step([1.0] * 5) is None
    seconds = [1.0, 1.0, 1.0, 1.0 / relative, 1.0]
    assert steps_until_found(gang, seconds) == (steps, 3)
    assert steps == math.ceil(math.log((0.8 - relative) / (1 - relative)) / math.log(0.9))


def test_the_first_rank_is_never_one_and_slightly_slower_ranks_are_none(tmp_path):
    assert steps_until_found(Gang(tmp_path, 3), [4.0, 1.0, 1.0]) is None
    assert steps_until_found(Gang(tmp_path, 3), [1.0, 1.0, 1.2]) is None


def test_one_bad_step_after_a_change_makes_no_straggler(tmp_path):
    gang = Gang(tmp_path, 3)
    gang.step([1.0, 1.0, 1.0])
    assert gang.step([1.0, 1.0, 1.6]) is None
    assert steps_until_found(gang, [1.0, 1.0, 1.0]) is None


def test_the_slowest_of_several_is_named(tmp_path):
    assert steps_until_found(Gang(tmp_path, 6), [1, 1, 2, 1, 4, 1])[1] == 4


def test_what_was_before_a_change_of_the_gang_is_forgotten(tmp_path):
    gang = Gang(tmp_path, 3)
    for _ in range(LEAST_SAMPLES - 2):
        gang.step([1.0, 1.0, 4.0])
    gang.pulses.forget()
    assert steps_until_found(gang, [1.0, 1.0, 1.0]) is None


def hanging(tmp_path, phases):
    """A gang of which each rank has been in its phase for long, while it was looked at."""
    gang = Gang(tmp_path, len(phases))
    gang.now = 1000.0
    gang.look()
    for slot, phase in enumerate(phases):
        gang.write(slot, phase, 1000.5)
    gang.look()
    gang.now += HANGS_AFTER_S + 1
    return gang


def test_a_rank_that_others_have_waited_for_too_long_hangs(tmp_path):
    gang = hanging(tmp_path, [WAITING, COMPUTING, WAITING])
    assert gang.look() == 1
    gang.now -= 2
    assert gang.look() is None


def test_one_that_evaluates_does_not_hang_nor_do_those_that_all_compute(tmp_path):
    assert hanging(tmp_path, [WAITING, EVALUATING]).look() is None
    assert hanging(tmp_path, [COMPUTING, COMPUTING]).look() is None
    assert hanging(tmp_path, [WAITING, WAITING]).look() is None


def test_one_whose_steps_are_long_has_more_time(tmp_path):
    gang = hanging(tmp_path, [WAITING, COMPUTING])
    assert gang.look(step_s=10.0) is None
    assert gang.look(step_s=0.1) == 1


def test_time_in_which_the_job_was_suspended_does_not_count(tmp_path):
    gang = hanging(tmp_path, [WAITING, COMPUTING])
    gang.pulses.forget()
    assert gang.look() is None
    gang.now += HANGS_AFTER_S - 1
    assert gang.look() is None
    gang.now += 2
    assert gang.look() == 1


def test_one_that_owes_the_agent_an_answer_hangs_in_any_phase_but_validation(tmp_path):
    gang = hanging(tmp_path, [WAITING, WAITING, EVALUATING])
    assert gang.look(awaited=[1, 2]) is None
    gang.now += HANGS_AFTER_S - 1
    assert gang.look(awaited=[1, 2]) is None
    gang.now += 2
    assert gang.look(awaited=[1, 2]) == 1
    assert gang.look(awaited=[2]) is None
    assert gang.look(awaited=[1]) is None  # asked once more


def test_ranks_that_have_not_written_yet_are_waited_for(tmp_path):
    gang = Gang(tmp_path, 2)
    gang.write(0, WAITING, 1.0)
    assert gang.look() is None
    (tmp_path / "rank1.pulse").write_bytes(b"short")
    assert gang.look() is None
