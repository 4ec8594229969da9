"""Batches are cut into shards, and shards shared out, without a sample lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import InputError
from rota.train.shards import one_piece, pieces, seed_of, shards_of_rank


@given(st.integers(1, 64), st.data())
def test_ranks_share_all_shards_in_runs_of_nearly_equal_length(num_shards, data):
    world = data.draw(st.integers(1, num_shards))
    runs = [shards_of_rank(num_shards, world, rank) for rank in range(world)]
    assert [shard for run in runs for shard in run] == list(range(num_shards))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_more_ranks_than_shards_are_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"5 ranks can't share 4 virtual shards.*shards=5"):
        shards_of_rank(4, 5, 0)


@pytest.mark.parametrize("cut", [pieces, one_piece])
@given(batch=st.lists(st.integers(0, 1000), min_size=1, max_size=50, unique=True), data=st.data())
def test_every_sample_is_in_one_piece_of_one_rank_and_weighs_the_same(cut, batch, data):
    shards = data.draw(st.integers(1, 16))
    world = data.draw(st.integers(1, shards))
    size = data.draw(st.integers(-(-len(batch) // shards), 50))
    found = [
        piece
        for rank in range(world)
        for piece in cut(batch, size, shards_of_rank(shards, world, rank))
    ]
    weighed = [sample for piece in found if piece.weight for sample in piece.samples]
    assert weighed == batch
    for piece in found:
        assert piece.samples  # also what weighs nothing: a rank must take part
        assert not piece.weight or piece.weight == len(piece.samples) / len(batch)


def test_pieces_do_not_depend_on_the_number_of_ranks():
    batch = range(23)
    cuts = [
        [p for rank in range(world) for p in pieces(batch, 3, shards_of_rank(8, world, rank))]
        for world in range(1, 9)
    ]
    for cut in cuts:
        assert [(p.shard, list(p.samples)) for p in cut] == [
            (p.shard, list(p.samples)) for p in cuts[0]
        ]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4), st.integers(0, 3))
def test_seeds_are_63_bits_that_any_number_changes(numbers, position):
    seed = seed_of(*numbers)
    assert 0 <= seed < 2**63
    assert seed == seed_of(*numbers)
    changed = list(numbers)
    changed[position % len(numbers)] += 1
    assert seed_of(*changed) != seed
