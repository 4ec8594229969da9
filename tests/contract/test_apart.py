"""Controller and server reach what is on a node through its agent alone.

They never look into an agent's folder, and never ask for a process of a node: it may be another
machine. ``server/up.py``, ``server/down.py``, ``cli/up.py`` and ``cli/agent.py`` begin and end what
is on this one, and ``server/notify/program.py`` what its owner has put there to be told of events.
"""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/rota"
ROOMS = ("live/controller", "server", "client", "cli", "explain", "sweep")
ON_THIS_MACHINE = (
    "server/up.py",
    "server/down.py",
    "cli/up.py",
    "cli/agent.py",
    "server/notify/program.py",
)
LAYOUT = {"node", "attempt", "checkpoints", "log", "arenas", "socket"}  # methods of Folder
PROCESSES = {"psutil", "pid_exists", "process_iter", "started_at", "killpg"}
FILES = re.compile(r"nodes/[*]|jobs/[*]|(attempt|ended|arrival)[.]json|[.]pid\b|rank\d*[.]log")


def modules():
    files = [file for room in ROOMS for file in sorted((SOURCE / room).rglob("*.py"))]
    return [
        name for file in files if (name := str(file.relative_to(SOURCE))) not in ON_THIS_MACHINE
    ]


def trespasses(text):
    """Lines of a module's text that reach past an agent."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in LAYOUT and owner.lower().endswith(("folder", "folder()")):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " not in node.value.strip() and FILES.search(node.value):
                found.append(repr(node.value))
        elif PROCESSES & {getattr(node, "id", None), getattr(node, "attr", None)}:
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", modules())
def test_no_controller_or_server_reaches_past_an_agent(module):
    assert trespasses((SOURCE / module).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "self._record.folder.attempt(node, '1', 1)",
        "folder.checkpoints(job_id).is_dir()",
        "path / 'attempt.json'",
        "folder.path.glob('nodes/*/jobs/*')",
        "psutil.pid_exists(pid)",
    ],
)
def test_who_does_is_found(line):
    assert trespasses(line)


@pytest.mark.parametrize("room", ["live/controller", "model", "policy", "explain"])
def test_no_engine_is_known_by_name_outside_of_the_providers(room):
    """A new one takes a file of ``live/provider``."""
    engines = re.compile(r"slurm|squeue|sbatch|kubernetes|kubelet|\bray\b", re.IGNORECASE)
    texts = {file: file.read_text() for file in (SOURCE / room).rglob("*.py")}
    assert texts
    assert {
        str(file): found for file, text in texts.items() if (found := engines.findall(text))
    } == {}
