import importlib
import io
import os
import subprocess
import sys

import click
import pytest

from rota import __version__, errors
from rota.cli import main as program
from rota.cli.jobsource import read_job_file


def start(*args, **more):
    """Run the program in a process of its own."""
    command = [sys.executable, "-m", "rota.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_help_lists_every_command_with_a_line_of_help(rota):
    code, out, _ = rota("--help")
    assert code == 0
    for section in program.COMMANDS.values():
        for name, entry in section.items():
            assert any(
                line.split()[:1] == [name] and entry.help.split()[0] in line
                for line in out.splitlines()
            ), f"{name} is not in the help"


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["sim", "--help"]], ids=" ".join)
def test_what_needs_no_command_imports_none(args):
    code = (
        "import sys; from rota.cli.main import _exit_code; code = _exit_code(sys.argv[1:]); "
        "print('loaded', *sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    loaded = set(done.stderr.split())
    assert not {"rich", "httpx", "pydantic", "fastapi", "sqlalchemy", "numpy", "yaml"} & loaded
    if args != ["sim", "--help"]:
        commands = {
            e.target.partition(":")[0] for s in program.COMMANDS.values() for e in s.values()
        }
        assert not commands & loaded


@pytest.mark.parametrize("name", ["sim", "experiment"])
def test_the_table_leads_to_commands_of_that_name(name):
    (entry,) = (s[name] for s in program.COMMANDS.values() if name in s)
    module, _, attribute = entry.target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_the_version_is_the_packages(rota):
    assert rota("--version") == (0, f"rota {__version__}\n", "")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["simm"], "there is no command 'simm' (did you mean 'sim'?); see `rota --help`"),
        (["sbumit", "a.yaml"], "there is no command 'sbumit' (did you mean 'submit'?)"),
        (["simulate"], "there is no command 'simulate' (did you mean 'sim'?)"),
        (["PS"], "there is no command 'PS' (did you mean 'ps'?)"),
        (["xyzzy"], "there is no command 'xyzzy'; see `rota --help`"),
        (["--nope"], "No such option"),
        (["sim", "runn"], "'runn' (did you mean 'run'?); see `rota sim --help`"),
        (["trace", "genrate"], "(did you mean 'generate'?); see `rota trace --help`"),
        (["experiment", "lst"], "(did you mean 'list'?); see `rota experiment --help`"),
        (["sim", "run", "--cluster", "1x1"], "see `rota sim run --help`"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(rota, args, says):
    code, out, err = rota(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(rota):
    code, out, err = rota("sim")
    assert (code, out) == (2, "")
    assert "compare" in err
    assert "error" not in err


class Raises:
    """Stands in for the command line's work."""

    def __init__(self, error):
        self.error = error

    def main(self, *args, **more):
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RotaError("broken"), 1),
        (errors.SimulationError("broken"), 1),
        (errors.UnreachableError("broken"), 1),
        (errors.InputError("broken"), 2),
        (errors.NeverFitsError("broken"), 2),
        (errors.DataMissingError("broken"), 3),
        (errors.AuthError("broken"), 5),
        (click.ClickException("broken"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_is_one_line_with_its_exit_code(rota, monkeypatch, error, code):
    monkeypatch.setattr(program, "cli", Raises(error))
    assert rota() == (code, "", "error: broken\n")


def test_a_message_of_several_lines_becomes_one(rota, monkeypatch):
    monkeypatch.setattr(program, "cli", Raises(errors.RotaError("one\n  two\nthree")))
    assert rota() == (1, "", "error: one two three\n")


def test_an_interruption_is_quiet(rota, monkeypatch):
    monkeypatch.setattr(program, "cli", Raises(KeyboardInterrupt()))
    assert rota() == (130, "", "")


def test_a_fault_of_our_own_is_not_hidden(monkeypatch):
    monkeypatch.setattr(program, "cli", Raises(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        program.main([])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--", "true"], program.FOLDER_GONE),
        (["run", "--snapshot", "--array", "0-3", "--", "true"], program.FOLDER_GONE),
        (["plan", "--gpus", "1", "--", "true"], program.FOLDER_GONE),
        (["up", "--home", "here"], program.FOLDER_GONE),
        (["submit", "job.yaml"], "No such file or directory; give the path of a YAML file"),
    ],
    ids=str,
)
def test_in_a_folder_that_was_removed_commands_say_so_in_one_line(
    rota, tmp_path, monkeypatch, args, says
):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = rota(*args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert rota("policies")[0] == 0, "what needs no folder works"


def test_a_job_file_from_standard_input_needs_no_folder_if_it_names_one(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for text, told in ((b"{run: x, workdir: /w}", "/w"), (b"{run: x}", "give an absolute path")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        try:
            assert read_job_file("-").workdir == told
        except errors.JobFileError as error:
            assert told in str(error)


def test_a_reader_that_goes_away_is_no_error_message():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        command = [sys.executable, "-m", "rota.cli.main", "--help"]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("args", [["--version"], ["experiment", "list"]], ids=" ".join)
def test_a_full_disk_under_the_output_is_one_line(args, buffered):
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "rota.cli.main", *args]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output can't be written: No space left on device\n"


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 2)])
def test_a_program_without_stdout_or_stderr_ends_quietly(closed, code):
    args = "--version" if code == 0 else "no-such-command"
    command = f"{sys.executable} -m rota.cli.main {args} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_no_color_is_respected(monkeypatch):
    seen = {}

    class Command:
        def main(self, *args, **more):
            seen.update(more)

    monkeypatch.setattr(program, "cli", Command())
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit):
        program.main([])
    assert seen["color"] is False


def test_the_program_runs_as_a_process():
    done = start("sim", "run", "--help")
    assert done.returncode == 0
    assert "--per-job" in done.stdout
