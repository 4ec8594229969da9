"""A sweep in words: facts about it, and a table of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rota.report.duration import HOUR_S, written
from rota.report.sweep import (
    FAILED,
    STOPPED,
    SweepStory,
    TrialStory,
    counts,
    params_text,
    value_text,
)

BEFORE = ("TRIAL", "STATE", "VALUE", "REPORTS")
AFTER = ("GPU TIME", "WHY")


def facts(story: SweepStory) -> Iterator[tuple[str, str]]:
    """(name, sentence) of each fact about a sweep, the most important first."""
    yield "state", _state(story)
    if story.best is not None and story.best.best is not None:
        best = story.best.best
        after = f"after {written(best.at_s)}"
        value = f"{story.metric} {value_text(best.value)}"
        yield "best", f"{value} by trial {story.best.number}, at step {best.step:g}, {after}"
        yield "with", params_text(story.best.params) or "no parameters"
    elif story.metric:
        yield "best", f"no trial has reported {story.metric} yet"
    goal = "maximize" if story.maximize else "minimize"
    target = "" if story.target is None else f" to {value_text(story.target)}"
    if not story.is_array:
        yield "goal", f"{goal} {story.metric}{target}" if story.metric else "each trial's success"
    search = story.rest["request"]["sweep"]
    most = search.get("max_trials")
    standings = ", ".join(f"{count} {name}" for name, count in counts(story).items())
    of = f" of {most}" if most is not None else ""
    what = "tasks" if story.is_array else "trials"
    yield what, f"{len(story.trials)}{of}" + (f": {standings}" if standings else "")
    hours = search.get("gpu_hours")
    budget = "" if hours is None else f", of a budget of {written(hours * HOUR_S)}"
    gpus = story.rest["gpus"]
    size = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    yield "used", f"{written(story.rest['gpu_s'])} of GPU time{budget}; the cluster has {size}"
    if not story.is_array:
        yield "search", _search(story)
    if story.rest.get("driver_error"):
        yield "trouble", story.rest["driver_error"]


def _state(story: SweepStory) -> str:
    told = story.rest
    if told["finish_s"] is None:
        return f"{told['state']} for {written(story.end_s)}, of user {told['user'] or '-'}"
    why = f": {told['message']}" if told["message"] else ""
    outcome = f" as {told['outcome']}" if told["outcome"] else ""
    ended = f"{told['state']}{outcome} after {written(story.end_s)}{why}"
    return f"{ended}; of user {told['user'] or '-'}"


def _search(story: SweepStory) -> str:
    """The proposer of trials, and the rule by which they are stopped early."""
    search = story.rest["request"]["sweep"]
    algorithm, rungs = search["algorithm"], search.get("rungs", "off")
    name = algorithm["name"]
    if name == "manual":
        return "by a program of the user's, which may stop trials early"
    seed = "" if name == "grid" else f" with seed {algorithm.get('seed', 0)}"
    if rungs == "off":
        return f"{name}{seed}; no trial is stopped early"
    return (
        f"{name}{seed}; at reports {_first_rungs(rungs['first'], rungs['eta'])}, ... "
        f"the best 1/{rungs['eta']} go on"
    )


def _first_rungs(first: int, eta: int) -> str:
    return ", ".join(str(first * eta**power) for power in range(3))


def _state_word(trial: TrialStory) -> str:
    """The state of the trial's job, or its meaning for the search."""
    if trial.standing == STOPPED:
        return "STOPPED"
    told = trial.standing == FAILED and trial.state in ("SUCCEEDED", "CANCELLED")
    return "FAILED" if told else trial.state


def trials_table(
    story: SweepStory, trials: Sequence[TrialStory]
) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of these trials: a column for each parameter between BEFORE and AFTER."""
    names = story.parameters
    rows = [
        [
            str(trial.number),
            _state_word(trial),
            value_text(trial.best and trial.best.value),
            str(len(trial.curve)),
            *(value_text(trial.params.get(name)) for name in names),
            written(trial.gpu_s),
            trial.why or "-",
        ]
        for trial in trials
    ]
    first = "TASK" if story.is_array else BEFORE[0]
    return [first, *BEFORE[1:], *names, *AFTER], rows
