"""Every sample of an epoch is seen once, in an order that the seed alone gives."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from rota.errors import InputError
from rota.train.loader import Loader, batch_policy
from rota.train.world import World


class Numbers(Dataset):
    """Its items are the indices, with noise from the generators that programs use."""

    def __init__(self, size=23):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, random.random() + torch.rand(()).item()


class Bulk(Numbers):
    def __getitems__(self, indices):
        return [("all at once", index) for index in indices]


def make(dataset=None, batch_size=6, shards=3, **options):
    loader = Loader(
        Numbers() if dataset is None else dataset,
        batch_size,
        shards=shards,
        world=World(),
        batches=lambda: iter(()),
        **options,
    )
    loader._world.size, loader._world.rank = 1, 0
    return loader


def epoch_of(loader, sizes=(1,)):
    """What all ranks load in one epoch, batch by batch, in worlds of these sizes in turn."""
    seen = []
    while len(loader.indices()):
        loader._world.size = sizes[len(seen) % len(sizes)]
        batch = []
        for rank in range(loader._world.size):
            loader._world.rank = rank
            for piece in loader.pieces_of(rank):
                indices, noise = loader.load(piece)
                if piece.weight:
                    batch += zip(indices.tolist(), noise.tolist(), strict=True)
        seen.append(batch)
        loader.advance()
    loader.close()
    return seen


@settings(deadline=None, max_examples=25)
@given(
    size=st.integers(3, 40),
    batch_size=st.integers(3, 12),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    whole=st.booleans(),
)
def test_each_sample_comes_once_whatever_the_resizes(size, batch_size, sizes, whole):
    loader = make(Numbers(size), batch_size)
    loader.whole = whole
    batches = epoch_of(loader, sizes)
    assert sorted(index for batch in batches for index, _ in batch) == list(range(size))
    assert len(batches) == len(loader)
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}


@pytest.mark.parametrize("whole", [False, True])
def test_batches_that_grow_with_the_gang_show_each_sample_once(whole):
    loader = make(Numbers(23), 8, shards=4, per_rank=2)
    loader.whole = whole
    sizes, seen = [1, 3, 2, 4, 1], []
    for size in [*sizes, 4]:
        loader._world.size = size
        loader.fit()
        assert loader.batch_size == 2 * size
        pieces = [loader.pieces_of(rank) for rank in range(size)]
        assert [len(each) for each in pieces] == [1] * size
        seen += [index for (piece,) in pieces if piece.weight for index in piece.samples]
        loader._world.size = 1  # lost in the middle of the batch, which stays as it is
        again = [index for piece in loader.pieces_of(0) for index in piece.samples]
        assert again == list(loader.indices())
        loader.advance()
    assert sorted(seen) == list(range(23))
    assert not len(loader.indices())


def test_order_and_augmentation_do_not_depend_on_the_number_of_ranks_or_workers():
    expected = epoch_of(make())
    assert epoch_of(make(), (3, 1, 2)) == expected
    assert epoch_of(make(num_workers=2)) == expected
    assert epoch_of(make(num_workers=1), (1, 3)) == expected


def test_auto_takes_as_many_workers_as_cores_in_each_epoch_anew_for_the_same_bits():
    loader, fixed = make(num_workers="auto"), make()
    counts = []
    for epoch, millicores in enumerate((2500, 1000, 2000)):
        loader._world.cores.millicores = millicores
        loader._world.cores.bound = lambda: 8
        loader.next_epoch(epoch)
        fixed.next_epoch(epoch)
        seen = []
        while len(loader.indices()):
            for piece in loader.pieces_of(0):
                seen.append(loader.load(piece))
                same = fixed.load(piece)
                assert all(map(torch.equal, seen[-1], same))
            loader._world.cores.millicores = 16000  # it waits for the next epoch
            counts.append(loader.workers)
            loader.advance()
            fixed.advance()
    loader.close()
    assert counts == [2] * 4 + [1] * 4 + [2] * 4


def test_no_more_workers_are_started_than_there_are_pieces():
    loader = make(Numbers(6), shards=2, num_workers="auto")
    loader._world.cores.millicores = 16000
    loader._world.cores.bound = lambda: 16
    loader.load(loader.pieces_of(0)[0])
    assert loader.workers == 2
    loader.close()


def test_seed_and_epoch_change_the_order_and_shuffle_can_be_left_out():
    first = [index for batch in epoch_of(make()) for index, _ in batch]
    other = [index for batch in epoch_of(make(seed=1)) for index, _ in batch]
    assert first != other
    loader = make()
    loader.next_epoch(1)
    assert [index for batch in epoch_of(loader) for index, _ in batch] != first
    plain = [index for batch in epoch_of(make(shuffle=False)) for index, _ in batch]
    assert plain == list(range(23))


def test_the_last_batch_is_smaller_or_is_dropped():
    assert [len(batch) for batch in epoch_of(make())] == [6, 6, 6, 5]
    dropped = make(drop_last=True)
    assert [len(batch) for batch in epoch_of(dropped)] == [6, 6, 6]
    assert len(dropped) == 3
    assert [len(batch) for batch in epoch_of(make(Numbers(24), drop_last=True))] == [6] * 4


def test_datasets_that_load_several_items_at_once_are_asked_to():
    loader = make(Bulk(), collate_fn=list)
    piece = loader.pieces_of(0)[0]
    assert loader.load(piece) == [("all at once", index) for index in piece.samples]


def test_training_goes_on_from_a_position_in_the_middle_of_an_epoch():
    expected = epoch_of(make())
    for workers in (0, 1):
        loader = make(num_workers=workers)
        loader.position.samples, loader.position.batches = 12, 2
        assert epoch_of(loader) == expected[2:]


def test_workers_start_anew_where_a_rank_is_sent_back_to_its_first_piece():
    loader = make(num_workers=1)
    pieces = loader.pieces_of(0)
    first = [loader.load(piece) for piece in pieces]
    again = [loader.load(piece) for piece in pieces]
    loader.close()
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_a_piece_of_nobodys_share_is_loaded_without_the_workers():
    loader = make(num_workers=1)
    loader._world.size, loader._world.rank = 3, 2
    piece = loader.pieces_of(0, world_size=1)[0]
    assert loader.load(piece, ahead=False)[0].tolist() == list(piece.samples)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((None, None, None, None), "give either batch_size"),
        ((8, 2, None, None), "not batch_size=8 and batch_size_per_rank=2"),
        ((8, None, "sqrt", None), "lr_scaling='sqrt' is for batch_size_per_rank"),
        ((None, 2, "cubic", None), "'cubic' must be one of none, linear, sqrt, legw, adascale"),
        ((None, 0, None, None), "batch_size_per_rank=0 must be a whole number from 1"),
        ((None, 2, None, 4), "shards=4 is for batch_size;"),
    ],
)
def test_batch_policies_that_contradict_themselves_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        batch_policy(*options, 4)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Stream()}, "Stream has no length.*map-style dataset"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number from 1"),
        ({"batch_size": True}, "batch_size=True must be"),
        ({"shards": 1.5}, r"shards=1\.5 must be"),
        ({"num_workers": -1}, "num_workers=-1 must be a whole number from 0, or 'auto'"),
        ({"num_workers": "all"}, "num_workers='all' must be a whole number from 0, or 'auto'"),
        ({"shards": 7}, "a batch of 6 samples can't be cut into 7 shards; use a larger batch_size"),
        ({"dataset": Numbers(2)}, "the dataset has 2 samples.*less than one for each shard"),
        ({"dataset": Numbers(5), "drop_last": True}, "less than one batch"),
    ],
)
def test_what_can_not_be_shared_is_refused_with_what_to_do(options, words):
    with pytest.raises(InputError, match=words):
        make(**options)
