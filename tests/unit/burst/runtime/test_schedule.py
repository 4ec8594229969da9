"""The order of stages, and where samples are in each."""

import pytest

from rota.burst.planner.plan import Group
from rota.burst.runtime.schedule import END, Layout, Schedule
from rota.errors import InputError

NAMES = ("a", "b", "c", "d")
INPUTS = (("input:0",), ("a",), ("b",), ("c", "a"))


def schedule(*sizes, ranks=4):
    return Schedule(NAMES, INPUTS, "d", [Group(0, size) for size in sizes], ranks)


def test_layers_of_one_group_in_a_row_are_one_stage():
    made = schedule(4, 4, 1, 4)
    assert [stage.layers for stage in made.stages] == [(0, 1), (2,), (3,)]
    assert made.stages[2].takes == ("c", "a")
    assert made.stages[0].gives == ("a", "b")


def test_all_layers_on_all_ranks_is_data_parallelism_without_moves():
    made = schedule(4, 4, 4, 4)
    assert made.in_one
    assert all(way.source == way.target for way in Layout(made, [8, 8, 8, 8]).ways)


def test_a_value_that_two_stages_of_a_group_read_travels_once():
    made = Schedule(NAMES, (("input:0",), ("a",), ("b",), ("b", "a")), "d",
                    [Group(0, 1), Group(0, 4), Group(0, 2), Group(0, 4)], 4)  # fmt: skip
    layout = Layout(made, [2, 2, 2, 2])
    assert [way.takers for way in layout.ways if way.value == "a"] == [(1, 3)]
    assert layout.arriving[1, "a"] == layout.arriving[3, "a"]


def test_a_batch_smaller_than_a_group_uses_its_first_ranks():
    layout = Layout(schedule(4, 4, 1, 4), [1, 1, 0, 0])
    assert layout.active(0) == (0, 1)
    assert layout.end == ((0,), (1,), (), ())


def test_a_rank_without_samples_gets_outputs_of_copies_and_gives_no_gradient():
    layout = Layout(schedule(4, 4, 1, 4), [2, 0, 2, 2], [2, 3, 2, 2])
    way = layout.ways[layout.arriving[END, "d"]]
    assert way.target[1] == (0, 1, 2)
    assert way.back[1] == ()


def test_rank_0_takes_part_in_a_batch_of_which_it_has_no_sample():
    for counts in ([0, 1, 0, 1], [0, 1, 1, 1]):
        layout = Layout(schedule(4, 4, 4, 4), counts)
        assert layout.active(0)[0] == 0


def test_a_plan_for_other_layers_or_ranks_is_refused():
    with pytest.raises(InputError, match="has 3 layers and the model 4"):
        Schedule(NAMES, INPUTS, "d", [Group(0, 1)] * 3, 4)
    with pytest.raises(InputError, match="layer b: its ranks are 2 to 4, and there are 4"):
        Schedule(NAMES, INPUTS, "d", [Group(0, 1), Group(2, 3), *[Group(0, 1)] * 2], 4)
