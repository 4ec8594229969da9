import pytest

from rota.policy.placement.skew import Skew, is_skewed
from rota.workload.catalog import find

PAPER = ["vgg11", "vgg16", "vgg19", "alexnet", "inception3", "inception4"]
PAPER += ["resnet50", "resnet101", "resnet152"]


def test_a_pack_limit_of_0_3_consolidates_exactly_vgg_and_alexnet():
    skews = {name: find(name).skew for name in PAPER}
    assert {name for name in PAPER if is_skewed(skews[name], 0.3)} == {
        "vgg11",
        "vgg16",
        "vgg19",
        "alexnet",
    }


@pytest.mark.parametrize("pack_limit", [0.139, 0.3, 0.61])
def test_any_limit_in_the_gap_parts_the_models_alike(pack_limit):
    skewed = [name for name in PAPER if is_skewed(find(name).skew, pack_limit)]
    assert skewed == ["vgg11", "vgg16", "vgg19", "alexnet"]


def test_a_skewed_gang_is_consolidated_and_another_is_spread(make_view, free_of, shape):
    view = make_view("2x4", [2, 2, 2], [0.744, 0.112, None])
    free = free_of(4, 3)
    place = Skew(0.3)
    assert shape(place(view, free, 0)) == {1: 2}
    assert shape(place(view, free, 1)) == {0: 1, 1: 1}
    assert shape(place(view, free, 2)) == {1: 2}, "of unknown skew: consolidated"


def test_a_skewed_gang_takes_what_there_is_unless_it_is_strict(make_view, free_of, shape):
    view = make_view("2x4", [2], [0.744])
    free = free_of(1, 1)
    assert shape(Skew()(view, free, 0)) == {0: 1, 1: 1}
    assert Skew(strict=True)(view, free, 0) is None
