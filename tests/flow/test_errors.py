"""What goes wrong is one clear error: at the call where it can be known, else at the future."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rota import flow
from rota.errors import FlowError, FlowMemoryError, InputError, OperationError, WorkerLostError

from .conftest import until

HERE = "support.flow_functions"


def of(where: flow.Slice, name: str, out: object = None) -> flow.Function:
    return where.function(f"{HERE}:{name}", out)  # type: ignore[arg-type]


@pytest.fixture
def other(island):
    """Another client, on the same devices."""
    with island.connect(devices=[0, 1]) as connected:
        yield connected


# -- at the future ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "ArithmeticError: the number is wrong"),
        ("exits", "exited: SystemExit(7)"),
        ("writes_unseen", "writes to its input 0"),
    ],
)
def test_what_an_operation_raises_is_at_its_future_with_program_operation_and_device(
    client, name, says
):
    one = client.slice(1)
    scaled, wrong = of(one, "scaled"), of(one, name)

    def plan(x):
        return scaled(wrong(scaled(x)))

    y = client.program(plan)(one.put(torch.tensor([1])))  # raises nothing
    with pytest.raises(OperationError) as caught:
        y.result()
    for word in ("plan", name, "device 0", says):
        assert word in str(caught.value)


def test_an_error_goes_to_all_that_depends_on_it_and_to_nothing_else(client):
    one, two = client.slice(1), client.slice(1)
    x, y = one.put(torch.tensor([1])), two.put(torch.tensor([2]))
    bad = of(one, "raises")(x)
    later = of(one, "added")(of(one, "scaled")(bad), x)
    across = of(two, "added")(bad.to(two), y)
    fine = [of(one, "scaled")(x), of(two, "scaled")(y)]
    for each in (bad, later, across, bad.to(two)):
        with pytest.raises(OperationError, match=r"(?s)raises on device 0.*the number is wrong"):
            each.result()
    assert [each.result().tolist() for each in fine] == [[4], [7]]


def test_a_gang_of_which_one_shard_raises_tells_why_and_does_not_wait_for_it(client):
    pair = client.slice(2)
    x = pair.put(torch.tensor([1, 2]), flow.Split(0))
    y = of(pair, "raises_on_second", flow.Split(0))(x)
    with pytest.raises(OperationError, match=r"(?s)raises_on_second.*device"):
        y.result()
    again = of(pair, "plus_total", flow.Split(0))
    with pytest.raises(OperationError, match="make a new slice"):
        again(x).result()
    new = client.slice(2)
    assert of(new, "plus_total", flow.Split(0))(x.to(new)).result().tolist() == [4, 5]
    client.recover()
    assert again(x).result().tolist() == [4, 5]


def test_a_worker_that_ends_is_told_by_device_and_other_clients_go_on(client, other):
    one = client.slice(1)
    y = of(one, "dies")(one.put(torch.tensor([1])))
    with pytest.raises(WorkerLostError, match="device 0 has ended: exit code 7"):
        y.result()
    with pytest.raises(WorkerLostError, match="device 0 has ended: exit code 7"):
        one.put(torch.tensor([1]))
    pair = other.slice(2)
    x = pair.put(torch.tensor([1, 2]), flow.Split(0))
    assert of(pair, "plus_total", flow.Split(0))(x).result().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("name", "found", "tried"),
    [
        ("longer_than_tried", r"float32\[4\]", r"float32\[3\]"),
        ("wider_than_tried", r"float64\[3\]", r"float32\[3\]"),
    ],
)
def test_a_result_that_differs_from_the_trial_is_refused_by_function_and_place(
    client, name, found, tried
):
    one = client.slice(1)
    scaled, wrong, x = of(one, "scaled"), of(one, name), one.put(torch.zeros(3))
    y = client.program(lambda x: scaled(wrong(x)))(x)
    for use in (y.result, wrong(x).to(client.slice(2)).result):
        with pytest.raises(
            OperationError, match=rf"result 0 of .*{name} is {found}, and was {tried}"
        ):
            use()
    assert scaled(x).result().tolist() == [1, 1, 1]


# -- at the call -----------------------------------------------------------------------------------


def test_tensors_without_data_are_refused(client):
    one = client.slice(1)
    with FakeTensorMode():
        fake = torch.zeros(2)
    for tensor in (torch.zeros(2, device="meta"), fake):
        with pytest.raises(InputError, match=r"put: a tensor \[2\] on the device meta, or a fake"):
            one.put(tensor)
    with pytest.raises(InputError, match="output 0 of to_meta is on the device meta"):
        of(one, "to_meta")(one.put(torch.zeros(2)))
    for size in (0, -1, (-1, -1), 1.5):
        with pytest.raises(InputError, match="slice: its size is"):
            client.slice(size)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("support.no_such_module:f", "set PYTHONPATH"),
        (f"{HERE}:no_such_function", "has no 'no_such_function'"),
        (f"{HERE}:writes_to_input", "writes to its input 0"),
        (f"{HERE}:gives_none", "returned None: return one tensor"),
    ],
)
def test_a_function_that_will_not_do_is_refused_at_its_call(client, path, says):
    one = client.slice(1)
    x = one.put(torch.tensor([1]))
    with pytest.raises(InputError, match=says):
        one.function(path)(x)
    assert of(one, "scaled")(x).result().tolist() == [4]


def test_shapes_that_do_not_fit_are_refused_at_the_call(client):
    one, pair = client.slice(1), client.slice(2)
    x, y = one.put(torch.zeros(3)), one.put(torch.zeros(4))
    with pytest.raises(InputError, match="added"):
        of(one, "added")(x, y)
    with pytest.raises(InputError, match=r"a list is no tensor; write torch\.tensor"):
        one.put([1.0, 2.0])
    with pytest.raises(InputError, match="two returns 2 tensors, not 1"):
        of(one, "two", [flow.Replicated()])(x, x)
    with pytest.raises(InputError, match="say another layout"):
        of(pair, "scaled", flow.Replicated())(pair.put(torch.zeros(3), flow.Split(0)))
    with pytest.raises(InputError, match="dimensions"):
        pair.put(torch.zeros(()), flow.Split(0))
    with pytest.raises(InputError, match="dimensions"):
        x.to(pair, flow.Split(1))


def test_handles_that_are_freed_foreign_or_none_at_all_are_refused(client, other):
    one, theirs = client.slice(1), other.slice(1)
    scaled = of(one, "scaled")
    x, foreign = one.put(torch.tensor([1])), theirs.put(torch.tensor([1]))
    with pytest.raises(InputError, match=r"another program's; fetch it by \.result\(\)"):
        scaled(foreign)
    with pytest.raises(InputError, match="the slice is another program's"):
        x.to(theirs)
    with pytest.raises(InputError, match=r"an argument is a Tensor; .* slice\.put\(tensor\)"):
        scaled(torch.tensor([1]))
    x.free()
    for use in (lambda: scaled(x), lambda: x.to(one), x.result, x.shards):
        with pytest.raises(InputError, match="was freed"):
            use()


def test_programs_that_reach_outside_or_ask_for_results_are_refused(client):
    one = client.slice(1)
    scaled, added = of(one, "scaled"), of(one, "added")
    x = one.put(torch.tensor([1]))
    for body, says in (
        (lambda y: added(y, x), "from outside"),
        (lambda y: scaled(y).result(), "while it is traced"),
        (lambda y: scaled(y).shards(), "while it is traced"),
        (lambda y: 3, "a program returned 3"),
        (lambda y: (scaled(y), x), "return what its functions gave"),
    ):
        with pytest.raises(InputError, match=says):
            client.program(body)(x)
    kept = []
    assert client.program(lambda y: kept.append(y) or scaled(y))(x).result().tolist() == [4]
    for late in (scaled, lambda y: y.to(one), lambda y: flow.cond(y, scaled, scaled, y)):
        with pytest.raises(InputError, match="outside of it; return it from the program"):
            late(kept[0])
    assert client.program(scaled)(x).result().tolist() == [4]


def test_a_program_that_calls_itself_is_refused(client):
    one = client.slice(1)
    scaled, x = of(one, "scaled"), one.put(torch.tensor([1]))
    programs = []
    programs.append(client.program(lambda y: scaled(programs[1](y))))
    programs.append(client.program(lambda y: programs[0](y)))
    for program in programs:
        with pytest.raises(InputError, match=r"calls itself; write a loop, flow\.repeat or"):
            program(x)
    twice = client.program(lambda y: programs[1](programs[1](y)))
    programs[0] = scaled
    assert twice(x).result().tolist() == [13]


def test_shards_that_are_no_parts_of_a_whole_have_no_result(client):
    pair = client.slice(2)
    ranks = of(pair, "doubled_ranks")(pair.put(torch.tensor([1])))
    with pytest.raises(InputError, match=r"no parts of a whole; take \.shards\(\)"):
        ranks.result()
    with pytest.raises(InputError, match="no parts of a whole"):
        ranks.to(client.slice(1))


def test_devices_that_there_are_not_are_refused(island, client):
    with pytest.raises(FlowError, match="there is no device 3; the island has 0 to 2"):
        island.connect(devices=[0, 3])
    with pytest.raises(FlowError, match="4 are asked for; the island has 3"):
        island.connect(devices=4)
    with pytest.raises(InputError, match="3 devices are asked for; this program has 2"):
        client.slice(3)


def test_a_client_that_is_closed_says_so(island):
    client = island.connect(devices=[0])
    one = client.slice(1)
    client.close()
    with pytest.raises(FlowError, match="the client is closed"):
        one.put(torch.tensor([1]))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused_and_the_island_goes_on(island, client, weight):
    with pytest.raises((FlowError, InputError), match="weight"):
        island.connect(devices=[0], weight=weight)
    one = client.slice(1)
    assert of(one, "scaled")(one.put(torch.tensor([1]))).result().tolist() == [4]


# -- memory ----------------------------------------------------------------------------------------


def test_a_cap_below_one_operation_is_an_error_at_the_call(island):
    with island.connect(devices=[0], memory_bytes=10_000) as client:
        one = client.slice(1)
        with pytest.raises(FlowMemoryError, match="put needs 16,000 bytes of device 0"):
            one.put(torch.zeros(2000, dtype=torch.float64))
        x = one.put(torch.tensor([1]))
        for name in ("gives_much", "needs_much"):
            with pytest.raises(FlowMemoryError, match=rf"{name} needs .* memory_bytes="):
                of(one, name)(x)
        y = of(one, "scaled")(x)
        assert y.result().tolist() == [4]
        assert island.held_bytes(client) == [16]


def test_memory_that_buffers_have_is_there_again_once_they_are_let_go(island):
    with island.connect(devices=[0], memory_bytes=10_000) as client:
        one = client.slice(1)
        for _ in range(20):
            x = one.put(torch.zeros(700, dtype=torch.float64))
            with pytest.raises(FlowMemoryError, match="let go of buffers"):
                one.put(torch.zeros(700, dtype=torch.float64))
            del x
        client.wait()
        until(lambda: island.held_bytes(client) == [0], "nothing is held")
