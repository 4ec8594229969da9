"""Sums over shards have the same bits however many ranks compute them."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rota.errors import InputError
from rota.train.gradients import Gradients
from rota.train.norms import Norms
from rota.train.shard_tree import ShardTree, nodes_of, reduce_tree
from rota.train.shards import shards_of_rank


class Ranks:
    """The collectives that a reduction needs, among the threads of this process."""

    def __init__(self, world):
        self.world = world
        self.barrier = threading.Barrier(world, timeout=20)
        self.board = [None] * world
        self.mine = threading.local()

    def swap(self, value):
        self.barrier.wait()
        self.board[self.mine.rank] = value
        self.barrier.wait()
        return list(self.board)

    def all_to_all_single(self, output, data, received, sent):
        parts = []
        for each, counts in self.swap((data, sent)):
            first = sum(counts[: self.mine.rank])
            parts.append(each[first : first + counts[self.mine.rank]])
        assert [len(part) for part in parts] == received
        output.copy_(torch.cat(parts))

    def all_gather(self, outputs, data, async_op=False):
        for output, value in zip(outputs, self.swap(data), strict=True):
            output.copy_(value)
        return SimpleNamespace(wait=lambda: None)

    def broadcast(self, data, source):
        data.copy_(self.swap(data.clone())[source])

    def run(self, work):
        """What ``work(rank)`` gives for each rank."""
        results, failures = [None] * self.world, []

        def body(rank):
            self.mine.rank = rank
            try:
                results[rank] = work(rank)
            except BaseException as error:
                failures.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(r,)) for r in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if failures:
            raise failures[0]
        return results


@pytest.fixture
def ranks(monkeypatch):
    def make(world):
        made = Ranks(world)
        for name in ("all_to_all_single", "all_gather", "broadcast"):
            monkeypatch.setattr(dist, name, getattr(made, name))
        monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
        monkeypatch.setattr(dist, "get_world_size", lambda: world)
        return made

    return make


def leaves(num_shards, length, seed=0):
    """Vectors whose sum depends on the order of adding."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-12, 12, (num_shards, length), generator=generator)
    return torch.randn(num_shards, length, generator=generator) * 2.0**exponents


def alone(values, shards):
    tree = ShardTree()
    for shard in shards:
        tree.add((0, shard), values[shard].clone())
    return tree.total(1 + max(shards))


@settings(deadline=None, max_examples=40)
@given(num_shards=st.integers(1, 12), length=st.integers(1, 30), data=st.data())
def test_sums_have_the_same_bits_for_every_world_size(num_shards, length, data):
    values = leaves(num_shards, length, data.draw(st.integers(0, 99)))
    last = data.draw(st.integers(1, num_shards))  # a small batch leaves the last shards empty
    present = set(range(last))
    world = data.draw(st.integers(1, num_shards))
    shares = [
        [s for s in shards_of_rank(num_shards, world, r) if s in present] for r in range(world)
    ]
    with pytest.MonkeyPatch.context() as patch:
        threads = Ranks(world)
        patch.setattr(dist, "all_to_all_single", threads.all_to_all_single)
        patch.setattr(dist, "all_gather", threads.all_gather)

        def work(rank):
            tree = ShardTree()
            for shard in shares[rank]:
                tree.add((0, shard), values[shard].clone())
            return reduce_tree(tree, lambda: torch.empty(length), shares, rank)

        results = threads.run(work)
    expected = alone(values, sorted(present))
    assert all(torch.equal(result, expected) for result in results)


@given(st.permutations(range(11)))
def test_the_order_in_which_shards_come_does_not_matter(order):
    values = leaves(11, 5)
    assert torch.equal(alone(values, order), alone(values, range(11)))


@given(st.sets(st.integers(0, 40), min_size=1))
def test_a_tree_keeps_the_largest_whole_subtrees(shards):
    tree = ShardTree()
    for shard in shards:
        tree.add((0, shard), torch.ones(1))
    assert sorted(tree.sums, key=lambda node: node[1] << node[0]) == nodes_of(sorted(shards))
    covered = [index * 2**level + i for level, index in tree.sums for i in range(2**level)]
    assert sorted(covered) == sorted(shards)
    assert tree.total(1 + max(shards)).item() == len(shards)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).double())


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model()
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner[2](self.inner[1](self.inner[0](x)).double())


def one_batch(x, world, rank, net, gradients, number=0):
    shards_of = [list(shards_of_rank(4, world, r)) for r in range(world)]
    mine = shards_of[rank]
    gradients.begin(len(mine) / 4, alone=False)
    for position, shard in enumerate(mine):
        if position:
            gradients.next_shard()
        net(x[3 * shard : 3 * shard + 3]).square().mean().backward()
        gradients.take(shard, 0.25)
    gradients.reduce(shards_of, rank, number)


def of(net, **options):
    return Gradients(list(net.parameters()), list(net.buffers()), **options)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_gradients_of_all_types_and_running_statistics_are_means_over_the_shards(ranks, world):
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    expected = Casting()
    gradients = of(expected)
    one_batch(x, 1, 0, expected, gradients)
    gradients.give()

    nets = [Casting() for _ in range(world)]
    threads = ranks(world)

    # Autograd is not what is tested here, and its engine would run the threads side by side.
    lock = threading.Lock()

    def work(rank):
        own = of(nets[rank])
        shards_of = [list(shards_of_rank(4, world, r)) for r in range(world)]
        with lock:
            own.begin(len(shards_of[rank]) / 4, alone=False)
            for position, shard in enumerate(shards_of[rank]):
                if position:
                    own.next_shard()
                nets[rank](x[3 * shard : 3 * shard + 3]).square().mean().backward()
                own.take(shard, 0.25)
        own.reduce(shards_of, rank, 0)
        own.give()

    threads.run(work)
    for net in nets:
        for one, other in zip(net.parameters(), expected.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.equal(one.grad, other.grad)
        for one, other in zip(net.buffers(), expected.buffers(), strict=True):
            assert torch.equal(one, other)
    assert expected.unused.weight.grad is None
    whole = Casting()
    whole.eval()  # the mean of the running means of shards is that of the whole batch
    mean = torch.stack([expected.inner[0](x[i : i + 3]).mean(0) for i in range(0, 12, 3)]).mean(0)
    torch.testing.assert_close(expected.inner[1].running_mean, 0.1 * mean)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_norms_of_the_shards_and_of_their_mean_are_measured(ranks, world):
    """For types of their own and for parameters without a gradient; on all ranks alike."""
    nets = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()) for _ in range(world)]
    known = [of(net, norms=Norms(list)) for net in nets]
    values = torch.arange(4 * 18.0).reshape(4, 18).sin()

    def work(rank):
        parameters = list(nets[rank].parameters())
        shards_of = [list(shards_of_rank(4, world, r)) for r in range(world)]
        known[rank].begin(len(shards_of[rank]) / 4, alone=False)
        for shard in shards_of[rank]:
            parts = values[shard].split([p.numel() for p in parameters] + [6])
            for parameter, value in zip(parameters[1:], parts[1:], strict=False):
                parameter.grad = value.view_as(parameter).to(parameter.dtype)
            known[rank].take(shard, 0.25)
        known[rank].reduce(shards_of, rank, 0)
        known[rank].give(4, 2.0)

    ranks(world).run(work)
    seen = values[:, 4:12]
    expected = seen.square().sum(1).mean().item(), seen.mean(0).square().sum().item()
    for gradients in known:
        assert gradients.squares[:2] == pytest.approx(expected, rel=1e-5)
        assert gradients.squares[2:] == (4, 2.0, False)


def test_a_batch_that_is_begun_once_more_starts_from_the_same_statistics():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    once, twice = Casting(), Casting()
    for net, tries in ((once, 1), (twice, 2)):
        gradients = of(net)
        if tries == 2:
            gradients.begin(1.0, alone=False)
            net(x[:3]).square().mean().backward()
            gradients.take(0, 0.25)
        one_batch(x, 1, 0, net, gradients)
        gradients.give()
    for one, other in zip(once.buffers(), twice.buffers(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(once.inner[0].weight.grad, twice.inner[0].weight.grad)


def test_those_that_have_a_sum_hand_it_to_those_that_do_not(ranks):
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    ahead, behind, third = Casting(), Casting(), Casting()
    known = [of(ahead), of(behind), of(third)]
    one_batch(x, 1, 0, ahead, known[0], number=7)
    known[1].reduced_batch = known[2].reduced_batch = 6
    threads = ranks(3)
    threads.run(lambda rank: known[rank].settle(rank, 3))
    for gradients in known:
        gradients.give()
    assert [gradients.reduced_batch for gradients in known] == [7, 7, 7]
    for net in (behind, third):
        assert torch.equal(net.inner[0].weight.grad, ahead.inner[0].weight.grad)
        assert net.unused.weight.grad is None


def test_a_lone_piece_leaves_its_gradients_where_they_are():
    net = SimpleNamespace(weight=nn.Parameter(torch.ones(3)))
    gradients = Gradients([net.weight], [])
    gradients.begin(1.0, alone=True)
    (net.weight * 2).sum().backward()
    grad = net.weight.grad
    gradients.take(0, 1.0)
    gradients.reduce([[0]], 0, 0)
    gradients.give()
    assert net.weight.grad is grad


def reduced(ranks, world, nets, loss_of, **options):
    """One batch of four shards on so many ranks: what each rank's ``Gradients`` has given back."""
    lock = threading.Lock()  # autograd's engine would run the threads side by side

    def work(rank):
        own = of(nets[rank], **options)
        shards_of = [list(shards_of_rank(4, world, r)) for r in range(world)]
        with lock:
            own.begin(len(shards_of[rank]) / 4, alone=False, last=3)
            for position, shard in enumerate(shards_of[rank]):
                if position:
                    own.next_shard()
                loss_of(nets[rank], shard).backward()
                own.take(shard, 0.25)
        own.reduce(shards_of, rank, 0)
        own.give()
        return own

    return ranks(world).run(work)


class Counting(nn.Module):
    """Its buffers of several types change by what it sees."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1).half()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("large", torch.full((3,), -(2**62) + 1))
        self.register_buffer("odd", torch.tensor([False, True]))
        self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("mask", torch.ones(64, dtype=torch.bool))

    def forward(self, shard):
        with torch.no_grad():
            self.seen += 10**shard
            self.large += shard
            self.odd.logical_not_() if shard % 2 else None
            self.wave += torch.tensor([1 + 2j, -1j]) * shard
        return self.linear(torch.full((2,), float(shard), dtype=torch.half)).sum()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_integer_buffers_are_those_of_the_last_shard_and_complex_ones_are_means(ranks, world):
    nets = [Counting() for _ in range(world)]
    reduced(ranks, world, nets, lambda net, shard: net(shard))
    for net in nets:
        assert net.seen.item() == 1000
        assert net.large.tolist() == [-(2**62) + 4] * 3
        assert net.odd.tolist() == [True, False]
        assert net.wave.tolist() == [1.5 + 3j, -1.5j]


def test_a_large_integer_buffer_that_forward_changes_is_refused():
    net = Counting()
    gradients = of(net)
    gradients.begin(1.0, alone=True)
    net.mask[3] = False
    with pytest.raises(InputError, match="an integer buffer of 64 numbers"):
        gradients.take(0, 1.0)


@pytest.mark.parametrize("alone", [True, False])
def test_sparse_gradients_are_refused(alone):
    net = nn.Embedding(4, 2, sparse=True)
    gradients = of(net)
    gradients.begin(1.0, alone=alone)
    net(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match=r"shape \(4, 2\) is sparse.*sparse=False"):
        gradients.take(0, 1.0)


@pytest.mark.parametrize("world", [1, 2])
def test_squares_of_small_types_are_added_up_in_single_precision(ranks, world):
    nets = [nn.Linear(2, 1, bias=False).half() for _ in range(world)]

    def loss_of(net, shard):  # gradients of 300: their squares are beyond half precision
        return (net.weight * 300).sum()

    for gradients in reduced(ranks, world, nets, loss_of, norms=Norms(list)):
        assert gradients.squares[:2] == pytest.approx((180_000, 180_000))


def test_parameters_that_are_unfrozen_later_are_reduced_from_then_on(ranks):
    nets = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)) for _ in range(2)]
    known = [of(net) for net in nets]
    shards_of = [[0], [1]]
    lock = threading.Lock()

    def batch(rank, number):
        with lock:
            known[rank].begin(0.5, alone=False, place=number)
            nets[rank](torch.full((2,), 1.0 + rank)).sum().backward()
            own = nets[rank][0].weight.grad
            own = None if own is None else own.clone()
            known[rank].take(rank, 0.5)
        known[rank].reduce(shards_of, rank, number)
        known[rank].give()
        return own

    for net in nets:
        net.load_state_dict(nets[0].state_dict())
        net[0].requires_grad_(False)
    threads = ranks(2)
    assert threads.run(lambda rank: batch(rank, 0)) == [None, None]
    assert nets[0][0].weight.grad is None
    nets[0].requires_grad_(True)
    nets[1].requires_grad_(True)
    one, other = threads.run(lambda rank: batch(rank, 1))
    for net in nets:
        assert torch.equal(net[0].weight.grad, (one + other) / 2)
    nets[0][0].requires_grad_(False)
    known[0].met = known[1].met = False  # as in another group
    with pytest.raises(InputError, match="not with the same parameters unfrozen"):
        ranks(2).run(lambda rank: batch(rank, 2))


@pytest.mark.parametrize("met", [False, True])
def test_ranks_at_different_batches_are_told_so(ranks, met):
    nets = [Casting() for _ in range(2)]
    known = [of(net) for net in nets]

    def work(rank):
        known[rank].met = met
        known[rank].begin(0.5, alone=False, place=rank)
        known[rank].take(rank, 0.5)
        known[rank].reduce([[0], [1]], rank, 5)

    with pytest.raises(
        InputError, match=r"do not work on the same batch.*loop counters of its own"
    ):
        ranks(2).run(work)
