"""The part of a GPU that foreground jobs leave, by what was measured of them."""

import pytest

from rota.policy.fill.gaps import PRIOR, share_left

LEFT = {
    "an idle GPU is left whole": ([], (1.0, True)),
    "what a job does not use is left": ([0.37], (0.63, True)),
    "jobs that share a GPU use it together": ([0.25, 0.5], (0.25, True)),
    "more than all is nothing left": ([0.9, 0.8], (0.0, True)),
    "an unknown job leaves what is assumed": ([None], (PRIOR, False)),
    "an unknown job leaves no more than the others": ([0.9, None], (0.1, False)),
    "a use below nothing counts for nothing": ([-0.1], (1.0, True)),
}


@pytest.mark.parametrize("case", LEFT)
def test_share_left(case):
    used, expected = LEFT[case]
    assert share_left(used) == expected
