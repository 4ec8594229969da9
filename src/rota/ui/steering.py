"""The buttons by which a page suspends, resumes and cancels a job."""

from collections.abc import Callable, Mapping
from typing import Any

from rota.ui.frame import Frame
from rota.ui.parts import tag
from rota.ui.text import plain

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "LOST")
VERBS = ("Suspend", "Resume", "Cancel")


def steering_buttons() -> dict[str, Any]:
    """The buttons by their verbs, in the present element."""
    return {
        verb: tag(
            "button",
            verb,
            classes="act danger" if verb == "Cancel" else "act",
            type="button",
        )
        for verb in VERBS
    }


def draw_steering(
    frame: Frame, buttons: Mapping[str, Any], job_id: str | None, job: Mapping[str, Any] | None
) -> None:
    """Enable the buttons that make sense for a job as it is."""
    active = job is not None and job["state"] not in ENDED
    held = job is not None and "HELD" in (job["state"], job["reason"].partition("_")[0])
    fits = {"Suspend": active and not held, "Resume": active and held, "Cancel": active}
    for verb, button in buttons.items():
        disabled = not (fits[verb] and frame.may(verb.lower()))
        label = f"{verb} job {job_id}" if job_id else f"{verb}: choose a job first"
        command = f"rota {verb.lower()} {job_id or 'JOB'}"
        new = {"disabled": disabled, "aria-label": label, "data-command": command}
        if any(button._props.get(key) != value for key, value in new.items()):
            button._props.update(new)
            button.update()


def steer(frame: Frame, buttons: Mapping[str, Any], chosen: Callable[[], Any]) -> None:
    """Make the buttons suspend, resume and cancel the job that ``chosen`` returns the id of."""

    async def suspend() -> None:
        job = chosen()
        await frame.act(f"Job {job} gives its GPUs up.", lambda client: client.suspend(job))

    async def resume() -> None:
        job = chosen()
        await frame.act(f"Job {job} may go on.", lambda client: client.resume(job))

    def cancel() -> None:
        job = chosen()
        name = plain(frame.reader.jobs.get(job, {}).get("name", ""), 60)

        async def now() -> None:
            await frame.act(f"Job {job} is cancelled.", lambda client: client.cancel(job))

        frame.confirm(f"Cancel job {job} ({name})? It can't be resumed.", "Cancel the job", now)

    buttons["Suspend"].on("click", suspend)
    buttons["Resume"].on("click", resume)
    buttons["Cancel"].on("click", cancel)
