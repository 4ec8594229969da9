"""The ``rota`` program: finds the command, and turns errors into one line and an exit code.

    0    all went well
    1    something failed
    2    something that the user wrote is wrong
    3    data that is needed is absent
    5    the token is missing or wrong
    130  interrupted

A verb may add its own codes and says so in its help.
"""

import io
import os
import sys
from importlib import import_module
from traceback import walk_tb
from typing import Any, NamedTuple, NoReturn

import click

from rota import __version__
from rota.cli.commandgroup import CommandGroup
from rota.errors import AuthError, DataMissingError, InputError, RotaError, shortage_of

FOLDER_GONE = (
    "the folder that this command runs in was removed; change to one that is there, for example "
    "with `cd`"
)


class Entry(NamedTuple):
    """A command that is imported when it is needed: where it lives, and its line in the help."""

    target: str  # module:attribute
    help: str


COMMANDS = {
    "Jobs": {
        "run": Entry("rota.cli.live:run", "Submit a command: rota run --gpus 1 -- python train.py"),
        "submit": Entry("rota.cli.live:submit", "Submit a job file."),
        "plan": Entry("rota.cli.plan:plan", "Where and when a job would start, if submitted."),
        "top": Entry("rota.cli.top:top", "The cluster on the terminal, live, with keys."),
        "ps": Entry("rota.cli.looking:ps", "List jobs."),
        "show": Entry("rota.cli.looking:show", "Everything about one job."),
        "logs": Entry("rota.cli.live:logs", "What a job printed."),
        "why": Entry("rota.cli.looking:why", "Why a job does not run."),
        "wait": Entry("rota.cli.live:wait", "Wait for a job to end."),
        "suspend": Entry("rota.cli.live:suspend", "Take a job off its GPUs until it is resumed."),
        "resume": Entry("rota.cli.live:resume", "Let a suspended job go on."),
        "cancel": Entry("rota.cli.live:cancel", "End a job."),
        "clean": Entry("rota.cli.clean:clean", "Remove what jobs that have ended have left."),
    },
    "Searches": {
        "sweep": Entry("rota.cli.sweep:sweep", "Look at searches over hyper-parameters."),
    },
    "Cluster": {
        "up": Entry("rota.cli.up:up", "Start a cluster on this machine."),
        "down": Entry("rota.cli.up:down", "End the cluster on this machine."),
        "agent": Entry("rota.cli.agent:agent", "Have this machine join a cluster elsewhere."),
        "ui": Entry("rota.cli.ui:ui", "Show the cluster in a browser."),
        "report": Entry("rota.cli.report:report", "How jobs have fared, and how GPUs were used."),
        "doctor": Entry("rota.cli.doctor:doctor", "Check what this machine offers to jobs."),
        "profiles": Entry("rota.cli.looking:profiles", "List what was measured of kinds of jobs."),
        "node": Entry("rota.cli.node:node", "Cordon, drain, invite and remove nodes."),
        "notify": Entry("rota.cli.notify:notify", "Tell webhooks and commands of events."),
        "nodes": Entry("rota.cli.looking:nodes", "List nodes and who holds their GPUs."),
    },
    "Simulator": {
        "sim": Entry("rota.cli.sim:sim", "Run a trace under a policy, or compare policies."),
        "burst": Entry("rota.cli.burst:burst", "Plan numbers of GPUs layer by layer."),
        "policies": Entry("rota.cli.policies:policies", "List the policies, and what each needs."),
        "trace": Entry("rota.cli.trace:trace", "Look at job traces, convert and generate them."),
        "experiment": Entry("rota.cli.experiment:experiment", "Reproduce published results."),
    },
}


class LazyGroup(CommandGroup):
    """A group whose commands are imported only when they are run or their own help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of the table."""
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now; None if there is no such command."""
        for section in COMMANDS.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name].target.partition(":")
                command: click.Command = getattr(import_module(module), attribute)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, from the table alone."""
        width = max(map(len, self.list_commands(ctx)))
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), entry.help) for name, entry in section.items()]
                )


@click.group(
    name="rota",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`rota COMMAND --help` tells more about a command.",
)
@click.version_option(__version__, message="rota %(version)s")
def cli() -> None:
    """A scheduler for deep-learning training, live and in a simulator."""


def main(args: list[str] | None = None) -> NoReturn:
    """Run the program with ``args``, or the command line's, and exit."""
    sys.exit(_exit_code(args))


def _exit_code(args: list[str] | None) -> int:
    settings: dict[str, Any] = {"color": False} if os.environ.get("NO_COLOR") else {}
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have every letter
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Without standalone mode, click returns the code given to ctx.exit(), or what the command
        # itself returned.
        result = cli.main(args, prog_name="rota", standalone_mode=False, **settings)
        _flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _report(_sentence(error), error.exit_code)
    except click.Abort as error:
        return _report("cancelled", 1) if isinstance(error.__cause__, EOFError) else 130
    except KeyboardInterrupt:
        return 130
    except RotaError as error:
        return _report(str(error), _code(error))
    except BrokenPipeError:
        _give_up_stdout()
        return 1
    except OSError as error:
        if _is_of_the_folder(error):
            return _report(FOLDER_GONE, 2)
        if not _is_of_printing(error):
            return _report_shortage(error)
        _give_up_stdout()
        return _report(f"the output can't be written: {error.strerror or error}", 1)
    except (RuntimeError, MemoryError) as error:
        return _report_shortage(error)
    return result if isinstance(result, int) else 0


def _flush() -> None:
    if sys.stdout is not None:  # None if the program was started with it closed
        sys.stdout.flush()


def _is_of_printing(error: OSError) -> bool:
    """True if it came up while the output was written, and not in what a command does."""
    last = list(walk_tb(error.__traceback__))[-1][0]
    return last.f_globals["__name__"] in ("click.utils", __name__)


def _is_of_the_folder(error: OSError) -> bool:
    """True if it came up because the folder that the command runs in was removed."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _give_up_stdout() -> None:
    """Discard buffered output, so that writing it can't fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(error: RotaError) -> int:
    if isinstance(error, InputError):
        return 2
    if isinstance(error, DataMissingError):
        return 3
    return 5 if isinstance(error, AuthError) else 1


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    return f"{message}; see `{ctx.command_path} --help`" if ctx else message


def _report_shortage(error: Exception) -> int:
    """Report a lack of descriptors, processes or memory; whatever else went wrong is raised."""
    shortage = shortage_of(error)
    if shortage is None:
        raise error
    return _report(shortage, 1)


def _report(message: str, code: int) -> int:
    click.echo("error: " + " ".join(message.split()), err=True)
    return code


if __name__ == "__main__":
    main()
