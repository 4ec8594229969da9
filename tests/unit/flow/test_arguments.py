"""What a program gives that can't be is refused by name, before anything runs."""

from pathlib import Path

import pytest

from rota import flow
from rota.errors import InputError


@pytest.mark.parametrize("times", [-5, 2.0, "3", True, None])
def test_repeat_takes_a_whole_number(times):
    with pytest.raises(InputError, match=r"repeat: times is .*; give a whole number, 0 or more"):
        flow.repeat(times, lambda x: pytest.fail("it ran"), 1)


def test_repeat_zero_times_gives_what_it_was_given():
    assert flow.repeat(0, lambda x: pytest.fail("it ran"), 1) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"devices": [0, 0]}, r"devices: \[0, 0\] names 0 twice"),
        ({"devices": [1, 0, 1]}, r"devices: \[1, 0, 1\] names 1 twice"),
        ({"devices": []}, r"devices: \[\]; write how many"),
        ({"devices": [0, -1]}, r"devices: \[0, -1\]; write how many"),
        ({"devices": [0, True]}, "devices: .*; write how many"),
        ({"devices": 0}, "devices: 0; write how many"),
        ({"devices": 1.5}, "devices: 1.5; write how many"),
        ({"devices": "01"}, "devices: '01'; write how many"),
        ({"memory_bytes": 0}, "memory_bytes is 0; give bytes, 1 or more"),
        ({"memory_bytes": 1e9}, "memory_bytes is 1000000000.0; give bytes, 1 or more"),
    ],
)
def test_a_client_is_refused_before_it_connects(tmp_path: Path, options, says):
    with pytest.raises(InputError, match=says):
        flow.connect(tmp_path, **options)
