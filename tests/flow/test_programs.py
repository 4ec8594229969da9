"""Random programs of several clients equal an interpreter, bit for bit, and leave nothing behind.

A failure names its seed; ``make test-flow FIRST=SEED STORIES=1`` runs that story again. What the
clients do is the same then, and how their workers meet is not.
"""

import os
from collections.abc import Iterator

import pytest

from rota.errors import RotaError
from rota.flow.page import HELD_BYTES, LOG, SLOTS
from support.flow_programs import Story

from .conftest import Island

FIRST, STORIES = (
    int(os.environ.get(f"FLOW_{name}", default)) for name, default in (("FIRST", 0), ("STORIES", 9))
)
AT_ONCE = 3  # stories of one test; each has two to four clients
PROGRAMS = 4  # of each client in a story, one after another
STEPS = 12


@pytest.fixture
def stories(island: Island, request: pytest.FixtureRequest) -> Iterator[tuple[int, Story]]:
    def tell() -> Iterator[tuple[int, Story]]:
        for seed in range(request.param, min(request.param + AT_ONCE, FIRST + STORIES)):
            story = Story(island, seed)
            try:
                yield seed, story
            finally:
                story.close()

    return tell()


@pytest.mark.parametrize("stories", range(FIRST, FIRST + STORIES, AT_ONCE), indirect=True)
def test_random_programs_equal_an_interpreter_and_leave_the_store_empty(island, stories):
    for seed, story in stories:
        try:
            for _ in range(PROGRAMS):
                story.program(STEPS)
        except (AssertionError, RotaError) as error:
            raise AssertionError(f"story {seed}: {error}") from error
        assert story.compared > 0
        for client in story.connections:
            client.wait()
            parcels = [each.name for each in client.parcels.iterdir() if each.name != LOG]
            assert not [each for each in parcels if not each.startswith("slice")], seed
        held = [island.page.of(slot, HELD_BYTES) for slot in range(SLOTS)]
        assert not any(held), seed
