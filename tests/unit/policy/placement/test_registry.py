import pytest

from rota.errors import PolicySettingError
from rota.policy.placement.registry import PLACEMENTS, placement


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_name_is_a_placement(make_view, free_of, name):
    view = make_view("2x4", [3])
    assert placement(name)(view, free_of(4, 4), 0).num_gpus == 3


def test_a_wrong_name_is_told_with_the_close_one():
    with pytest.raises(PolicySettingError, match=r"no 'topologi' \(did you mean 'topology'\?\)"):
        placement("topologi")


def test_the_pack_limit_is_the_skew_placements(make_view, free_of, shape):
    view = make_view("2x4", [2], [0.2])
    assert shape(placement("skew")(view, free_of(4, 4), 0)) == {0: 1, 1: 1}
    assert shape(placement("skew", 0.1)(view, free_of(4, 4), 0)) == {0: 2}
