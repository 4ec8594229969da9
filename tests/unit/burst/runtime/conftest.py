"""Ranks that the tests of a module share."""

import pytest

from support.ranks import ranks


@pytest.fixture(scope="module")
def four():
    """Four processes for trainings on up to four ranks."""
    with ranks(4, "support.burst_training") as made:
        yield made
