"""The process that watches over a notebook's job while that waits."""

import subprocess
import sys
from pathlib import Path

import pytest

from rota.flow import notebook

CANCELS = """
import sys
from rota.flow import notebook

class Client:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def submit(self, fields, key): return {"id": f"{key} of {fields['name']}"}
    def cancel(self, job_id): print("cancels", job_id)

notebook.Client = Client
sys.argv = ["notebook", notebook.WATCH, sys.argv[1]]
notebook.main()
"""
ASKED = '{"fields": {"name": "mine"}, "key": "k"}'


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (ASKED, "cancels k of mine\n"),
        (f"{ASKED}\nreleased", ""),
        ("\nreleased", ""),
        ("", ""),
        (ASKED[:-3], ""),
    ],
    ids=["killed", "started", "refused", "killed at once", "killed while it told"],
)
def test_a_job_is_cancelled_if_its_notebook_ends_while_it_waits(
    tmp_path: Path, said: str, answer: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-c", CANCELS, str(folder)]
    told = subprocess.run(command, input=said, capture_output=True, text=True, check=True)
    assert told.stdout == answer
    assert folder.exists() == said.endswith(notebook.RELEASED)
