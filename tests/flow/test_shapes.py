"""Functions whose outputs have shapes that depend on data."""

import pytest
import torch

from rota import flow
from rota.errors import FlowMemoryError, InputError, OperationError

from .conftest import until

HERE = "support.flow_functions"
MOST_BYTES = 800


def of(where: flow.Slice, name: str, out: object = None, **options: int) -> flow.Function:
    return where.function(f"{HERE}:{name}", out, **options)  # type: ignore[arg-type]


def test_a_call_returns_at_once_and_the_shape_waits(island, client, gate):
    one, other = client.slice(1), client.slice(1)
    gated, scaled, there = of(one, "gated"), of(one, "scaled"), of(other, "scaled")
    above = of(one, "above_zero", most_bytes=MOST_BYTES)
    x = one.put(torch.tensor([gate.number - 1, -5, 7, 0]))
    scaled(x).result()  # once there are such shapes, a call needs no worker to answer
    scaled(gated(one.put(torch.tensor([gate.number, 0, 0, 0])))), gate.wait_begun()
    y = above(x)
    gate.open()
    expected = torch.tensor([each for each in (gate.number - 1, 7) if each > 0])
    assert y.shape == tuple(expected.shape)
    assert y.result().tolist() == expected.tolist()
    assert scaled(y).result().tolist() == (3 * expected + 1).tolist()
    assert there(above(scaled(y)).to(other)).result().tolist() == (9 * expected + 4).tolist()
    assert client.program(lambda y: scaled(scaled(y)))(y).result().shape == y.shape


def test_outputs_are_as_many_as_their_layouts(client):
    one = client.slice(1)
    counted = of(one, "counted", [flow.Replicated()] * 2, most_bytes=MOST_BYTES)
    values, counts = counted(one.put(torch.tensor([5, 3, 5])))
    assert (values.result().tolist(), counts.result().tolist()) == ([3, 5], [1, 2])
    lone = of(one, "counted", most_bytes=MOST_BYTES)(one.put(torch.tensor([5])))
    with pytest.raises(OperationError, match="counted gave 2 tensors, not 1"):
        lone.result()


def test_shards_may_have_shapes_of_their_own(client):
    pair = client.slice(2)
    above = of(pair, "above_zero", most_bytes=MOST_BYTES)
    y = above(pair.put(torch.tensor([1, 2, -3, 4]), flow.Split(0)))
    assert [each.tolist() for each in y.shards()] == [[1, 2], [4]]
    assert of(pair, "sums", flow.Replicated())(y).result().tolist() == [3, 4]
    with pytest.raises(InputError, match="shard 1 of 2 has shape"):
        _ = y.shape


def test_memory_is_counted_before_the_call_and_given_back_once_the_shape_is_known(island):
    with island.connect(devices=[0], memory_bytes=2 * MOST_BYTES + 100) as client:
        one = client.slice(1)
        above = of(one, "above_zero", most_bytes=MOST_BYTES)
        x = one.put(torch.tensor([1, -2]))
        y = above(x)
        with pytest.raises(FlowMemoryError, match="above_zero needs 1,600 bytes"):
            above(x)
        assert y.shape == (1,)
        assert client._held == [24]
        assert above(x).result().tolist() == [1]
        del x, y
        client.wait()
        assert client._held == [0]
        until(lambda: island.held_bytes(client) == [0], "nothing is held")


def test_an_output_beyond_its_bound_is_an_error_of_all_that_take_it(client):
    one = client.slice(1)
    scaled, above = of(one, "scaled"), of(one, "above_zero", most_bytes=16)
    y = above(one.put(torch.tensor([1, 2, 3])))
    for use in (y.result, y.shards, lambda: y.shape, lambda: scaled(y)):
        with pytest.raises(OperationError, match="above_zero has 24 bytes; its most_bytes is 16"):
            use()
    assert above(one.put(torch.tensor([1, -2, 3]))).shape == (2,)


def test_programs_refuse_what_they_can_not_trace(client):
    one = client.slice(1)
    above, x = of(one, "above_zero", most_bytes=MOST_BYTES), one.put(torch.tensor([1, -2]))
    with pytest.raises(InputError, match=r"above_zero is called in a program.*call it outside"):
        client.program(above)(x)
    with pytest.raises(InputError, match="is called in a program"):
        flow.cond(above(x), above, above, x)
    with pytest.raises(InputError, match=r"depend on data: give most_bytes=\.\.\."):
        of(one, "above_zero")(x)
    with pytest.raises(InputError, match="most_bytes is -1"):
        of(one, "above_zero", most_bytes=-1)
    y = above(x)
    y.free()
    with pytest.raises(InputError, match="was freed"):
        above(y)
