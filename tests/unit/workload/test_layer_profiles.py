"""Layer profiles: what is read, and one readable error for each file that is wrong."""

import json

import pytest

from rota.errors import InputError
from rota.model.layer_graph import Network
from rota.workload.layer_profiles import read_layer_profile

CONV = 'conv2d{"in_channels":%d,"kernel_size":%s,"out_channels":%d,"padding":%s,"stride":1}'


def line(what, batch, shape, total_ms=1.0, forward_us=250, backward_us=750):
    return f"   {what}[{batch}]{shape}  {total_ms:.3f}  {forward_us}  {backward_us}\n"


def block(batch, rows):
    return "".join(line(what, batch, shape, batch) for what, shape in rows) + "sum:  1.0\n"


CHAIN = [
    (CONV % (3, 3, 8, 1), "[3,4,4]"),
    ('ReLU2d{"inplace":true}', "[8,4,4]"),
    ('flatten{"kernel_size":1}', "[8,4,4]"),
    ('linear{"bias":true,"in_features":128,"out_features":10}', "128"),
]
BRANCHES = [
    (CONV % (3, 3, 8, 1), "[3,4,4]"),
    (CONV % (8, 1, 4, 0), "[8,4,4]"),
    (CONV % (8, 1, 8, 0), "[8,4,4]"),
    (CONV % (8, "[1,3]", 8, "[0,1]"), "[8,4,4]"),
    (CONV % (8, "[3,1]", 8, "[1,0]"), "[8,4,4]"),
    (CONV % (20, 1, 5, 0), "[20,4,4]"),
]


@pytest.fixture
def read(tmp_path):
    def write_and_read(content, name="invented.prof"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_layer_profile(path)

    return write_and_read


def test_a_published_chain_is_read(read):
    graph = read(block(4, CHAIN) + block(1, CHAIN))
    conv, relu, flat, linear = graph.layers
    assert [layer.inputs for layer in graph.layers] == [
        (),
        ("conv2d-1",),
        ("ReLU2d-1",),
        ("flatten-1",),
    ]
    assert (conv.parameters, linear.parameters) == (8 * (3 * 9 + 1), 10 * 129)
    assert (conv.output_values, flat.output_values, linear.output_values) == (128, 128, 10)
    assert [layer.keeps_size for layer in graph.layers] == [False, True, True, False]
    assert relu.activation_values == 0
    assert [time.batch for time in conv.times] == [1, 4]
    assert conv.seconds(4) == pytest.approx((0.001, 0.003))


def test_branches_of_a_published_profile_are_told_by_their_shapes(read):
    graph = read(block(2, BRANCHES))
    inputs = {layer.name: layer.inputs for layer in graph.layers}
    assert inputs == {
        "conv2d-1": (),
        "conv2d-2": ("conv2d-1",),
        "conv2d-3": ("conv2d-1",),
        "conv2d-4": ("conv2d-3",),
        "conv2d-5": ("conv2d-3",),
        "concat-1": ("conv2d-4", "conv2d-5"),
        "concat-2": ("conv2d-2", "concat-1"),
        "conv2d-6": ("concat-2",),
    }


GOOD = block(2, CHAIN)
BAD = {
    "empty": ("", "it has no layer"),
    "binary": (b"\xff\xfe\x00", "it is not text in UTF-8"),
    "prose": ("hello there\n", r"line 1 is 'hello there'; it is KIND"),
    "cut off": (GOOD[: GOOD.index("sum")], "its last block, of batch 2, has no sum"),
    "settings": (GOOD.replace('"padding":1', '"padding"', 1), "line 1: the settings are no JSON"),
    "no time": (GOOD.replace("2.000", "fast", 1), "line 1: .* 'fast' is no time"),
    "negative": (GOOD.replace("2.000", "-2.0", 1), "layer conv2d-1: at batch 2 it takes -0.0005 s"),
    "not a number": (GOOD.replace("2.000", "nan", 1), "layer conv2d-1: at batch 2 it takes nan s"),
    "kind": (GOOD.replace("linear", "lineal", 1), "line 4: lineal: there is no kind 'lineal'"),
    "field": (GOOD.replace("out_features", "outs", 1), "line 4: linear: it has no 'out_features'"),
    "channels": (GOOD.replace("[3,4,4]", "[5,4,4]", 1), "line 1: .* do not fit its input"),
    "edge": (GOOD.replace("[8,4,4]", "[9,4,4]", 1), r"line 2: ReLU2d takes \[9, 4, 4\]"),
    "zero batch": (block(0, CHAIN), r"its batches are \[0\]; they rise from 1"),
    "twice": (GOOD + GOOD, r"its batches are \[2, 2\]; each is there once"),
    "mixed": (GOOD.replace("[2]128", "[3]128"), "line 4: batch 3 begins within the block of"),
    "fewer": (GOOD + block(1, CHAIN[:3]), "line 6: batch 1 has 3 layers and batch 2 has 4"),
    "others": (GOOD + block(1, [CHAIN[1], *CHAIN[1:]]), "line 6: the layer is another one"),
    "no json": ("{", "it is no JSON"),
    "another json": ("{}", "format is None and version None"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_a_wrong_file_is_refused_in_one_sentence(read, content, message):
    with pytest.raises(InputError, match=message) as error:
        read(content)
    assert "invented.prof" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.prof: No such file"):
        read_layer_profile(tmp_path / "nowhere.prof")


def test_our_own_form_keeps_everything(read):
    graph = read(block(4, BRANCHES) + block(1, BRANCHES))
    graph.network = Network(1e9, 2e-5, 5e8, 3e-5)
    again = read(json.dumps(graph.as_json()), "again.json")
    assert again.layers == graph.layers
    assert (again.name, again.bytes_per_value) == (graph.name, graph.bytes_per_value)
    assert (again.bytes_per_parameter, again.network) == (graph.bytes_per_parameter, graph.network)


def profile(**fields):
    times = [{"batch": 1, "forward_s": 0.1, "backward_s": 0.2}]
    first = {"name": "a", "times": times} | fields
    second = {"name": "b", "times": times, "inputs": ["a"]}
    return {"format": "rota-layer-profile", "version": 1, "layers": [first, second]}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (profile() | {"version": 2}, "version 2"),
        (profile() | {"layers": {}}, r"layers is \{\}; it is a list"),
        (profile() | {"layers": []}, "a profile has 1 to 10000 layers, and not 0"),
        (profile() | {"layer": 1}, r"there is no field 'layer' \(did you mean 'layers'\?\)"),
        (profile() | {"bytes_per_value": 0}, "bytes_per_value is 0"),
        (profile(name=""), "layer 1: name is ''; it is a text"),
        (profile(name="b"), "layer b: the name is taken twice"),
        (profile(name="c"), "layer b: there is no input 'a'"),
        (profile(inputs=["b"]), "layer a: its input b comes later"),
        (profile(inputs="b"), "layer a: inputs is 'b'; it is a list of names"),
        (profile(inputs=[""]), r"layer a: inputs is \[''\]; it is a list of names"),
        (profile(times=[]), "layer a: it has no time"),
        (profile(times=[{"batch": 1, "forward_s": 0.1}]), "layer a: backward_s is missing"),
        (profile(times=[{"batch": 1.5, "forward_s": 0, "backward_s": 0}]), "batch is 1.5"),
        (profile(times=[{"batch": 1, "forward_s": "x", "backward_s": 0}]), "forward_s is 'x'"),
        (profile(parameters=-1), "parameters is -1; it is a whole number from 0"),
        (profile(keeps_size=True), "layer a: it keeps the size of its input and has 0"),
        (profile(keeps_size=1), "keeps_size is 1; it is true or false"),
        (profile(tied_to="x"), "layer a: tied_to 'x' is no layer"),
        (profile(tied_to="a"), "layer a: tied_to a is tied itself"),
        (profile(paramters=1), r"did you mean 'parameters'"),
        (profile() | {"network": 1}, "network is 1; it is an object"),
        (profile() | {"network": {"latency_s": 0}}, "network: bandwidth_bytes_s is missing"),
        (
            profile() | {"network": {"bandwidth_bytes_s": 0.5, "latency_s": 0}},
            "network: bandwidth_bytes_s is 0.5; it is a number of bytes per second, from 1 on",
        ),
        (
            profile() | {"network": {"bandwidth_bytes_s": 1e9, "latency_s": -1}},
            "network: latency_s is -1; it is a number of seconds, from 0",
        ),
    ],
)
def test_a_wrong_profile_of_our_own_is_refused(read, found, message):
    with pytest.raises(InputError, match=message):
        read(json.dumps(found))
