"""Compiled functions: their shard, their inputs and outputs, their groups."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
import torch
import torch.distributed as dist

from rota.errors import InputError
from rota.flow.functions import (
    Shard,
    Spec,
    Watch,
    call,
    check,
    check_results,
    drop_group,
    group_from,
    on,
    returned_tensors,
    seed_for,
    shard,
)

ALONE = Shard(0, 1)


def test_a_spec_says_what_a_tensor_is_and_survives_the_wire():
    spec = Spec.of(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert spec == Spec((2, 3), "bfloat16")
    assert (spec.nbytes, str(spec)) == (12, "bfloat16[2, 3]")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=Spec) == spec
    assert Spec(()).nbytes == 4


@pytest.mark.parametrize("shape", [[2], (2, -1), (2.0,), 3, (True,)])
def test_a_spec_of_a_wrong_shape_is_refused(shape):
    with pytest.raises(InputError, match=r"shape .* must be a tuple of whole numbers"):
        Spec(shape)


@pytest.mark.parametrize("dtype", ["float33", "nn", "zeros", torch.float32])
def test_a_spec_of_a_wrong_dtype_is_refused(dtype):
    with pytest.raises(InputError, match=r"dtype .* must be the name of a torch dtype"):
        Spec((2,), dtype)


def test_a_result_of_another_shape_or_type_than_in_the_trial_is_refused_by_name():
    tried = [Spec((2,)), Spec((2, 3), "int64")]
    given = [torch.zeros(2), torch.zeros(2, 3, dtype=torch.int64)]
    check_results("plan: f", tried, given)
    for at, wrong, found in (
        (0, torch.zeros(3), r"float32\[3\], and was float32\[2\]"),
        (0, torch.zeros(2, dtype=torch.float64), r"float64\[2\], and was float32\[2\]"),
        (1, torch.zeros(6, dtype=torch.int64), r"int64\[6\], and was int64\[2, 3\]"),
    ):
        results = [wrong if index == at else each for index, each in enumerate(given)]
        with pytest.raises(InputError, match=rf"result {at} of plan: f is {found} in its trial"):
            check_results("plan: f", tried, results)


def test_a_tensor_without_data_is_no_result():
    with pytest.raises(InputError, match="output 0 of f is on the device meta, and has no data"):
        returned_tensors("f", torch.zeros(2, device="meta"))


def test_the_shard_is_known_inside_a_function_only():
    seen = []

    def look(x):
        seen.append(shard())
        return x + shard().rank

    outputs, single = call(look, [torch.zeros(2)], Shard(2, 4))
    assert single
    assert outputs[0].tolist() == [2, 2]
    assert repr(seen[0]) == "Shard(rank=2, size=4)"
    with pytest.raises(InputError, match="where no compiled function runs"):
        shard()


def test_the_shard_is_forgotten_when_the_function_raises():
    def fail(x):
        raise ValueError("as it may")

    with pytest.raises(ValueError, match="as it may"):
        call(fail, [torch.zeros(2)], ALONE)
    with pytest.raises(InputError, match="where no compiled function runs"):
        shard()


def test_a_rank_outside_its_slice_is_refused():
    with pytest.raises(InputError, match="rank 2 of a shard must be from 0 to 1"):
        Shard(2, 2)


def test_a_slice_of_several_shards_without_a_group_has_none():
    with pytest.raises(InputError, match="a slice of 2 shards was given no process group"):
        _ = Shard(0, 2).group


def reduced(x, group):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x, group):
    everything = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    dist.all_gather_into_tensor(everything, x, group=group)
    return everything


def scattered(x, group):
    part = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x, group=group)
    return part


def told(x, group):
    x = x.clone()
    dist.broadcast(x, src=0, group=group)
    return x


def exchanged(x, group):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x, group=group)
    return y


COLLECTIVES = [reduced, gathered, scattered, told, exchanged]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives_of_a_slice_of_one_shard_copy(collective):
    x = torch.arange(4.0)
    (output,), _ = call(lambda x: collective(x, shard().group), [x], ALONE)
    assert output.tolist() == x.tolist()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_group_around_a_backend_needs_no_default_group():
    store = dist.HashStore()
    x = torch.arange(4.0)

    def work(rank):
        backend = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        group = group_from(backend, rank, 2)
        answers = [collective(x + 10 * rank, group).tolist() for collective in COLLECTIVES]
        drop_group(group)
        return answers

    with ThreadPoolExecutor(2) as threads:
        zero, one = threads.map(work, range(2))
    both = [0, 1, 2, 3, 10, 11, 12, 13]
    assert zero == [[10, 12, 14, 16], both, [10, 12], [0, 1, 2, 3], [0, 1, 10, 11]]
    assert one == [[10, 12, 14, 16], both, [14, 16], [0, 1, 2, 3], [2, 3, 12, 13]]
    assert not dist.is_initialized()


def test_outputs_own_their_memory():
    x = torch.arange(6.0).reshape(2, 3)

    def views(x):
        y = x + 1
        return x, y.t(), y[:1], y

    outputs, single = call(views, [x], ALONE)
    assert not single
    expected = [x, (x + 1).t(), (x + 1)[:1], x + 1]
    assert all(map(torch.equal, outputs, expected))
    storages = [output.untyped_storage() for output in outputs]
    assert len({x.data_ptr(), *(storage.data_ptr() for storage in storages)}) == 5
    assert [storage.nbytes() for storage in storages] == [24, 24, 4 * 3, 24]
    assert all(output.is_contiguous() for output in outputs)


def test_an_output_that_owns_its_memory_is_not_copied():
    made = []

    def make(x):
        made.append(x * 2)
        return made[0]

    (output,), _ = call(make, [torch.ones(3)], ALONE)
    assert output.data_ptr() == made[0].data_ptr()


def test_an_output_made_in_inference_mode_can_be_watched_later():
    (output,), _ = call(torch.inference_mode()(lambda x: x + 1), [torch.ones(2)], ALONE)
    Watch([output]).check("next")


def test_a_function_may_use_autograd_and_its_outputs_are_detached():
    weight = torch.tensor([2.0, 3.0])

    def gradient(w, x):
        w = w.detach().requires_grad_()
        loss = (w * x).sum()
        loss.backward()
        return loss, w.grad

    with torch.no_grad():
        (loss, grad), _ = call(gradient, [weight, torch.tensor([1.0, 4.0])], ALONE)
    assert (loss.item(), grad.tolist()) == (14.0, [1.0, 4.0])
    assert not loss.requires_grad
    assert not weight.requires_grad


def test_a_function_that_asks_its_input_itself_for_gradients_leaves_it_alone():
    x = torch.ones(2)

    def careless(x):
        x.requires_grad_().sum().backward()
        return x.grad

    call(careless, [x], ALONE)
    assert not x.requires_grad
    assert x.grad is None


def test_a_seed_decides_the_random_numbers_of_a_call():
    def noise(x):
        return x + torch.rand(3)

    def drawn(seed):
        return call(noise, [torch.zeros(3)], ALONE, seed=seed)[0][0].tolist()

    seed = seed_for(7, 12, 0)
    assert drawn(seed) == drawn(seed)
    assert drawn(seed) != drawn(seed_for(7, 12, 1))


@pytest.mark.parametrize(
    ("write", "index"),
    [
        (lambda x, y: x.add_(1), 0),
        (lambda x, y: y[0].zero_(), 1),
        (lambda x, y: torch.add(x, 1, out=y), 1),
    ],
    ids=["in place", "through a view", "as out"],
)
def test_a_write_to_an_input_is_refused_by_its_number(write, index):
    with pytest.raises(InputError, match=rf"<lambda> writes to its input {index}.*x\.add\(1\)"):
        call(write, [torch.ones(2, 2), torch.ones(2, 2)], ALONE)


def test_a_write_to_an_input_is_seen_though_the_function_raises():
    def fail(x):
        x.add_(1)
        raise ValueError("after the write")

    with pytest.raises(InputError, match="fail writes to its input 0") as caught:
        call(fail, [torch.ones(2)], ALONE)
    assert "after the write" in str(caught.value.__context__)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None: return one tensor, or a tuple or list"),
        (1.0, "returned a value of type float"),
        ({"x": torch.ones(1)}, "returned a value of type dict"),
        ((), "returned an empty tuple"),
        ((torch.ones(1), (torch.ones(1),)), "output 1 of .* is a value of type tuple"),
        ([torch.ones(1), None], "output 1 of .* is None"),
        (torch.ones(2).to_sparse(), "output 0 of .* has the layout torch.sparse_coo"),
    ],
)
def test_outputs_that_are_not_tensors_side_by_side_are_refused(returned, message):
    with pytest.raises(InputError, match=message):
        call(lambda: returned, [], ALONE)


def test_inputs_are_checked_against_specs():
    expected = [Spec((2, 3)), Spec((), "int64")]
    check("train", expected, list(expected))
    with pytest.raises(
        InputError, match=r"argument 0 of train must be float32\[2, 3\].*given float32\[3, 2\]"
    ):
        check("train", expected, [Spec((3, 2)), Spec((), "int64")])
    with pytest.raises(InputError, match=r"argument 1 of train must be int64.*x\.to\(torch\.int64"):
        check("train", expected, [Spec((2, 3)), Spec((), "int32")])
    with pytest.raises(InputError, match=r"train takes 2 tensors .* was given 1"):
        check("train", expected, expected[:1])


def test_contexts_nest():
    with on(Shard(0, 2)):
        with on(Shard(1, 3)):
            assert shard().size == 3
        assert shard().size == 2
