"""The state of training is taken apart, sent, written down and read as it was."""

import errno
import os
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rota.train import replica as replica_module
from rota.train.replica import Replica, put_together, take_apart

leaf = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.just("tensor"))
trees = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
    max_leaves=12,
)


def plant(tree):
    """The same with a tensor of its own for each mark."""
    if tree == "tensor":
        return torch.randn(3)
    if isinstance(tree, dict):
        return {key: plant(value) for key, value in tree.items()}
    return type(tree)(plant(each) for each in tree) if isinstance(tree, list | tuple) else tree


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(same(a, b) for a, b in pairs)
    return one == other


@settings(deadline=None)
@given(trees)
def test_what_was_taken_apart_can_be_put_together(tree):
    state = plant(tree)
    skeleton, tensors = take_apart(state)
    assert same(put_together(skeleton, tensors), state)


def trained(seed=0, steps=3, optimizer=torch.optim.Adam):
    """A replica after some steps, with everything in it that programs have."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.Linear(300, 2))
    inner = optimizer(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 2)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        inner.step()
        inner.zero_grad()
        scheduler.step()
    made = Replica(torch.device("cpu"))
    made.add(model, inner, scheduler, None)
    made.add(model)
    extra = {"best": torch.tensor(seed), "trail": [seed, (1, 2)]}
    made.plain = lambda: extra
    made.load_plain = lambda plain: extra.update(plain)
    return made


def copy_of(replica):
    skeleton, tensors = take_apart(replica.state())
    return put_together(skeleton, [tensor.clone() for tensor in tensors])


def test_each_part_is_kept_once():
    made = trained()
    assert (len(made.models), len(made.others)) == (1, 2)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_checkpoint_brings_everything_back(tmp_path, steps):
    one, other = trained(1), trained(2, steps=steps)
    one.save(str(tmp_path / "state.pt"))
    expected = copy_of(one)
    other.open(str(tmp_path / "state.pt"))
    assert same(copy_of(other), expected)
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_full_disk_leaves_the_checkpoint_of_before(tmp_path, monkeypatch):
    one, path = trained(1), tmp_path / "state.pt"
    one.save(str(path))
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trained(2).save(str(path))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.pt"]


class Wire:
    """``send`` and ``recv`` between the threads of this process."""

    def __init__(self, size):
        self.me = threading.local()
        self.lines = {(a, b): deque() for a in range(size) for b in range(size)}
        self.news = threading.Condition()

    def send(self, tensor, receiver):
        with self.news:
            self.lines[self.me.rank, receiver].append(tensor.clone())
            self.news.notify_all()

    def recv(self, tensor, sender):
        with self.news:
            line = self.lines[sender, self.me.rank]
            assert self.news.wait_for(lambda: line, timeout=20)
            value = line.popleft()
        assert value.shape == tensor.shape
        tensor.copy_(value)


@pytest.mark.parametrize("senders", [1, 2, 3])
@pytest.mark.parametrize(
    ("steps", "optimizer"), [(0, torch.optim.Adam), (1, torch.optim.Adam), (2, torch.optim.AdamW)]
)
def test_a_newcomer_has_all_of_it_from_all_senders(monkeypatch, senders, steps, optimizer):
    monkeypatch.setattr(replica_module, "PACK_BYTES", 700)
    wire = Wire(senders + 2)
    monkeypatch.setattr(dist, "send", wire.send)
    monkeypatch.setattr(dist, "recv", wire.recv)
    givers = [trained(1, optimizer=optimizer) for _ in range(senders)]
    takers = [trained(9 + i, steps=steps, optimizer=optimizer) for i in range(2)]
    expected = copy_of(givers[0])

    def give(rank):
        wire.me.rank = rank
        givers[rank].send([senders, senders + 1], rank, senders)

    def take(rank):
        wire.me.rank = senders + rank
        takers[rank].receive(range(senders))

    threads = [threading.Thread(target=give, args=(rank,)) for rank in range(senders)]
    threads += [threading.Thread(target=take, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for taker in takers:
        assert same(copy_of(taker), expected)
    assert not any(wire.lines.values())


def test_tensors_of_a_model_stay_the_very_same_objects(tmp_path):
    one, other = trained(1), trained(2)
    parameters = list(other.models[0].parameters())
    one.save(str(tmp_path / "state.pt"))
    other.open(str(tmp_path / "state.pt"))
    assert all(a is b for a, b in zip(parameters, other.models[0].parameters(), strict=True))


Best = namedtuple("Best", "step weights")


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(a=torch.ones(2)),
        Best(3, torch.ones(2)),
        Counter("aab"),
        defaultdict(list, a=[torch.ones(2)]),
        deque([1, 2], maxlen=2),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_what_they_were(value):
    skeleton, tensors = take_apart({"kept": value})
    back = put_together(skeleton, tensors)["kept"]
    assert type(back) is type(value)
    assert same(back, value)
    assert getattr(back, "default_factory", None) is getattr(value, "default_factory", None)
    assert b"torch" not in skeleton
