"""Samples keep to their ranks where they can, and arrive where they are wanted."""

from hypothesis import given
from hypothesis import strategies as st

from rota.burst.planner.plan import Group
from rota.burst.runtime.placement import in_order, move, spread

RANKS = 6
counts = st.lists(st.integers(0, 9), min_size=RANKS, max_size=RANKS)
groups = st.integers(1, RANKS).flatmap(
    lambda size: st.builds(Group, st.integers(0, RANKS - size), st.just(size))
)


@given(counts, groups)
def test_a_group_has_every_sample_once_and_evenly(counts, group):
    placed = spread(in_order(counts), group)
    assert sorted(sample for own in placed for sample in own) == list(range(sum(counts)))
    within = [len(own) for own in placed[group.first : group.end]]
    assert sum(within) == sum(counts)
    assert max(within) - min(within) <= 1


@given(counts, groups)
def test_a_rank_keeps_what_it_has_up_to_its_part(counts, group):
    before = in_order(counts)
    after = spread(before, group)
    for had, has in zip(before, after, strict=True):
        assert len(set(had) & set(has)) == min(len(had), len(has))


@given(counts, groups, groups)
def test_what_is_sent_is_what_is_taken(counts, first, second):
    source = spread(in_order(counts), first)
    target = spread(source, second)
    moves = [move(source, target, rank) for rank in range(RANKS)]
    assert len({each.ranks for each in moves}) == 1
    for taker, wanted in enumerate(target):
        part = moves[taker]
        found = dict(zip(part.kept[1], (source[taker][at] for at in part.kept[0]), strict=True))
        for place, sender in enumerate(part.ranks):
            theirs = moves[sender]
            if taker in part.ranks:
                sent = theirs.sent[theirs.ranks.index(taker)]
                rows = [source[sender][at] for at in sent]
                found |= zip(part.taken[place], rows, strict=True)
        assert [found[row] for row in range(part.rows)] == list(wanted)


def test_nothing_moves_between_equal_placements():
    placed = in_order([3, 3, 2])
    part = move(placed, placed, 1)
    assert part.stays
    assert part.ranks == ()


def test_two_ranks_that_grow_to_four_send_half_of_what_they_have():
    part = move(in_order([4, 4, 0, 0]), spread(in_order([4, 4, 0, 0]), Group(0, 4)), 0)
    assert part.kept == ((0, 1), (0, 1))
    assert part.sent == ((), (), (2, 3), ())
