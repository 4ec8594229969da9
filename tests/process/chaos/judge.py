"""Whether a run did what Rota promises: the ledger against the event log against the plan.

Nothing here depends on how long anything took. Each check yields a sentence for each promise that
was broken.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rota.live.controller.recovery import MAX_LOST_ATTEMPTS, NEVER_STARTED, SHUT_DOWN, UNCOUNTED
from rota.model.commands import Launch, Migrate, Resume, Stop
from rota.model.events import (
    AttemptLost,
    CommandSent,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
    TrialStopped,
)
from rota.model.job import JobState
from rota.model.state.state import ClusterState
from rota.policy.registry import create

from ...parity.test_replay import replay
from .draw import POLICIES, Job
from .drive import Found, Kill

CLOCKS_S = 0.2  # how far the controller's clock and the system's may have come apart
RIGHT_S = 1.0  # to so much a run time is right
Line = dict[str, Any]


class Story:
    """What is known of one job: its lines in the ledger, its events, what was killed of it."""

    def __init__(self, found: Found, row: int, name: str, job: Job, job_id: str) -> None:
        self.row, self.name, self.job, self.job_id = row, name, job, job_id
        self.trial = job.kind == "sweep"
        self.lines = [line for line in found.ledger if line["job"] == name]
        self.events = [event for event in found.events if _row_of(event) == row]
        self.kills = [kill for kill in found.kills if kill.job == job_id]
        self.show = next(show for show in found.shows if show["id"] == job_id)
        # One that is asked to end does so at once if it has no processes, or when they are lost.
        ends = [event for event in self.events if isinstance(event, JobFinished)]
        asked = [each for each in self.events if isinstance(each, StopRequested | AttemptLost)]
        while asked and isinstance(asked[0], AttemptLost):
            del asked[0]
        self.ends = ends or asked[-1:]

    def of(self, attempt: int, *what: str) -> list[Line]:
        """Lines of one attempt, of these kinds or of all."""
        lines = (line for line in self.lines if line["attempt"] == attempt)
        return [line for line in lines if not what or line["what"] in what]

    def killed(self, attempt: int, *roles: str) -> list[Kill]:
        """What was killed of one attempt, in these roles or in any."""
        kills = (kill for kill in self.kills if kill.attempt == attempt)
        return [kill for kill in kills if not roles or kill.role in roles]

    def __str__(self) -> str:
        told = [f"job {self.job_id}, {self.name}: {self.job.program} {self.job.fields}"]
        told += [f"  {event}"[:300] for event in self.events if type(event).__name__ in STORY]
        of_process: dict[tuple[Any, ...], list[Line]] = {}
        for line in self.lines:
            key = (line["attempt"], line["rank"], line["life"], line["pid"])
            of_process.setdefault(key, []).append(line)
        for (attempt, rank, life, pid), lines in of_process.items():
            said = [f"{line['what']} {line['n']} {line['at_s']:.3f}" for line in lines]
            words = ", ".join([*said[:4], "...", *said[-4:]] if len(said) > 9 else said)
            told.append(f"  attempt {attempt} rank {rank} life {life} process {pid}: {words}")
        told += [f"  {kill}" for kill in self.kills]
        told.append(f"  {self.show}")
        return "\n".join(told)


STORY = (
    *("JobSubmitted", "CommandSent", "CommandFailed", "JobLaunched", "JobSuspended", "JobResumed"),
    *("AttemptLost", "JobFinished", "StopRequested", "SuspendRequested", "ResumeRequested"),
    *("JobResized", "TrialStopped", "WorkerRegistered", "RetryDue"),
)


def judge(found: Found) -> list[str]:
    """Every broken promise, the stories of the jobs that it is about behind them."""
    broken = [*found.harm, *_submissions(found), *_replayed(found), *_searches(found)]
    for story in stories(found):
        words = [words for check in OF_A_JOB for words in check(found, story)]
        broken += [f"job {story.job_id} ({story.name}): {each}" for each in words]
        if words:
            broken.append(str(story))
    return broken


def stories(found: Found) -> list[Story]:
    """Each job's story, in the order of their submission."""
    jobs = {job.name: job for job in found.plan.jobs}
    made = []
    submitted = [event for event in found.events if isinstance(event, JobSubmitted)]
    for row, event in enumerate(submitted):
        name = event.spec.name
        job = jobs[name.rpartition(".")[0] if event.spec.trial is not None else name]
        made.append(Story(found, row, name, job, event.spec.job_id))
    return made


# -- of all jobs -----------------------------------------------------------------------------------


def _submissions(found: Found) -> Iterator[str]:
    """What was accepted is there, once."""
    handed_in = [asked for asked in found.asked if asked.do == "submit"]
    for asked in handed_in:
        if asked.refusal:
            yield f"{asked.name} was refused: {asked.refusal}"
    events = [event for event in found.events if isinstance(event, JobSubmitted)]
    names = Counter(event.spec.name for event in events if event.spec.trial is None)
    names.update(sweep["name"] for sweep in found.sweeps)
    for name in {asked.name for asked in handed_in} | set(names):
        if names[name] != 1:
            yield f"{name} was handed in once and is there {names[name]} times"
    for line in found.ledger:
        if line["job"].partition(".")[0] not in names:
            yield f"{line['job']} has run and was never handed in"
            break
    for asked in found.asked:
        if asked.refusal.startswith("NotFound"):
            yield f"{asked.do} of {asked.name}: {asked.refusal}"


def _replayed(found: Found) -> Iterator[str]:
    """The event log alone gives the state that the controller told of."""
    state, now_s = ClusterState(), 0.0
    for number, event in enumerate(found.events):
        try:
            state.apply(event)
        except Exception as error:  # whatever it is, the log can't be followed
            yield f"event {number}, {event}, can't follow what was before it: {error!r}"
            return
        if isinstance(event, DecisionTaken | CommandSent):
            if event.at_s < now_s:
                yield f"event {number}, {event}, is {now_s - event.at_s} s before the one before it"
            now_s = event.at_s
    state.validate()
    for show in found.shows:
        row = next(row for row, spec in enumerate(state.spec) if spec.job_id == show["id"])
        job = state.job(row, now_s)
        replayed = {
            "state": job.state.name,
            "attempt": job.attempt,
            "exit_code": job.exit_code,
            "migrations": job.migrations,
        }
        told = {name: show[name] for name in replayed}
        if told != replayed:
            yield f"job {show['id']}: the controller tells {told}, its log {replayed}"
    policy = create(found.plan.policy, POLICIES[found.plan.policy])
    try:
        replay(found.events, policy, keep_indexes=True)
    except AssertionError as error:
        yield f"the policy alone does not decide as it did: {error}"


def _searches(found: Found) -> Iterator[str]:
    """Each search has ended, with its trials once each and all that they have reported."""
    jobs = {job.name: job for job in found.plan.jobs}
    for sweep in found.sweeps:
        name, job = sweep["name"], jobs[sweep["name"]]
        cancelled = any(each.do == "cancel" and each.name == name for each in found.asked)
        most, trials = job.fields["sweep"]["max_trials"], sweep["trials"]
        numbers = [trial["number"] for trial in trials]
        if numbers != list(range(len(numbers))):
            yield f"search {name} has the trials {numbers}"
        outcomes = ("DONE", "FAILED") if not cancelled else ("DONE", "FAILED", "CANCELLED")
        if sweep["outcome"] not in outcomes:
            yield f"search {name} ended as {sweep['outcome']}: {sweep['message']}"
        if sweep["outcome"] == "DONE" and len(trials) != most:
            yield f"search {name} is done with {len(trials)} of {most} trials"
        for trial in trials:
            told = [(step, value) for step, _, value in trial["curve"]]
            x = trial["params"]["x"]
            if told != [(step, x * (step + 1)) for step in range(len(told))]:
                yield f"trial {name}.{trial['number']} of {x} has reported {told}"
            if trial["state"] == "SUCCEEDED" and len(told) != job.steps:
                yield f"trial {name}.{trial['number']} has {len(told)} of {job.steps} reports"


# -- of one job ------------------------------------------------------------------------------------


def _one_at_a_time(found: Found, story: Story) -> Iterator[str]:
    """No two attempts, and no two lives of a rank of one, were there at the same time."""
    latest, lives = 0, {}
    over: set[tuple[int, int, str]] = set()
    for line in story.lines:
        if line["id"] != story.job_id:
            yield f"its program ran as job {line['id']}: {line}"
        if line["attempt"] < latest:
            yield f"attempt {line['attempt']} was there when attempt {latest} was: {line}"
            return
        latest = line["attempt"]
        rank = (line["attempt"], line["rank"])
        life = (*rank, line["life"])
        if life in over:
            yield f"two processes were one rank at the same time: {line} and {lives[rank]}"
            return
        if lives.setdefault(rank, life) != life:
            over.add(lives[rank])
            lives[rank] = life


def _started_by_command(found: Found, story: Story) -> Iterator[str]:
    """Each attempt that ran was written down before, and ran no more once its end was."""
    sent = {
        event.command.attempt: event.at_s
        for event in story.events
        if isinstance(event, CommandSent) and isinstance(event.command, Launch)
    }
    if len(story.ends) != 1:
        yield f"it has ended {len(story.ends)} times"
        return
    end_s = story.ends[0].at_s
    if isinstance(story.ends[0], AttemptLost) or story.show["state"] == "LOST":
        end_s = float("inf")  # nobody saw it: what is told is when it was last heard of
    for line in story.lines:
        attempt = line["attempt"]
        if attempt not in sent or line["at_s"] < sent[attempt] - CLOCKS_S:
            yield f"attempt {attempt} ran without a command: {line}"
            return
        if line["what"] == "step" and line["at_s"] > end_s + CLOCKS_S:
            yield f"it ended at {end_s:.3f} and went on: {line}"
            return


def _still_when_suspended(found: Found, story: Story) -> Iterator[str]:
    """A job makes no step between its suspension and the command to go on, or to end."""
    downs = [asked.at_s for asked in found.asked if asked.do == "down"]
    since_s: float | None = None
    spans = []
    for event in story.events:
        if isinstance(event, JobSuspended):
            since_s = event.at_s
        elif since_s is not None and isinstance(event, CommandSent | JobFinished | AttemptLost):
            until_s = min([at_s for at_s in downs if at_s > since_s] + [event.at_s])
            spans.append((since_s + CLOCKS_S, until_s - CLOCKS_S))
            since_s = None
    for line in story.lines:
        if line["what"] in ("step", "beat") and any(a < line["at_s"] < b for a, b in spans):
            yield f"it was suspended, and went on: {line}; suspended {spans}"
            return


def _run_time_is_that_of_its_processes(found: Found, story: Story) -> Iterator[str]:
    """What the log says of when it ran covers all that it did, and makes up its run time.

    The time that it has to end counts no more. Who was asked to end while it was being started runs
    until the agent is told.
    """
    lost = {event.attempt for event in story.events if isinstance(event, AttemptLost)}
    spans: list[tuple[float, float]] = []
    since_s: float | None = None
    for event in story.events:
        if isinstance(event, JobLaunched | JobResumed):
            since_s = event.at_s
        elif since_s is not None and (isinstance(event, SPAN_ENDS) or _tells_to_end(event)):
            suspended = isinstance(event, JobSuspended)
            spans.append((since_s, event.stopped_s if suspended else event.at_s))
            since_s = None
    told_s, sum_s = story.show.get("run_s"), sum(end_s - begin_s for begin_s, end_s in spans)
    if told_s is not None and not lost and abs(told_s - sum_s) > RIGHT_S:
        yield f"it is told to have run for {told_s} s, and its log has {sum_s}: {spans}"
    stopped_s = min((e.at_s for e in story.events if isinstance(e, StopRequested)), default=None)
    for line in story.lines:
        at_s = line["at_s"]
        if line["what"] != "step" or line["attempt"] in lost:  # nobody saw the end of those
            continue
        if stopped_s is not None and at_s > stopped_s:
            return
        if not any(a - CLOCKS_S <= at_s <= b + RIGHT_S for a, b in spans):
            yield f"it ran when the log does not say so: {line}; the log has {spans}"
            return


def _tells_to_end(event: object) -> bool:
    return isinstance(event, CommandSent) and isinstance(event.command, Stop)


def _held_for_its_user(found: Found, story: Story) -> Iterator[str]:
    """What its user has suspended is not started and does not go on until they say so."""
    held_s: float | None = None
    for event in story.events:
        if isinstance(event, SuspendRequested):
            held_s = event.at_s
        elif isinstance(event, ResumeRequested | StopRequested):
            held_s = None
        elif held_s is not None and starts(event):
            yield f"its user suspended it at {held_s:.3f}, and {event} was sent"
            return


def _in_order(found: Found, story: Story) -> Iterator[str]:
    """Its events are in the order of time."""
    before = None
    for event in story.events:
        if not isinstance(event, TURNS):
            continue
        if before is not None and event.at_s < before.at_s:
            yield f"{event} stands behind {before}"
            return
        before = event


def _steps_follow(found: Found, story: Story) -> Iterator[str]:
    """Each rank's steps follow one another, through all of its lives and attempts."""
    start = 0  # the first step of the attempt, at least; what was saved counts
    most = 0
    attempts = sorted({line["attempt"] for line in story.lines})
    for attempt in attempts:
        next_step: dict[int, int] = {}
        saved = (start, most)
        for line in story.of(attempt, "step", "saving", "saved"):
            rank, n = line["rank"], line["n"]
            if line["what"] == "saving":
                most = max(most, n)
            elif line["what"] == "saved":
                start = max(start, n)
            elif rank not in next_step:
                joins = story.job.elastic and bool(next_step)  # a newcomer: where the others are
                if not joins and not (saved[0] <= n <= saved[1]):
                    yield f"attempt {attempt} began with step {n}, not in {saved}: {line}"
                    return
                next_step[rank] = n + 1
            else:
                # A gang that has lost a rank, or the batch of which did not fit, repeats a step;
                # what goes on from checkpoints of its own, those since the last one.
                least = next_step[rank] - story.job.elastic
                if story.job.own:
                    least = min(least, start)
                if not least <= n <= next_step[rank]:
                    yield f"after step {next_step[rank] - 1} came step {n}: {line}"
                    return
                next_step[rank] = n + 1


def _weights_as_undisturbed(found: Found, story: Story) -> Iterator[str]:
    """The weights before each step are those of a training that nobody has disturbed."""
    if not story.job.draw:
        return
    adapts = story.job.kind == "adaptive"
    of_attempt: dict[tuple[int, int], int] = {}
    for line in story.lines:
        if "weights" not in line or line["what"] == "rehearse":
            continue
        step = line["n"] if line["what"] == "step" else line["steps"]
        if adapts:  # its batches are chosen: all ranks have the same, at least
            right = of_attempt.setdefault((line["attempt"], step), line["weights"])
        else:
            right = found.reference[story.job.draw][step]
        if line["weights"] != right:
            yield f"before step {step} its weights are not those of {right}: {line}"
            return


def _ended_as_its_program(found: Found, story: Story) -> Iterator[str]:
    """How the job ended is how its program ended, or what was asked or done to it."""
    attempt = story.show["attempt"]
    ends = story.of(attempt, "end")
    codes = {line["n"] for line in ends}
    job, outcome = story.job, JobState[story.show["state"]]
    killed = story.killed(attempt, "worker", "process", "other")
    asked = {each.do for each in found.asked if each.name == story.name and not each.refusal}
    stopped = any(isinstance(event, TrialStopped) for event in story.events)
    if outcome == JobState.SUCCEEDED:
        least = 1 if job.elastic else job.gpus
        if len({line["rank"] for line in ends}) < least:
            yield f"it SUCCEEDED, and not all ranks came to their ends: {ends}"
        if codes != {0}:
            yield f"it SUCCEEDED, and its program ended with {codes or 'nothing'}"
        if story.show["exit_code"] != 0:
            yield f"it SUCCEEDED with exit code {story.show['exit_code']}"
        tells = job.draw and job.kind != "sessions"  # of which nobody speaks for all
        if tells and story.show["progress"].get("step") != job.steps:
            yield f"it SUCCEEDED after {job.steps} steps and shows {story.show['progress']}"
    elif outcome == JobState.FAILED:
        right = {code for code in codes if code}
        if job.code is not None and job.code > 128 and -(job.code - 128) in codes:
            right = {job.code}
        if killed:  # of a gang, or below a shell, another process may be the first to fail of it
            right |= {-9, 1} if job.gpus != 1 else {-9}
            right |= {1, 137} if ";" in job.program or "bash" in job.program else set()
        code, message = story.show["exit_code"], story.show["message"]
        if code not in right:
            yield (
                f"it FAILED with {code} ({message}); its program ended with "
                f"{codes or 'nothing'}, and {killed or 'nothing'} was killed"
            )
    elif outcome == JobState.CANCELLED:
        if "cancel" not in asked and not stopped and not story.trial:
            yield "it was CANCELLED, and nobody had asked for that"
    elif outcome == JobState.TIMEOUT:
        limit_s = float(job.fields.get("time_limit", "inf s").rstrip("s "))
        if story.show["run_s"] < limit_s - CLOCKS_S:
            yield f"it ended as TIMEOUT after {story.show['run_s']} s of {limit_s}"
    elif outcome == JobState.LOST:
        count = 1
        for event in story.events:
            if isinstance(event, AttemptLost) and not event.error.startswith(UNCOUNTED):
                count = 1 if event.got_on else count + 1
        if count < MAX_LOST_ATTEMPTS:
            yield f"it is LOST after {count} losses"
        if not story.killed(attempt):
            yield f"it is LOST, and nothing was killed of attempt {attempt}"
    else:
        yield f"it ended as {outcome.name}"


def _losses_have_causes(found: Found, story: Story) -> Iterator[str]:
    """An attempt is lost only if processes of it were killed, or the cluster was taken down."""
    down = any(asked.do == "down" for asked in found.asked)
    for event in story.events:
        if not isinstance(event, AttemptLost):
            continue
        if event.error == SHUT_DOWN:
            caused = down
        elif event.error.startswith(NEVER_STARTED):
            caused = bool(found.kills)
        else:
            launched = any(
                isinstance(each, JobLaunched) and each.attempt == event.attempt
                for each in story.events
            )  # else the command may not have reached the node, and it is lost by being stopped
            caused = bool(story.killed(event.attempt))
            caused |= not launched and not story.of(event.attempt)
        if not caused:
            yield f"{event}, and nothing was killed of it"


def _no_end_is_undone(found: Found, story: Story) -> Iterator[str]:
    """An attempt whose program came to its end is not followed by another without a cause."""
    attempts = sorted({line["attempt"] for line in story.lines})
    lost = {event.attempt: event for event in story.events if isinstance(event, AttemptLost)}
    for attempt in attempts[:-1]:
        if attempt not in lost:
            yield f"attempt {attempt} was followed by another, and nobody knows why"
            continue
        in_vain = story.of(attempt, "end") and not story.killed(attempt)
        if in_vain and lost[attempt].error != SHUT_DOWN:
            yield f"attempt {attempt} came to its end and was lost: {lost[attempt]}"


def _output_is_whole(found: Found, story: Story) -> Iterator[str]:
    """The log has every line that its program printed, once and in order."""
    if story.name not in found.outputs:
        return
    steps = [line["n"] for line in story.of(story.show["attempt"], "step")]
    count = int(story.job.program.partition("--talk ")[2].split(";")[0])
    right = [f"step {step} line {line}:" for step in steps for line in range(count)]
    told = found.outputs[story.name].splitlines()
    heads = [line.partition(":")[0] + ":" for line in told]
    if heads != right:
        wrong = next((pair for pair in zip(heads, right, strict=False) if pair[0] != pair[1]), "")
        yield f"its log has {len(heads)} lines of {len(right)}; the first that differs: {wrong}"


# What a job's node is told and tells. Its user may ask for something before an end is known.
TURNS = (
    AttemptLost,
    CommandSent,
    JobFinished,
    JobLaunched,
    JobResumed,
    JobSuspended,
)
SPAN_ENDS = (JobSuspended, JobFinished, AttemptLost, StopRequested)
OF_A_JOB = (
    _one_at_a_time,
    _started_by_command,
    _still_when_suspended,
    _run_time_is_that_of_its_processes,
    _held_for_its_user,
    _in_order,
    _steps_follow,
    _weights_as_undisturbed,
    _ended_as_its_program,
    _losses_have_causes,
    _no_end_is_undone,
    _output_is_whole,
)


def starts(event: Any) -> bool:
    """Whether it is a command by which a job's processes run from then on."""
    return isinstance(event, CommandSent) and isinstance(event.command, Launch | Resume | Migrate)


def _row_of(event: Any) -> int | None:
    command = getattr(event, "command", None)
    row = getattr(event, "row", None) if command is None else command.row
    return row
