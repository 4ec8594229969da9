"""Where jobs live under Gandiva: heights, affinities and the choice of a node (OSDI 2018)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.policy.gandiva.servers import Servers


def servers(sizes=(4, 4, 4), limit=2, strict=True):
    return Servers(dict(enumerate(sizes)), {}, limit, strict=strict)


@pytest.mark.parametrize(("jobs", "height"), [(6, 2), (4, 1), (0, 0), (9, 3)])
def test_the_height_of_a_server_is_its_load_over_its_gpus_rounded_up(jobs, height):
    one = servers([4])
    for _ in range(jobs):
        one.add(((0, 1),))
    assert one.height(0) == height
    assert one.overloaded() == (height > 1)


@pytest.fixture
def three():
    """A: affinity 1, one GPU free; B: affinity 2, two free; C: nobody's."""
    made = servers()
    for _ in range(3):
        made.add(((0, 1),))
    made.add(((1, 2),))
    return made


def test_a_gang_goes_to_a_server_of_its_size_else_to_one_of_nobody(three):
    assert three.choose(1) == ((0, 1),)
    assert three.choose(2) == ((1, 2),)
    assert three.choose(4) == ((2, 4),)


def test_where_its_own_servers_are_full_it_takes_free_gpus_of_another(three):
    three.add(((0, 1),))
    three.add(((2, 4),))
    assert three.choose(1) == ((1, 1),)


def test_where_all_are_full_servers_of_its_size_are_promised_twice(three):
    for home in [((0, 1),), ((1, 2),), ((2, 4),)]:
        three.add(home)
    assert three.choose(1) == ((0, 1),)
    assert three.choose(2) == ((1, 2),)


def test_a_gang_without_a_server_of_its_size_or_free_gpus_is_queued():
    full = servers([4, 4])
    for node in (0, 1):
        for _ in range(4):
            full.add(((node, 1),))
    assert full.choose(2) is None
    assert servers([4], limit=1).choose(4) == ((0, 4),)


def test_unless_asked_to_be_strict_it_takes_turns_with_gangs_of_another_size():
    full = servers([4, 4], strict=False)
    for node in (0, 1):
        for _ in range(4 + node):
            full.add(((node, 1),))
    assert full.choose(2) == ((0, 2),)


def test_no_server_gets_higher_than_the_limit():
    one = servers([4], limit=2)
    for _ in range(8):
        one.add(one.choose(1))
    assert one.choose(1) is None


def test_a_server_that_is_left_by_all_has_no_affinity_any_more(three):
    three.remove(((1, 2),))
    assert three.affinity[1] == 0
    assert three.choose(4) == ((1, 4),)


def test_a_gang_larger_than_any_server_gets_whole_ones():
    made = servers()
    assert made.choose(8) == ((0, 4), (1, 4))
    made.add(((0, 4), (1, 4)))
    assert made.choose(12) == ((0, 4), (1, 4), (2, 4))
    assert made.choose(13) is None


def test_a_gang_on_several_nodes_lives_with_its_like():
    """Two that overlapped on one node only would leave the other nodes idle in turns."""
    made = servers([4] * 4, limit=4)
    made.add(((0, 4), (1, 4)))
    made.add(((2, 4),))
    made.add(((3, 4),))
    assert made.choose(8) == ((0, 4), (1, 4))


def test_a_gang_across_the_nodes_of_others_goes_where_its_like_live_if_that_is_no_higher():
    made = servers([4] * 4, limit=4)
    across = ((1, 4), (2, 4))
    made.add(((0, 4), (1, 4)))
    made.add(across)
    made.add(((2, 4),))
    assert made.with_its_like(across) == ((0, 4), (1, 4))
    assert made.with_its_like(((0, 4), (1, 4))) is None
    for _ in range(2):
        made.add(((0, 4),))
    assert made.with_its_like(across) is None


def test_who_lives_among_gangs_of_another_size_goes_to_its_own_if_those_are_no_higher():
    made = servers(limit=4)
    made.add(((0, 4), (1, 4)))
    made.add(((0, 1),))  # a single job among gangs that need the whole of two nodes
    for _ in range(4):
        made.add(((2, 1),))
    assert made.affinity == {0: 8, 1: 8, 2: 1}
    assert made.of_its_size(((0, 1),)) == ((2, 1),)
    assert made.of_its_size(((2, 1),)) is None
    for _ in range(4):
        made.add(((2, 1),))
    assert made.of_its_size(((0, 1),)) is None


def test_fragments_are_better_than_the_queue(three):
    three.add(((2, 4),))
    assert three.choose(3) == ((0, 1), (1, 2))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30), st.booleans())
def test_whoever_comes_and_goes_loads_add_up_and_keep_to_the_limit(story, strict):
    made, homes = servers(limit=3, strict=strict), []
    for num_gpus, leaves in story:
        if leaves and homes:
            made.remove(homes.pop(num_gpus % len(homes)))
        home = made.choose(num_gpus)
        if home is not None:
            assert sum(gpus for _, gpus in home) == num_gpus
            made.add(home)
            homes.append(home)
        for node in made.sizes:
            assert made.load[node] == sum(g for home in homes for n, g in home if n == node)
            assert made.height(node) <= 3
            assert bool(made.affinity[node]) == bool(made.load[node])
