"""Where the elements of a logical array lie, and what moves when its layout changes."""

from collections import Counter

import pytest

from rota.errors import InputError
from rota.flow.layout import (
    Each,
    Piece,
    Region,
    Replicated,
    Split,
    pieces,
    shard_shape,
    whole_shape,
)


def shapes_of(shape, layout, shards):
    return [shard_shape(shape, layout, shards, index) for index in range(shards)]


def test_the_first_shards_of_a_split_have_one_more():
    assert shapes_of((7, 2), Split(0), 3) == [(3, 2), (2, 2), (2, 2)]
    assert shapes_of((2, 7), Split(-1), 3) == [(2, 3), (2, 2), (2, 2)]


def test_the_last_shards_of_a_short_array_are_empty():
    assert shapes_of((2,), Split(0), 4) == [(1,), (1,), (0,), (0,)]


@pytest.mark.parametrize("layout", [Replicated(), Each()])
def test_shards_that_are_not_split_have_the_whole_shape(layout):
    assert shapes_of((7, 2), layout, 2) == [(7, 2), (7, 2)]
    assert whole_shape([(7, 2), (7, 2)], layout) == (7, 2)


def test_layouts_of_different_meaning_are_not_equal():
    assert len({Replicated(), Each(), Split(0), Split(1)}) == 4


@pytest.mark.parametrize(
    "shapes, layout, what",
    [
        ([(6,), (4,)], Split(0), r"shard 0 of 2 has shape \(6,\).* must have \(5,\)"),
        ([(3, 2), (2, 4)], Split(0), r"shard 1 of 2 has shape \(2, 4\).* must have \(2, 2\)"),
        ([(2,), (2, 1)], Split(0), r"shard 0 of 2 has shape \(2,\)"),
        ([(2,), (3,)], Replicated(), r"shard 1 of 2 has shape \(3,\).* must have \(2,\)"),
        ([(2,), (3,)], Each(), r"shard 1 of 2 has shape \(3,\).* must have \(2,\)"),
        ([()], Split(0), r"Split\(dim=0\) of an array of shape \(\).*say Replicated\(\)"),
        ([], Split(0), "there is none"),
    ],
)
def test_shards_that_make_no_array_are_refused(shapes, layout, what):
    with pytest.raises(InputError, match=what):
        whole_shape(shapes, layout)


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_the_array_lacks_is_refused(dim):
    with pytest.raises(InputError, match=r"has 2 dimensions; give one from -2 to 1"):
        shard_shape((4, 4), Split(dim), 2, 0)
    for source, target in ((Split(dim), Replicated()), (Replicated(), Split(dim))):
        with pytest.raises(InputError, match="has 2 dimensions"):
            pieces((4, 4), source, 2, target, 2, 0)
    with pytest.raises(InputError, match="has 2 dimensions"):
        pieces((4, 4), Split(dim), 2, Split(dim), 2, 0)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_shard_that_the_slice_lacks_is_refused(index):
    with pytest.raises(InputError, match=rf"{index} of 2; there are shards 0 to 1"):
        shard_shape((4,), Split(0), 2, index)
    with pytest.raises(InputError, match=rf"{index} of 2; there are shards 0 to 1"):
        pieces((4,), Replicated(), 3, Replicated(), 2, index)


@pytest.mark.parametrize("layout", [Split(0), Replicated(), Each()])
@pytest.mark.parametrize("shape", [(5, 3), (0, 3), (1,)])
def test_an_array_that_stays_as_it_is_is_one_whole_piece(layout, shape):
    for index in range(3):
        assert pieces(shape, layout, 3, layout, 3, index) == (Piece(index, None, None),)


def test_a_split_named_from_the_last_dimension_is_the_same_one():
    assert pieces((5, 3), Split(1), 2, Split(-1), 2, 1) == (Piece(1, None, None),)


def test_scattered_each_shard_takes_its_range():
    assert pieces((5, 3), Replicated(), 1, Split(0), 2, 1) == (Piece(0, Region(0, 3, 5), None),)


def test_gathered_whole_shards_lie_one_behind_the_other():
    assert pieces((5, 3), Split(0), 2, Replicated(), 1, 0) == (
        Piece(0, None, Region(0, 0, 3)),
        Piece(1, None, Region(0, 3, 5)),
    )


def test_split_along_another_dimension_every_shard_has_a_part():
    assert pieces((4, 5), Split(0), 2, Split(1), 2, 1) == (
        Piece(0, Region(1, 3, 5), Region(0, 0, 2)),
        Piece(1, Region(1, 3, 5), Region(0, 2, 4)),
    )


def test_split_over_more_shards_only_those_that_have_the_range_are_asked():
    # 3 + 3 becomes 2 + 2 + 2.
    assert [pieces((6,), Split(0), 2, Split(0), 3, index) for index in range(3)] == [
        (Piece(0, Region(0, 0, 2), None),),
        (Piece(0, Region(0, 2, 3), Region(0, 0, 1)), Piece(1, Region(0, 0, 1), Region(0, 1, 2))),
        (Piece(1, Region(0, 1, 3), None),),
    ]


def test_a_shard_without_elements_has_no_pieces():
    assert pieces((2,), Replicated(), 2, Split(0), 3, 2) == ()
    assert pieces((0, 4), Split(1), 2, Replicated(), 3, 0) == ()


@pytest.mark.parametrize("target", [Split(0), Replicated()])
@pytest.mark.parametrize("sources", [1, 2, 3, 8])
@pytest.mark.parametrize("targets", [1, 2, 5, 8])
def test_copies_are_asked_in_turn(target, sources, targets):
    asked = Counter(dict.fromkeys(range(sources), 0))
    for index in range(targets):
        (piece,) = pieces((64,), Replicated(), sources, target, targets, index)
        asked[piece.shard] += 1
    assert max(asked.values()) - min(asked.values()) <= 1


@pytest.mark.parametrize(
    "source, sources, target, targets",
    [
        (Each(), 2, Each(), 3),
        (Each(), 2, Replicated(), 2),
        (Each(), 2, Split(0), 2),
        (Split(0), 2, Each(), 2),
        (Replicated(), 2, Each(), 2),
        (Each(), 1, Each(), 2),
    ],
)
def test_shards_that_are_no_parts_of_a_whole_stay_where_they_are(source, sources, target, targets):
    with pytest.raises(InputError, match=r"can't become .*say Split\(dim\) or Replicated\(\)"):
        pieces((4,), source, sources, target, targets, 0)


def test_a_single_shard_is_a_whole_whatever_is_said_of_it():
    assert pieces((4,), Each(), 1, Split(0), 2, 1) == (Piece(0, Region(0, 2, 4), None),)
    assert pieces((4,), Split(0), 2, Each(), 1, 0) == (
        Piece(0, None, Region(0, 0, 2)),
        Piece(1, None, Region(0, 2, 4)),
    )


def test_of_two_thousand_shards_two_are_asked():
    found = pieces((1 << 20,), Split(0), 2048, Split(0), 1024, 1023)
    assert [piece.shard for piece in found] == [2046, 2047]
