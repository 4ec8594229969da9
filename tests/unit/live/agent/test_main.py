"""The agent as a program: what it takes from where it was started."""

import subprocess
import sys

import pytest

LIMITED = """
import resource, sys
from rota.live.agent.__main__ import limit_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
limit_open_files(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("wanted", "found"), [(20_000, "300 300"), (256, "256 300")])
def test_it_takes_as_many_files_as_it_may_open_where_these_are_fewer_than_before(wanted, found):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(wanted)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == found
