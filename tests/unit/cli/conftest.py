import pytest

from rota.cli.main import main
from rota.testing.builders import twenty_jobs
from rota.workload.writer import write_trace


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    """Tables are as wide as they come, wherever the tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def rota(capsys):
    """Run the program: its exit code, stdout, stderr."""

    def rota(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return rota


@pytest.fixture
def trace(tmp_path):
    """A file of twenty jobs for eight GPUs."""
    path = tmp_path / "twenty.csv"
    with path.open("wb") as file:
        write_trace(twenty_jobs(), file)
    return path
