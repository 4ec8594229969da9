"""Verbs that hand in jobs, follow them, and steer them. They talk to the controller."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from rota.cli import present
from rota.cli.connection import JOB_HELP, connected, echo_warnings, json_option
from rota.cli.failedstarts import FailedStarts, failed_starts_printed, last_failure
from rota.cli.looking import last_lines
from rota.cli.moment import moment_of
from rota.cli.text import stamp
from rota.cli.verdict import truth
from rota.cli.watching import Watch
from rota.errors import JobFileError, NeverFitsError, NotFoundError, TransitionError
from rota.model.job import BACKGROUND, FLOW, FRESH
from rota.model.reason import Reason
from rota.report.text import printable
from rota.request.array import ARRAY
from rota.request.dependencies import dependencies_of
from rota.request.jobfile import (
    PRIORITIES,
    PROCESSES,
    START,
    SUSPEND,
    JobRequest,
    parse_job,
    resume_from_of,
)
from rota.request.launchers import advice
from rota.request.sweepfile import SweepRequest, parse_sweep
from rota.request.values import JOB, refuse

if TYPE_CHECKING:
    from rota.client.client import Client
    from rota.client.outputs import LogLine

JOB_FAILED, NEVER_PLACED, INTERRUPTED = 4, 3, 130
MOST_IDS = 10_000  # in a range
START_S = 0.25  # between two looks at a job that waits


def _handing_in(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that ``run`` and ``submit`` share."""
    options = [
        click.option(
            "--resume-from",
            metavar="JOB",
            help="Begin with a copy of the checkpoints that this job, which has ended, has left.",
        ),
        click.option(
            "--after",
            multiple=True,
            metavar="JOB",
            help="Wait until this job has succeeded; JOB:ended or JOB:failed: until it has so.",
        ),
        click.option(
            "--snapshot",
            is_flag=True,
            help="Run in a copy of this folder, as it is now, also where it can't be seen.",
        ),
        click.option(
            "--wait", is_flag=True, help="Wait for the end: exit code 0, or 4 if it failed."
        ),
        click.option(
            "-f", "--follow", is_flag=True, help="Print what it prints until it ends, as --wait."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Check it only; exit code 3 if it never fits."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the job as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("--array", metavar="INDICES", help="A job for each: 0-9, 1,3,7, or 0-9%3, 3 at once.")
@click.option("--gpus", default="1", show_default=True, metavar="N", help="GPUs to run on.")
@click.option("--flow", is_flag=True, help="One script that drives its GPUs through rota.flow.")
@click.option(
    "--weight", type=float, metavar="W", help="Of a flow job: its part of GPUs with others, 1."
)
@click.option("--idle", metavar="T", help="Suspend a flow job that calls nothing for so long: 10m.")
@click.option("--background", is_flag=True, help="Use what foreground jobs leave of GPUs.")
@click.option("--gpu-type", "gpu_types", multiple=True, metavar="TYPE", help="Only on such GPUs.")
@click.option("--cpus", metavar="N", help="Cores that it needs: ROTA_CPUS and OMP_NUM_THREADS.")
@click.option("--memory", metavar="SIZE", help="What it needs of the machine's memory: 64GB.")
@click.option("--setup", metavar="COMMAND", help="Run this on the node before it, once.")
@click.option("--gpu-memory", metavar="SIZE", help="What it needs of each GPU, at most: 30GB.")
@click.option("--name", metavar="NAME", help="The script's name by default.")
@click.option(
    "--priority",
    metavar="P",
    help="1 to 100, or " + ", ".join(PRIORITIES) + "; 50 by default. Larger is sooner.",
)
@click.option(
    "--processes",
    type=click.Choice(PROCESSES),
    help="gpu: a process per GPU, a rank each, the default but for launchers such as torchrun; "
    "node: one that sees all GPUs; flow: the same as --flow.",
)
@click.option("--queue", metavar="QUEUE", help="The queue whose quota it counts against.")
@click.option(
    "--suspend",
    type=click.Choice(SUSPEND),
    default="auto",
    show_default=True,
    help="How to take it off its GPUs; restart: SIGTERM, and later anew from its own checkpoint.",
)
@click.option("--grace", metavar="T", help="With restart: until SIGKILL; 10s by default.")
@click.option(
    "--start",
    type=click.Choice(START),
    default=FRESH,
    show_default=True,
    help="warm: fork it from a process that has torch loaded, which is no plain `python SCRIPT`.",
)
@click.option("--retries", metavar="N", help="How often it starts anew after it has failed.")
@click.option("--tag", "tags", multiple=True, metavar="LABEL", help="A label of your own.")
@click.option("--time-limit", metavar="T", help="For example 30s, 10m, 2h, 1d.")
@click.option(
    "--env", "env", multiple=True, metavar="K=V", help="Set a variable; K alone passes yours on."
)
@_handing_in
def run(
    command: tuple[str, ...],
    wait: bool,
    follow: bool,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Submit a command as a job that runs in this folder: rota run --gpus 2 -- python train.py

    Each word reaches the command as it is given here. If a virtual environment is active (venv or
    conda), the job runs in it; of other variables it gets those of `rota up` and of --env. Prints
    the job's id on stdout, and on stderr what is going to happen, and with which Python.
    """
    request = command_request(command, **asked)
    if isinstance(request, JobRequest):
        return _hand_in(request, wait, follow, dry_run, as_json)
    from rota.cli.sweepsubmit import hand_in

    return hand_in(request, wait or follow, dry_run, as_json)


def command_request(
    command: Sequence[str],
    *,
    array: str | None,
    gpus: str,
    flow: bool,
    weight: float | None,
    idle: str | None,
    background: bool,
    gpu_types: tuple[str, ...],
    cpus: str | None,
    memory: str | None,
    setup: str | None,
    gpu_memory: str | None,
    name: str | None,
    priority: str | None,
    processes: str | None,
    queue: str | None,
    suspend: str,
    grace: str | None,
    start: str,
    retries: str | None,
    tags: tuple[str, ...],
    time_limit: str | None,
    env: tuple[str, ...],
    resume_from: str | None,
    after: tuple[str, ...],
    snapshot: bool,
) -> JobRequest | SweepRequest:
    """The job or array that a command line with the options of ``rota run`` asks for.

    Raises JobFileError.
    """
    if flow and processes not in (None, FLOW):
        refuse("--processes", processes, "--flow says how it is started: give one of the two")
    share: dict[str, Any] = {"role": BACKGROUND} if background else {}
    if weight is not None:
        share["weight"] = weight
    fields = {
        # One argument is a shell line, as with ssh; several are a command and its arguments.
        "run": command[0] if len(command) == 1 else shlex.join(command),
        "name": name,
        "queue": queue,
        "priority": priority,
        "processes": FLOW if flow else processes,
        "suspend": suspend,
        "grace": grace,
        "start": start,
        "retries": retries,
        "tags": list(tags),
        "time_limit": time_limit,
        "env": own_environment() | dict(_variable(text) for text in env),
        "resources": {
            "gpus": gpus,
            "gpu_type": list(gpu_types) or None,
            "gpu_memory": gpu_memory,
            "memory": memory,
            "cpus": cpus,
        },
        "setup": setup,
        "share": share or None,
        "idle": idle,
        "resume_from": resume_from,
        "depends_on": [_awaited(text) for text in after] or None,
        "snapshot": snapshot,
    }
    if array is None:
        return parse_job(fields, workdir=os.getcwd())
    return parse_sweep({**fields, ARRAY: array}, workdir=os.getcwd())


def own_environment() -> dict[str, str]:
    """The variables by which a virtual environment that is active here is active in the job too."""
    names = ("VIRTUAL_ENV", "CONDA_PREFIX")
    active = {name: os.environ[name] for name in names if os.environ.get(name)}
    return active | {"PATH": os.environ.get("PATH", os.defpath)} if active else {}


def in_own_environment(request: JobRequest) -> JobRequest:
    """The request, to run in the virtual environment that is active unless it says otherwise."""
    own, said = own_environment(), dict(request.env)
    if own.keys() & said.keys():
        return request
    return request._replace(env=(*own.items(), *said.items()))


def _cancel(client: "Client", name: str, *, now: bool) -> dict[str, Any]:
    """End a job, or all of the search or array of that name. Raises NotFoundError for neither."""
    try:
        return client.cancel(name, now=now)
    except NotFoundError as error:
        if name.isdigit() or not JOB.match(name):
            raise error
        if name not in {sweep["name"] for sweep in client.sweeps(everything=True)}:
            raise error
    if now:
        raise click.UsageError(
            f"--now ends jobs by their ids, such as 12[3-7], and not all of {name}"
        )
    told = client.cancel_sweep(name)
    return told | {"id": name, "name": "all of its jobs", "state": told["outcome"]}


def ids_of(text: str) -> list[str]:
    """``12[3-7]`` as the ids 123 to 127; other text as it is."""
    match = re.fullmatch(r"([0-9]{0,9})\[([0-9]{1,9})-([0-9]{1,9})\]", text)
    if match is None:
        return [text]
    first, last = int(match[2]), int(match[3])
    if not first <= last < first + MOST_IDS:
        fix = f"write the smaller number first, and at most {MOST_IDS} ids: 12[3-7]"
        raise click.UsageError(f"{text!r:.80}: {fix}")
    return [f"{match[1]}{number:0{len(match[2])}}" for number in range(first, last + 1)]


def _awaited(text: str) -> dict[str, str]:
    """``JOB`` or ``JOB:ended`` as an entry of ``depends_on``."""
    job, colon, when = text.partition(":")
    return {"job": job} | ({"when": when} if colon else {})


@click.command()
@click.argument("job_files", nargs=-1, required=True, metavar="JOB.YAML")
@_handing_in
def submit(
    job_files: tuple[str, ...],
    resume_from: str | None,
    after: tuple[str, ...],
    snapshot: bool,
    wait: bool,
    follow: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Submit a job file in YAML; - reads it from standard input.

    The job runs in the virtual environment that is active, as with `rota run`, unless its env says
    otherwise. Prints the job's id on stdout, and what is going to happen on stderr.

    A file with a block `sweep` begins a search, and its name is printed. --wait and --follow then
    tell each new best on stderr until the search ends: exit code 0 if it has found something and
    was not cancelled, else 4.
    """
    from rota.cli.jobsource import only_path, read_job_file

    request = read_job_file(only_path(job_files))
    awaited = dependencies_of([_awaited(text) for text in after] or None)
    if isinstance(request, JobRequest):
        request = request._replace(depends_on=request.depends_on + awaited)
        request = request._replace(snapshot=snapshot or request.snapshot)
        request = in_own_environment(request)
        if resume_from is not None:
            request = request._replace(resume_from=resume_from_of(resume_from))
        return _hand_in(request, wait, follow, dry_run, as_json)
    if resume_from is not None:
        refuse("--resume-from", resume_from, "the trials of a search begin anew: leave it out")
    from rota.cli.sweepsubmit import hand_in

    job = in_own_environment(request.job)
    job = job._replace(snapshot=snapshot or job.snapshot)
    request = request._replace(job=job._replace(depends_on=job.depends_on + awaited))
    return hand_in(request, wait or follow, dry_run, as_json)


@click.command(epilog=JOB_HELP)
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends; Ctrl-C detaches.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option(
    "--rank",
    callback=lambda ctx, param, value: _rank_of(value),
    metavar="R|all",
    help="Which rank: 0, or the one that failed; all: lines of all, each with its rank.",
)
@click.option(
    "--process", type=click.IntRange(0), metavar="N", help="Which process, whatever its rank."
)
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="The latest by default.")
@click.option("--since", metavar="T", help="Only lines of the last 10m, 2h; or since an ISO time.")
@click.option("--timestamps", is_flag=True, help="Begin each line with when it was printed.")
@click.option("--system", is_flag=True, help="Also what Rota did to the job, among the lines.")
@click.option("--raw", is_flag=True, help="Let control characters reach the terminal.")
def logs(
    job: str,
    follow: bool,
    tail: int | None,
    rank: int | Literal["all"] | None,
    process: int | None,
    attempt: int | None,
    since: str | None,
    timestamps: bool,
    system: bool,
    raw: bool,
) -> int:
    """Print a job's output, also after its end. On a terminal, control characters are escaped.

    It is what rank 0 printed, or the rank whose error ended the job. Where several processes of an
    elastic job have been rank 0 in turn, their outputs follow one another. Processes that are no
    ranks any more, or never were, are asked for by number, in order of their start.

    With --rank all, lines begin with their rank, and come in the order of their times. With
    --system, lines that begin with a time and [rota] tell the job's story: that it was submitted,
    started, suspended, for whom. Times are right to about a second; of a line that was printed
    while the agent was away it is when the last of these was printed. Jobs that an older Rota has
    run have none. Lines come whole.
    """
    if rank is not None and process is not None:
        raise click.UsageError("--rank and --process: give one of them")
    since_s = None if since is None else moment_of("--since", since)
    with connected() as client:
        job_id = client.job(job)["id"]
        which: dict[str, Any] = {"rank": rank, "process": process, "attempt": attempt}
        since_s = None if since_s is None else since_s + client.ahead_s
        shown: dict[str, Any] = {
            "tail": tail,
            "since_s": since_s,
            "timestamps": timestamps,
            "system": system,
        }
        if follow:
            return _follow(client, job_id, raw=raw, **shown, **which)
        for text in _output(client, job_id, **shown, **which):
            _write_log(text, raw)
        sys.stdout.flush()
        first = client.log_piece(job_id, **(which | {"rank": None if rank == "all" else rank}))
        if first.attempt == 0:
            sentence = client.explain(job_id)["sentence"]
            click.echo(f"job {job_id} has not started: {printable(sentence)}", err=True)
        elif first.rank and rank is None and process is None:
            other = f"`rota logs {job_id} --rank 0` prints that of rank 0"
            click.echo(f"this is the output of rank {first.rank}, which failed; {other}", err=True)
    return 0


@click.command(epilog=JOB_HELP)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--now", is_flag=True, help="Kill their processes at once, also in their grace.")
def cancel(jobs: Sequence[str], now: bool) -> int:
    """End jobs: their programs are asked, and killed after their grace. Twice does no harm.

    12[3-7] means the jobs 123 to 127; the name of an array or a sweep ends all of its jobs. The
    exit code is 1 if a job had ended by itself, or there is none; the others are cancelled.
    """
    with connected() as client:
        before = "; it was cancelled before"
        names = [name for text in jobs for name in ids_of(text)]
        cancel = partial(_cancel, client, now=now)
        return _steer(names, cancel, "is being stopped", lambda job: before)


@click.command(epilog=JOB_HELP)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def suspend(jobs: Sequence[str]) -> int:
    """Take jobs off their GPUs until they are resumed; nothing that they did is lost.

    A job with `suspend: restart` ends instead, and goes on from what it has saved by then.

    Twice does no harm. The exit code is 1 if a job has ended, or there is none; the others are
    suspended.
    """
    with connected() as client:
        before = "; it was suspended before, and waits for `rota resume`"
        becomes = "gives its GPUs up and waits for `rota resume`"
        return _steer(jobs, client.suspend, becomes, lambda job: before)


@click.command(epilog=JOB_HELP)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def resume(jobs: Sequence[str]) -> int:
    """Let suspended jobs go on, when the policy gives them GPUs.

    Nothing happens to jobs that their owner has not suspended. The exit code is 1 if a job has
    ended, or there is none; the others are resumed.
    """
    with connected() as client:
        return _steer(jobs, client.resume, "goes on when its turn comes", _not_suspended)


@click.command(epilog=JOB_HELP)
@click.argument("job")
@click.option("--timeout", type=click.FloatRange(0), metavar="S", help="Give up after S seconds.")
@json_option
def wait(job: str, timeout: float | None, as_json: bool) -> int:
    """Wait for a job to end: exit code 0 if it succeeded, 4 if not, 1 if time ran out."""
    with connected() as client:
        try:
            asked = client.job(job)
            if asked["reason"] == Reason.WAIT_BACKOFF.name:
                click.echo(last_failure(asked), err=True)
            told = FailedStarts(asked["id"])
            ended = client.wait(asked["id"], timeout_s=timeout, after=client.cursor, told=told)
        except TimeoutError as error:
            click.echo(f"error: {error}", err=True)
            return 1
        if as_json:
            click.echo(present.structure_text(ended))
        else:
            _echo_end(client, ended)
    return _code_of(ended)


def missing_script(request: JobRequest) -> str:
    """The path of the Python script that a plain command names, if this machine has none such."""
    try:
        words = shlex.split(request.run)
    except ValueError:
        return ""
    if len(words) < 2 or not re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
        return ""
    path = Path(request.workdir, words[1])
    return "" if not words[1].endswith(".py") or path.exists() else str(path)


# -- steps ---------------------------------------------------------------------------------------


def _warn_of_missing(request: JobRequest) -> None:
    if missing := missing_script(request):
        told = f"there is no {printable(missing)} here; the job fails unless it is there by then"
        click.echo(f"warning: {told}", err=True)


def _hand_in(request: JobRequest, wait: bool, follow: bool, dry_run: bool, as_json: bool) -> int:
    with connected() as client:
        try:
            if dry_run:
                plan = client.check(request)
                _echo_plan(plan, as_json)
                _echo_advice(request, plan["python"])
                echo_warnings(plan)
                _warn_of_missing(request)
                return 0
            job = client.submit(request)
            submitted = client.cursor
        except NeverFitsError as error:
            click.echo(f"error: {error}", err=True)
            return NEVER_PLACED
        click.echo(present.structure_text(job) if as_json else job["id"])
        verdict = client.explain(job["id"])
        click.echo(truth(job, verdict), err=True)
        echo_warnings(verdict)
        echo_warnings(job)
        _warn_of_missing(request)
        _echo_advice(request, job["python"])
        if follow:
            return _follow(client, job["id"], after=submitted)
        if wait:
            ended = client.wait(job["id"], after=submitted, told=FailedStarts(job["id"]))
            _echo_end(client, ended)
            return _code_of(ended)
    return 0


def _follow(
    client: "Client", job_id: str, *, raw: bool = False, after: str | None = None, **shown: Any
) -> int:
    """Print what the job prints until it ends. Ctrl-C leaves it running, and says so."""
    try:
        with failed_starts_printed(client, after, FailedStarts(job_id)):
            _await_start(client, job_id)
            for text in _output(client, job_id, follow=True, **shown):
                _write_log(text, raw)
                sys.stdout.flush()
        ended = client.job(job_id)
    except KeyboardInterrupt:
        click.echo(
            f"\ndetached; job {job_id} goes on. `rota logs {job_id} -f` follows it again, "
            f"`rota cancel {job_id}` ends it",
            err=True,
        )
        return INTERRUPTED
    if not present.is_final(ended):  # the end of an attempt that was asked for by its number
        return 0
    _echo_end(client, ended, has_followed=True)
    return _code_of(ended)


def _output(
    client: "Client",
    job_id: str,
    *,
    rank: int | Literal["all"] | None = None,
    timestamps: bool = False,
    system: bool = False,
    **which: Any,
) -> Iterator[str]:
    """Output of the rank or process, or of all ranks, in pieces."""
    if rank != "all" and not (timestamps or system):
        yield from client.logs(job_id, rank=rank, **which)
        return
    for line in client.log_lines(job_id, rank=rank, system=system, **which):
        begin = f"[rank {line.rank}] " if rank == "all" else ""
        if line.system:
            begin = "[rota] "
        if timestamps or system:
            at_s = _time_of(line, job_id)
            begin = f"{stamp(at_s)} {begin}" if timestamps or line.system else begin
        yield f"{begin}{line.text}\n"


def _time_of(line: "LogLine", job_id: str) -> float:
    """When a line was printed. Raises NotFoundError if that was not kept."""
    if line.at_s is None:
        raise NotFoundError(
            f"the times of lines of job {job_id} were not kept, because an older Rota ran it; "
            f"leave --timestamps and --system out; `rota show {job_id}` tells its story"
        )
    return line.at_s


def _rank_of(text: str | None) -> int | Literal["all"] | None:
    """A rank, or ``all``. Raises BadParameter."""
    if text is None:
        return None
    if text == "all":
        return "all"
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is no rank: give a number from 0, or all")
    return int(text)


def _await_start(client: "Client", job_id: str) -> None:
    """Wait for the first attempt or the end, and tell each reason for waiting once."""
    from rota.client.connection import FOLLOW_PATIENCE_S

    told, watch = "", None
    while not client.log_piece(job_id, patience_s=FOLLOW_PATIENCE_S).attempt:
        cursor = client.cursor
        verdict = client.explain(job_id)
        if verdict["state"] != "PENDING" and not verdict["blockers"]:
            return
        if verdict["sentence"] != told:
            told = verdict["sentence"]
            click.echo(f"job {job_id} has not started: {printable(told)}", err=True)
        watch = watch or Watch(client, cursor, START_S)
        watch.wait()


def _write_log(text: str, raw: bool) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(text if raw else printable(text, keep="\n\t\r"))
    else:  # as the job printed it, whatever the letters of this program's own messages
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def _steer(
    jobs: Sequence[str],
    call: Callable[[str], dict[str, Any]],
    becomes: str,
    unchanged: Callable[[dict[str, Any]], str],
) -> int:
    """Ask for something about each job, and say what came of it; 1 if one of them can't do it."""
    code = 0
    for name in jobs:
        try:
            job = call(name)
        except (TransitionError, NotFoundError) as error:
            click.echo(f"error: {printable(error)}", err=True)
            code = 1
            continue
        line = f"job {job['id']} ({printable(job['name'])}): {job['state']}"
        if not job["changed"]:
            line += unchanged(job)
        elif not present.is_final(job):
            line += f"; it {becomes}"
        click.echo(line)
    return code


def _not_suspended(job: dict[str, Any]) -> str:
    runs = job["state"] in ("STARTING", "RUNNING")
    hint = "" if runs else f"; `rota why {job['id']}` tells what it waits for"
    return "; its owner had not suspended it" + hint


def _echo_end(client: "Client", job: dict[str, Any], *, has_followed: bool = False) -> None:
    code = "" if job["exit_code"] is None else f" (exit code {job['exit_code']})"
    message = f": {printable(job['message'])}" if job["message"] else ""
    click.echo(f"job {job['id']} {job['state']}{code}{message}", err=True)
    if not has_followed and (last := last_lines(client, job)):
        click.echo("\n".join(last[1:]), err=True)


def _echo_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(present.structure_text(plan))
        return
    from rota.cli.sweepsubmit import taken_text

    click.echo(taken_text(plan["job"], plan["free_gpus"], "it"))


def _echo_advice(request: JobRequest, python: str | None) -> None:
    """Say which Python runs it, and what there is to know about a launcher."""
    if python is not None:
        own = "PATH" in dict(request.env)
        whose = "of its own environment" if own else "that `rota up` runs in"
        click.echo(f"python: {printable(python)}, {whose}", err=True)
    grace_s = request.grace_s if request.suspend == "restart" else 0.0
    for line in advice(request.run, request.num_gpus, request.processes, grace_s):
        click.echo(f"note: {line}", err=True)


def _code_of(job: dict[str, Any]) -> int:
    return 0 if job["state"] == "SUCCEEDED" else JOB_FAILED


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise JobFileError(f"--env: {name!r} is not set here; write {name}=VALUE")
    return name, os.environ[name]
