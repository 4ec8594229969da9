"""Outlines: what a function returns and holds is known before inputs exist."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.nn import functional as F

from rota.errors import InputError
from rota.flow.functions import Shard, Spec, call, shard
from rota.flow.naming import found, named
from rota.flow.outline import outline

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

WEIGHT = torch.ones(3, 3)
X = Spec((4, 3))


def outputs_of(function, *specs, rank=0, size=4, **options):
    return outline(function, specs or (X,), rank, size, **options).outputs


def test_outputs_have_the_specs_of_a_real_call():
    def several(x, index):
        return x @ x.t(), x.sum(0).half(), index + 1, x[index]

    inputs = [torch.ones(4, 3), torch.tensor([0, 2])]
    known = outline(several, [Spec.of(each) for each in inputs], 0, 1)
    outputs, single = call(several, inputs, Shard(0, 1))
    assert known.outputs == tuple(map(Spec.of, outputs))
    assert known.single == single


def test_rank_and_size_are_those_asked_for():
    def part(x):
        return x.new_empty(shard().rank + 1, shard().size)

    assert outputs_of(part, rank=2, size=5) == (Spec((3, 5)),)


def all_reduce(x):
    x = x.clone()
    dist.all_reduce(x, group=shard().group)
    return x


def all_gather_into_tensor(x):
    everything = x.new_empty(4 * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(everything, x, group=shard().group)
    return everything


def reduce_scatter_tensor(x):
    part = x.new_empty(x.shape[0] // 4, x.shape[1])
    dist.reduce_scatter_tensor(part, x, group=shard().group)
    return part


def broadcast(x):
    x = x.clone()
    dist.broadcast(x, src=0, group=shard().group)
    return x


def all_to_all_single(x):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x, group=shard().group)
    return y


def send_and_receive(x):
    group = shard().group
    y = torch.empty_like(x)
    work = dist.isend(x, group_dst=(group.rank() + 1) % group.size(), group=group)
    dist.recv(y, group_src=(group.rank() - 1) % group.size(), group=group)
    work.wait()
    return y


def functional_gather(x):
    return functional.all_gather_tensor(x, 0, shard().group)


COLLECTIVES = {
    all_reduce: (4, 3),
    all_gather_into_tensor: (16, 3),
    reduce_scatter_tensor: (1, 3),
    broadcast: (4, 3),
    all_to_all_single: (4, 3),
    send_and_receive: (4, 3),
    functional_gather: (16, 3),
}


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda each: each.__name__)
def test_collectives_are_outlined_without_peers(collective):
    groups = len(c10d._world.pg_map)
    assert outputs_of(collective, rank=1) == (Spec(COLLECTIVES[collective]),)
    assert not dist.is_initialized()
    assert len(c10d._world.pg_map) == groups


def test_outlines_for_gpus_need_none_and_find_tensors_of_the_cpu():
    def stray(x):
        return all_reduce(x) + torch.ones(4, 3)

    assert outputs_of(all_reduce, device="cuda") == (X,)
    assert outputs_of(stray) == (X,)
    with pytest.raises(InputError, match=r"stray .*devices"):
        outputs_of(stray, device="cuda")


def test_the_default_group_of_the_process_is_left_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert outputs_of(all_reduce) == (X,)
        assert dist.group.WORLD is group
        x = torch.ones(2)
        dist.all_reduce(x)
        assert dist.get_world_size() == 1

        def stray(x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        with pytest.raises(InputError, match=r"stray uses another .* group=flow\.shard\(\)\.group"):
            outputs_of(stray)
    finally:
        dist.destroy_process_group()


def test_a_collective_of_the_missing_default_group_names_the_fix():
    def stray(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    with pytest.raises(InputError, match=r"stray raised ValueError.*group=flow\.shard\(\)\.group"):
        outputs_of(stray)


def test_a_collective_without_fake_tensors_asks_for_out():
    def objects(x):
        everyone = [None] * 4
        dist.all_gather_object(everyone, 3, group=shard().group)
        return x + 1

    with pytest.raises(InputError, match=r"objects can't be outlined.*most_bytes=\.\.\."):
        outputs_of(objects)


def test_peak_counts_what_is_held_at_once():
    def chain(x):
        for _ in range(10):
            x = x + 1
        return x

    def together(x):
        parts = [x + i for i in range(10)]
        return torch.stack(parts)

    def view(x):
        return (x + 1)[:1]

    kib = Spec((256,))
    assert outline(chain, [kib], 0, 1).peak_bytes == 2 * 1024
    assert outline(together, [kib], 0, 1).peak_bytes == 20 * 1024
    assert outline(view, [kib], 0, 1).peak_bytes == 1024 + 4
    assert outline(lambda x: x, [kib], 0, 1).peak_bytes == 1024


def test_peak_counts_what_autograd_saves():
    def step(x):
        w = torch.ones(256).requires_grad_()
        y = x
        for _ in range(8):
            y = (y * w).sin()
        return torch.autograd.grad(y.sum(), w)

    assert outline(step, [Spec((256,))], 0, 1).peak_bytes >= 16 * 1024


def test_peak_leaves_out_tensors_made_outside():
    def dense(x):
        return F.linear(x, WEIGHT)

    assert outline(dense, [X], 0, 1).peak_bytes == X.nbytes


def test_random_functions_are_known_and_the_generator_is_left_alone():
    def noisy(x):
        torch.manual_seed(3)
        return F.dropout(x, 0.5), torch.rand(2)

    state = torch.get_rng_state()
    assert outline(noisy, [X], 0, 1).random
    assert not outline(all_reduce, [X], 0, 1).random
    assert torch.equal(torch.get_rng_state(), state)


def test_autograd_is_on_inside():
    def gradient(w, x):
        w = w.detach().requires_grad_()
        (w * x).sum().backward()
        return w.grad

    with torch.no_grad():
        assert outputs_of(gradient, X, X) == (X,)


def test_an_optimizer_made_inside_may_write_its_own_state():
    def train(x):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight])
        (x * weight).sum().backward()
        optimizer.step()
        return weight

    assert outputs_of(train) == (Spec((3,)),)


def test_conditions_on_data_within_torch_are_outlined_and_their_writes_seen():
    def conditional(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    def careless(x):
        return torch.cond(x.sum() > 0, lambda x: x.add_(1), lambda x: x - 1, (x,))

    assert outputs_of(conditional) == (X,)
    with pytest.raises(InputError, match="careless writes to its input 0"):
        outputs_of(careless)


def test_what_a_function_caches_fits_its_next_outline():
    @functools.cache
    def mask(size):
        return torch.ones(size)

    def masked(x):
        return x * mask(3)

    assert outputs_of(masked) == outputs_of(masked) == (X,)


def test_compiled_functions_run_as_written():
    @torch.compile
    def double(x):
        return x * 2

    assert outputs_of(double) == (X,)


def test_exported_modules_are_outlined(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
    torch.export.save(torch.export.export(model, (torch.ones(4, 3),)), tmp_path / "net.pt2")
    function = found(named(tmp_path / "net.pt2"))
    known = outline(function, [X], 0, 1)
    assert known.outputs == (Spec((4, 5)),)
    assert known.peak_bytes == 2 * 4 * 5 * 4
    x = torch.randn(4, 3)
    assert torch.equal(call(function, [x], Shard(0, 1))[0][0], model(x))
    with pytest.raises(InputError, match=r"net\.pt2 raised .* for float32\[5, 3\]"):
        outline(function, [Spec((5, 3))], 0, 1)


def choose(x):
    return x if x.sum() > 0 else x + 1


def select(x):
    return x[x > 0]


def listed(x):
    return torch.tensor(x.tolist())


@pytest.mark.parametrize("function", [choose, select, listed])
def test_shapes_that_depend_on_data_ask_for_a_bound(function):
    match = rf"{function.__name__} can't be outlined.* shapes depend on data: give most_bytes="
    with pytest.raises(InputError, match=match + r".*test_outline\.py:\d+"):
        outputs_of(function)


def write(x):
    return x.add_(1)


def write_view(x):
    x[0] = 1
    return x + 1


def write_data(x):
    x.data.mul_(2)
    return x + 1


def write_out(x):
    return torch.add(x, 1, out=x)


def reduce_in_place(x):
    dist.all_reduce(x, group=shard().group)
    return x


def gather_into_it(x):
    dist.all_gather_into_tensor(x, x[:1].clone(), group=shard().group)
    return x


@pytest.mark.parametrize(
    "function", [write, write_view, write_data, write_out, reduce_in_place, gather_into_it]
)
def test_a_write_to_an_input_is_refused_by_its_number(function):
    def second(_, x):
        return function(x)

    with pytest.raises(InputError, match=r"second writes to its input 1.*return a new tensor"):
        outputs_of(second, X, X)


def test_state_outside_a_function_is_refused_and_stays():
    def count(x):
        WEIGHT.add_(1)
        return x @ WEIGHT

    mean, variance = torch.zeros(3), torch.ones(3)

    def normalize(x):
        return F.batch_norm(x, mean, variance, training=True)

    for function in (count, normalize):
        match = f"{function.__name__} writes to a tensor .* made outside it.*keep no state"
        with pytest.raises(InputError, match=match):
            outputs_of(function)
    assert torch.equal(WEIGHT, torch.ones(3, 3))
    assert outputs_of(lambda x: F.batch_norm(x, mean, variance)) == (X,)


def test_a_function_that_raises_is_named_with_its_inputs_and_line(caplog):
    def narrow(x):
        return x @ torch.ones(7, 7)

    match = r"narrow raised RuntimeError for float32\[4, 3\] at .*test_outline\.py:\d+: .*\[7, 7\]"
    with pytest.raises(InputError, match=match):
        outputs_of(narrow)
    assert not caplog.records


def test_outputs_that_are_not_tensors_are_refused():
    with pytest.raises(InputError, match="output 1 of <lambda> is a value of type tuple"):
        outputs_of(lambda x: (x, (x,)))
    with pytest.raises(InputError, match="output 0 of <lambda> has the layout"):
        outputs_of(lambda x: x.to_sparse())


def test_a_function_that_exits_does_not_end_the_client():
    def leave(x):
        raise SystemExit(3)

    with pytest.raises(InputError, match=r"leave raised SystemExit for .*: 3"):
        outputs_of(leave)
