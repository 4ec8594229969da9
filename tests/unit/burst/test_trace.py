"""Models split into layers: the pieces yield what the model yields, and are cut where it pays."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rota.burst.layers.trace import block, check_again, layered, parameters_of, whole
from rota.errors import InputError, UntraceableModelError
from support.models import FAMILIES, ResNet, Transformer, images, tokens, vgg

pytestmark = pytest.mark.usefixtures("one_thread")


def names(split):
    return [piece.name for piece in split.pieces]


def outputs_and_gradients(run, model, inputs):
    torch.manual_seed(5)
    model.zero_grad()
    out = run(*inputs)
    if out.requires_grad:
        out.square().sum().backward()
    return [out.detach(), *(each.grad for each in model.parameters()), *model.buffers()]


def assert_equal_bit_by_bit(model, split, inputs):
    for training in (True, False):
        model.train(training)
        state = copy.deepcopy(model.state_dict())
        whole = copy.deepcopy(outputs_and_gradients(model, model, inputs))
        model.load_state_dict(state)
        pieces = outputs_and_gradients(split.run, model, inputs)
        for one, other in zip(whole, pieces, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_equal_the_model_bit_by_bit_in_both_modes(family):
    torch.manual_seed(1)
    make, inputs = FAMILIES[family]
    model = make()
    frozen = next(model.parameters())
    frozen.requires_grad_(family == "transformer")
    split = layered(model, inputs(4))
    assert_equal_bit_by_bit(model, split, inputs(5))
    owned = parameters_of(split)
    assert {id(each) for group in owned.values() for each in group} == {
        id(each) for each in model.parameters()
    }


def test_activations_normalisation_and_flattening_join_the_layer_before():
    assert names(layered(vgg(), images())) == ["0", "2", "3", "5", "7", "10"]


def test_a_residual_join_takes_both_its_inputs_and_the_block_stays_cut():
    split = layered(ResNet(), images())
    pieces = {piece.name: piece for piece in split.pieces}
    assert pieces["layer1.0.add"].inputs == ("layer1.0.conv2", "stem.0")
    assert pieces["layer1.1.add_1"].inputs == ("layer1.1.conv2", "layer1.1.down.0")
    assert split.output == "fc"


def test_branches_run_from_one_fork_to_one_join():
    make, inputs = FAMILIES["inception"]
    pieces = {piece.name: piece for piece in layered(make(), inputs()).pieces}
    assert pieces["a.cat"].inputs == ("a.one", "a.three.2", "a.five2", "a.pool")
    assert pieces["a.avg_pool2d"].keeps_size
    assert {pieces[name].inputs for name in ("a.one", "a.three.0", "a.five1")} == {("stem",)}


def test_the_head_is_tied_to_the_embedding_that_has_its_weights():
    model = Transformer()
    split = layered(model, tokens())
    pieces = {piece.name: piece for piece in split.pieces}
    assert pieces["head"].tied_to == "words"
    assert pieces["blocks.0.ln1"].keeps_size and not pieces["blocks.0.attention.qkv"].keeps_size
    assert parameters_of(split)["head"] == []
    assert parameters_of(split)["words"] == [model.words.weight, model.places.weight]


def test_a_module_called_twice_is_tied_to_itself():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.tanh(self.fc(self.one(x))))

    split = layered(Twice(), torch.randn(2, 4))
    assert [(piece.name, piece.tied_to) for piece in split.pieces] == [
        ("one", None),
        ("fc", None),
        ("fc_2", "fc"),
    ]


def test_tracing_leaves_the_model_as_it_was():
    model = ResNet()
    model.layer1[0].bn1.eval()
    before = copy.deepcopy(model.state_dict())
    inputs = images()
    state, fields = torch.get_rng_state(), set(vars(model))
    layered(model, inputs)
    assert model.training and not model.layer1[0].bn1.training
    assert torch.equal(state, torch.get_rng_state()) and set(vars(model)) == fields
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(each.grad is None for each in model.parameters())


class Tower(nn.Module):
    """A model whose middle does what ``how`` says."""

    def __init__(self, how):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), Middle(how), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class Middle(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.calls, self.fc = how, 0, nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 2.0))
        if how is has_a_hook:
            self.hooked = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
            self.hooked.register_full_backward_hook(lambda module, into, out: (2 * into[0],))

    def forward(self, x):
        return self.how(self, x)


def depends_on_values(middle, x):
    return middle.fc(x) if bool(x.isfinite().all()) else -middle.fc(x)


def takes_another_way_in_training(middle, x):
    if middle.training:
        return middle.fc(x) * torch.rand(len(x), 1)
    return middle.fc(x)


def counts_its_samples(middle, x):
    assert x.dim() == 2 and x.shape[1] == 6
    for _ in range(x.shape[1] - 4):
        x = middle.fc(x)
    return x.view(x.shape[0], -1)


def has_two_outputs(middle, x):
    left, right = middle.fc(x).chunk(2, dim=1)
    return torch.cat([right * 2, left.transpose(0, 1).transpose(0, 1)], 1)


def uses_constants(middle, x):
    mask = torch.ones(x.shape[1]).cumsum(0) > 2
    return (middle.fc(x) + x).masked_fill(mask, 0.5) * middle.scale + torch.arange(6)


def changes_in_place(middle, x):
    y = middle.fc(x)
    z = y.view(-1)
    z.add_(1.0)
    return F.relu(y) + y


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient


def has_a_backward_of_its_own(middle, x):
    return Sign.apply(middle.fc(x))


def computes_without_gradients(middle, x):
    with torch.no_grad():
        target = middle.fc(x)
    return x * target


def has_a_precision_of_its_own(middle, x):
    with torch.autocast("cpu", torch.bfloat16):
        return middle.fc(x).float()


def counts_its_calls(middle, x):
    middle.calls += 1
    return middle.fc(x) if middle.calls < 100 else x


def has_a_hook(middle, x):
    return middle.hooked(middle.fc(x))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (has_a_backward_of_its_own, ["first", "middle", "last"]),
        (computes_without_gradients, ["first", "middle", "last"]),
        (has_a_precision_of_its_own, ["first", "middle", "last"]),
        (counts_its_calls, ["first", "middle", "last"]),
        (has_a_hook, ["first", "middle.fc", "middle.hooked", "last"]),
        (depends_on_values, ["first", "middle", "last"]),
        (takes_another_way_in_training, ["first", "middle", "last"]),
        (counts_its_samples, ["first", "middle.fc", "middle.fc_2", "last"]),
        (has_two_outputs, ["first", "middle.fc", "last"]),
        (uses_constants, ["first", "middle.fc", "middle.add", "last"]),
        (changes_in_place, ["first", "middle.fc", "last"]),
    ],
)
def test_whatever_a_part_does_the_pieces_equal_the_model(how, expected):
    model = Tower(how)
    split = layered(model, torch.randn(4, 6))
    assert_equal_bit_by_bit(model, split, (torch.randn(5, 6),))
    assert names(split) == expected


def test_a_mask_of_the_input_is_computed_where_it_is_needed():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(7, 4)
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            mask = (x != 0).unsqueeze(-1)
            y = F.relu(self.one(self.words(x))) * mask
            return self.two(y) * mask

    split = layered(Masked(), torch.randint(0, 7, (4, 5)))
    assert [piece.inputs for piece in split.pieces if "input:0" in piece.inputs[1:]] == [
        ("one", "input:0"),
        ("two", "input:0"),
    ]


def test_an_encoder_is_cut_into_its_layers_and_a_tuple_stays_inside():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.memory = nn.LSTM(8, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = self.encoder(x)
            x = x + self.attention(x, x, x)[0]
            return self.head(self.memory(x)[0][:, -1])

    model = Mixed()
    split = layered(model, torch.randn(3, 5, 8))
    assert names(split)[:2] == ["encoder.layers.0", "encoder.layers.1"]
    assert names(split)[-1] == "head"
    assert_equal_bit_by_bit(model, split, (torch.randn(4, 5, 8),))


def test_an_encoder_with_a_mask_stays_whole():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1)).to(x)
            return self.head(self.encoder(x, mask=mask))

    assert names(layered(Masked(), torch.randn(3, 5, 8))) == ["encoder", "head"]


def test_state_that_follows_from_no_sample_is_no_reason_to_refuse_a_model():
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    split = layered(nn.Sequential(nn.Linear(6, 6), normed, nn.Linear(6, 2)), torch.randn(4, 6))
    assert names(split) == ["0", "1", "2"]


class Scaled(nn.Module):
    """A model that reads a number and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.rate, self.unread = nn.Linear(6, 4), nn.Linear(4, 2), 2.0, 1
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x) * self.rate * self.scale))


def test_a_split_knows_which_attributes_it_has_as_constants():
    model = Scaled()
    constants = layered(model, torch.randn(4, 6)).constants
    model.unread = 5
    model.scale.mul_(0.5)
    assert constants.changed() is None
    model.rate = 1.0
    assert constants.changed() == "rate of Scaled"
    model.rate = 2.0
    model.scale = model.scale * 0.5
    assert constants.changed() == "scale of Scaled"


class Steps(nn.Module):
    """A model that goes through the steps of a sequence."""

    def __init__(self):
        super().__init__()
        self.into, self.on = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        state = self.into(x[:, 0])
        for step in range(1, x.size(1)):
            state = torch.tanh(self.on(state)) + self.into(x[:, step])
        return state


def test_layers_are_those_of_other_shapes_only_if_they_yield_the_same():
    model = Steps()
    split = layered(model, torch.randn(4, 3, 3))
    check_again(model, split, torch.randn(2, 3, 3))
    with pytest.raises(UntraceableModelError, match="samples of other shapes than 5x3; pad all"):
        check_again(model, split, torch.randn(4, 5, 3))


class Switching(nn.Module):
    """Nothing follows its forward, which is a chain all the same."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.one(x)
        x = self.two(x) if float(x[0, 0]) < 1e9 else x
        return self.head(x)


def test_blocks_are_the_chain_of_a_model_that_cannot_be_followed():
    model = Switching()
    with pytest.raises(UntraceableModelError, match=r"Switching can't be split.*blocks"):
        layered(model, torch.randn(2, 4))
    split = layered(model, torch.randn(2, 4), blocks=["one", "two", "head"])
    assert names(split) == ["one", "two", "head"]
    block(model.one), block(model.two)
    with pytest.raises(UntraceableModelError, match=r"not the chain of its blocks one, two \("):
        layered(model, torch.randn(2, 4))
    block(model.head)
    assert names(layered(model, torch.randn(2, 4))) == ["one", "two", "head"]


def test_a_marked_block_stays_whole_where_the_model_is_followed():
    model = ResNet()
    block(model.layer1[0])
    assert "layer1.0" in names(layered(model, images()))
    assert "layer1.1" in names(layered(model, images(), blocks=["layer1.1"]))


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        return y - y.mean(0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps.add_(1)
        return self.first(x)


class Tracking(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x):
        return self.norm(self.conv(x))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x), x


class Loss(Pair):
    def forward(self, x):
        return self.fc(x).mean()


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "message"),
    [
        (Mixing(), torch.randn(4, 4), UntraceableModelError, "first mixes the samples"),
        (Counting(), torch.randn(4, 4), UntraceableModelError, "another value of the buffer steps"),
        (
            Tracking(),
            torch.randn(4, 2, 5),
            UntraceableModelError,
            "computes its buffer norm.running_mean from the samples",
        ),
        (Pair(), torch.randn(4, 4), UntraceableModelError, "yields a tuple of 2 values"),
        (Loss(), torch.randn(4, 4), UntraceableModelError, "yields one value for 2 samples"),
        (vgg(), (torch.randn(4, 4),), InputError, "Sequential fails with inputs of 2x4"),
        (vgg(), (3,), InputError, "example input 0 is a int without samples"),
        (vgg(), (torch.zeros(0, 3, 8, 8),), InputError, r"have \[0\] samples"),
        (vgg(), (torch.zeros(2, 3), torch.zeros(3, 3)), InputError, r"have \[2, 3\] samples"),
        ("vgg", (torch.zeros(2, 3),), InputError, "the model is a str"),
    ],
)
def test_what_cannot_be_split_is_told_in_a_sentence(model, inputs, kind, message):
    with pytest.raises(kind, match=message):
        layered(model, inputs)


@pytest.mark.parametrize("model", [Mixing(), nn.Sequential(nn.Dropout(), Mixing()), Tracking()])
def test_a_whole_model_that_mixes_samples_is_refused_too(model):
    inputs = torch.randn(4, 2, 5) if isinstance(model, Tracking) else torch.randn(4, 4)
    with pytest.raises(UntraceableModelError, match=r"(mixes|from) the samples of a batch"):
        whole(model, inputs)


def test_a_whole_model_need_not_be_followed():
    [piece] = whole(Switching(), torch.randn(2, 4)).pieces
    assert piece.inputs == ("input:0",)


def test_a_block_that_the_model_lacks_is_named():
    with pytest.raises(InputError, match=r"no submodule 'layer9'.*'layer1'"):
        layered(ResNet(), images(), blocks=["layer9"])
