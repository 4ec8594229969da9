"""Programs that measure when they are told to."""

import pytest

from rota.errors import SimulationError
from rota.experiment.runs.programs import Script, asked, started

ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps([line.strip(), *sys.argv[1:]]), flush=True)
"""
FAILS = "import sys; sys.stdin.readline(); sys.exit(3)"


@pytest.mark.process
def test_programs_answer_each_line_and_end(tmp_path):
    with started(tmp_path, [Script(ECHO, (1, "x")), Script(ECHO)], {}) as processes:
        assert asked("some-experiment", processes) == ["go", "1", "x"]
        assert asked("some-experiment", processes[1:], "again") == ["again"]
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.process
def test_a_program_that_fails_is_told_with_its_experiment(tmp_path):
    failure = pytest.raises(SimulationError, match="some-experiment: a program failed")
    with started(tmp_path, [Script(FAILS)], {}) as processes, failure:
        asked("some-experiment", processes)
