"""Values that ranks hand over come back as they were; other text makes nothing."""

import json
import pickle
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import IntEnum

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rota.train.values import MOST_DEPTH, decode, encode  # noqa: E402

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(allow_nan=False),
)
keys = st.one_of(st.integers(), st.text(max_size=3), st.tuples(st.integers(), st.booleans()))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=3),
        st.deques(inner, max_size=3) if hasattr(st, "deques") else st.lists(inner, max_size=2),
    ),
    max_leaves=12,
)


def exactly(value):
    """The value with the types of all of its parts."""
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [exactly(inner) for inner in value]
    return type(value), value


@settings(deadline=None)
@given(trees)
def test_values_come_back_with_their_types(value):
    text, tensors = encode(value)
    assert not tensors
    assert exactly(decode(text, tensors)) == exactly(value)


Best = namedtuple("Best", "step loss")
sparse = torch.sparse_coo_tensor([[0, 2, 0]], [1.0, 2.0, 3.0], (4,), check_invariants=True)


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(b=1, a=2),
        Best(3, 0.5),
        Counter("aab"),
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        deque([1, 2], maxlen=2),
        {1, 2},
        frozenset({"a"}),
        bytearray(b"ab"),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        numpy.float64(0.1),
        numpy.int8(-3),
        numpy.bool_(True),
        numpy.arange(6, dtype=">i4").reshape(2, 3)[:, ::2],
        numpy.zeros((0, 3)),
        ("MT19937", numpy.arange(3, dtype=numpy.uint32), 3, 0, 0.0),
        float("inf"),
        2**100,
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_kinds_that_json_lacks_come_back_as_they_were(value):
    back = decode(*encode({"kept": value}))["kept"]
    assert type(back) is type(value)
    if isinstance(value, numpy.ndarray):
        assert back.dtype == value.dtype
        assert back.flags.writeable
        assert numpy.array_equal(back, value)
        return
    if isinstance(value, tuple) and value[0] == "MT19937":
        assert repr(back) == repr(value)
        return
    assert back == value
    for name in ("default_factory", "maxlen", "dtype"):
        assert getattr(back, name, None) == getattr(value, name, None)


def test_tensors_travel_beside_the_text_the_sparse_ones_in_their_parts():
    model = torch.nn.Parameter(torch.ones(2))
    text, tensors = encode({"w": model, "g": [sparse, None]})
    assert len(tensors) == 3
    back = decode(text, [each.clone() for each in tensors])
    assert torch.equal(back["w"], model)
    assert torch.equal(back["g"][0].to_dense(), sparse.to_dense())


def test_the_state_of_training_can_be_told():
    model = torch.nn.Linear(2, 2)
    state = []
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop):
        optimizer = kind(model.parameters(), lr=0.1)
        schedulers = [
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3]),
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False),
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        ]
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state += [each.state_dict() for each in (optimizer, *schedulers)]
    back = decode(*encode(state))
    assert [each.keys() for each in back] == [each.keys() for each in state]
    assert back[1]["milestones"] == state[1]["milestones"]


class Phase(IntEnum):
    WARM = 1


def test_what_can_not_be_handed_over_is_named():
    for value, named in [
        (torch.nn.Linear(1, 1), "Linear"),
        (Phase.WARM, "Phase"),
        (lambda: 1, "function"),
        (numpy.array([object()]), "ndarray"),
        (defaultdict(lambda: 1), "defaultdict of <lambda>"),
        (torch.zeros(2, 2).to_sparse_csr(), "tensor of torch.sparse_csr"),
    ]:
        with pytest.raises(TypeError, match=f"a {named} can't be handed to another process; give"):
            encode({"a": [value]})
    deep = []
    for _ in range(MOST_DEPTH + 1):
        deep = [deep]
    with pytest.raises(TypeError, match="levels deep"):
        encode(deep)


class Ran(Exception):
    """Hostile code ran."""


class Hostile:
    def __reduce__(self):
        return (exec, ("raise Ran",))


@pytest.mark.parametrize(
    "text",
    [
        pickle.dumps(Hostile()),
        b"",
        b"[" * 100_000,
        json.dumps({"namedtuple": ["os", "system", ["true"]]}),
        json.dumps({"namedtuple": ["subprocess", "Popen", [["true"]]]}),
        json.dumps({"namedtuple": ["not_loaded", "A", []]}),
        json.dumps({"array": [{"tensor": 0}, "O", [1], True]}),
        json.dumps({"tensor": 7}),
        json.dumps({"default": ["eval", []]}),
        json.dumps({"dtype": "nn"}),
        json.dumps({"unknown": 1}),
        json.dumps({"list": 1, "dict": 2}),
    ],
    ids=range(12),
)
def test_text_that_no_rank_made_is_refused_and_runs_nothing(text):
    with pytest.raises(ValueError):
        decode(text, [torch.zeros(8, dtype=torch.uint8)])
