"""The settings of background jobs, under any policy."""

import pytest

from rota.errors import PolicySettingError
from rota.policy.registry import again, create


def test_background_jobs_are_placed_unless_that_is_off():
    assert create("gandiva").fill is not None
    assert create("gandiva", {"fill": "off"}).fill is None
    assert again(create("gandiva", {"fill": "off"})).fill is None
    assert again(create("pollux")).fill is not None


def test_defaults_are_no_part_of_the_identity():
    given = create("fifo", {"fill_trial_s": "30", "fill_pause_s": "600"})
    assert given.identity == "fifo"
    assert create("fifo", {"fill_trial_s": "10"}).identity == "fifo fill_trial_s=10.0"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fill": "yes"}, "fill='yes' can't be used: it must be one of on, off"),
        ({"fill_trial_s": "0"}, "fill_trial_s='0' can't be used"),
        ({"fill_pause_s": "nan"}, "fill_pause_s='nan' can't be used"),
        (
            {"fill": "off", "fill_pause_s": "60"},
            "fill_pause_s=60.0 has no effect with fill=off; drop one of them",
        ),
    ],
    ids=str,
)
def test_what_can_not_be_is_named(given, told):
    with pytest.raises(PolicySettingError) as refused:
        create("fifo", given)
    assert told in str(refused.value)
