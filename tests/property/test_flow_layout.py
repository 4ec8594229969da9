"""What must hold when any array goes from any layout to any other, on tensors of torch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rota.flow.layout import Replicated, Split, pieces, shard_shape, whole_shape

SHAPES = st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple)
SHARDS = st.integers(1, 6)


@st.composite
def arrays(draw):
    """A shape, and two layouts that it can have."""
    shape = draw(SHAPES)
    layouts = st.just(Replicated())
    if shape:
        layouts |= st.integers(-len(shape), len(shape) - 1).map(Split)
    return shape, draw(layouts), draw(layouts)


def cut(array, layout, shards):
    """The shards as torch cuts them."""
    if isinstance(layout, Split):
        return torch.tensor_split(array, shards, dim=layout.dim)
    return (array,) * shards


def part(tensor, region):
    return tensor if region is None else tensor.narrow(region[0], region[1], region[2] - region[1])


def numbered(shape):
    return torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape)


@given(arrays(), SHARDS)
def test_shapes_are_those_of_tensor_split(array, shards):
    shape, layout, _ = array
    shapes = [tuple(shard.shape) for shard in cut(numbered(shape), layout, shards)]
    assert [shard_shape(shape, layout, shards, index) for index in range(shards)] == shapes
    assert whole_shape(shapes, layout) == shape


@given(arrays(), SHARDS, SHARDS)
def test_pieces_make_the_target_shard_each_element_once(array, sources, targets):
    shape, source, target = array
    held = cut(numbered(shape), source, sources)
    for index, expected in enumerate(cut(numbered(shape), target, targets)):
        made, times = torch.zeros_like(expected), torch.zeros_like(expected)
        for piece in pieces(shape, source, sources, target, targets, index):
            place = part(made, piece.place)
            sent = part(held[piece.shard], piece.region)
            assert place.shape == sent.shape
            place.copy_(sent)
            part(times, piece.place).add_(1)
        assert torch.equal(made, expected)
        assert torch.equal(times, torch.ones_like(expected))


@given(arrays(), SHARDS, SHARDS)
def test_pieces_laid_side_by_side_are_the_target_shard(array, sources, targets):
    shape, source, target = array
    held = cut(numbered(shape), source, sources)
    for index, expected in enumerate(cut(numbered(shape), target, targets)):
        found = pieces(shape, source, sources, target, targets, index)
        if len(found) > 1:
            sent = [part(held[piece.shard], piece.region) for piece in found]
            assert torch.equal(torch.cat(sent, dim=found[0].place.dim), expected)


@given(arrays(), SHARDS, SHARDS)
def test_no_piece_is_empty_unless_nothing_moves(array, sources, targets):
    shape, source, target = array
    held = cut(numbered(shape), source, sources)
    if (source, sources) == (target, targets):
        return
    for index in range(targets):
        for piece in pieces(shape, source, sources, target, targets, index):
            assert part(held[piece.shard], piece.region).numel()
