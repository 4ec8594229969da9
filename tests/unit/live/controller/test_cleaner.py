"""Who may have which jobs cleaned up, and what is known of it afterwards."""

import asyncio

import pytest

from rota.client.client import Client
from rota.errors import JobFileError, NotFoundError, NotOwnerError, TransitionError
from rota.folder import Folder
from rota.live.controller.job_api import Entry
from rota.live.wire.questions import CheckpointFolder
from rota.model.events import JobFinished
from rota.model.job import JobState
from rota.request.jobfile import JobRequest
from support.served import StandInController, controller_without_agents, served

JOB = JobRequest("train", "python train.py", "/tmp")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN", "ROTA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Folder(tmp_path / "home").create()


@pytest.fixture
def cluster(folder):
    with served(folder, StandInController(folder, num_gpus=8)) as it:
        yield it


@pytest.fixture
def client(cluster, folder):
    with Client(folder=folder) as it:
        yield it


def run(client, cluster, request=JOB, outcome=JobState.SUCCEEDED):
    """A job that has printed something, saved a checkpoint, and ended. Returns its id."""
    job = client.submit(request)
    row = cluster.controller.row(job["id"])
    cluster.do(cluster.controller.turn)
    cluster.write_log(row, b"hello\n")
    checkpoints = cluster.folder.checkpoints(job["id"])
    checkpoints.mkdir(parents=True)
    (checkpoints / "weights").write_bytes(b"w" * 10_000)
    if outcome is not None:
        cluster.apply(JobFinished(cluster.controller.now_s(), row, outcome, 0))
    return job["id"]


def test_a_job_is_cleaned_up_and_its_story_says_so(client, cluster):
    job_id = run(client, cluster)
    told = client.clean(job_id, dry_run=True)
    assert told["num_bytes"] >= 10_000 and told["cleaned"] is None
    assert "".join(client.logs(job_id)) == "hello\n"
    assert client.clean(job_id)["num_bytes"] == told["num_bytes"]
    assert not cluster.folder.checkpoints(job_id).exists()
    with pytest.raises(
        NotFoundError, match=rf"job {job_id} .* removed by {client.user} with .* 20"
    ):
        list(client.logs(job_id))
    job = client.job(job_id)
    assert job["cleaned"] == "all"
    assert job["story"][-1]["line"] == f"its output and checkpoints were removed by {client.user}"
    again = client.clean(job_id)
    assert again["num_bytes"] == 0
    assert client.job(job_id)["story"] == job["story"], "told once"


def test_checkpoints_can_be_kept_and_removed_later(client, cluster):
    job_id = run(client, cluster)
    assert client.clean(job_id, keep_checkpoints=True)["cleaned"] == "output"
    assert cluster.folder.checkpoints(job_id).exists()
    assert client.clean(job_id)["cleaned"] == "all"
    assert client.clean(job_id, keep_checkpoints=True)["cleaned"] == "all"


def test_a_job_that_never_started_has_left_nothing(client):
    job_id = client.submit(JOB)["id"]
    client.cancel(job_id)
    assert client.clean(job_id)["num_bytes"] == 0


def test_a_job_that_has_not_ended_stays(client, cluster):
    job_id = run(client, cluster, outcome=None)
    with pytest.raises(TransitionError, match=f"is RUNNING, .*`rota cancel {job_id}`"):
        client.clean(job_id)
    assert "".join(client.logs(job_id)) == "hello\n"


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("how", ["resume_from", "depends_on"])
def test_checkpoints_that_an_active_job_may_need_stay(client, cluster, how, dry_run):
    job_id = run(client, cluster)
    needs = {"resume_from": job_id, "depends_on": [{"job": job_id}]}[how]
    other = client.submit({"run": "x", "workdir": "/", "name": "next", how: needs})["id"]
    said = rf"named in resume_from or depends_on of job {other} \(next\).*--keep-checkpoints"
    with pytest.raises(TransitionError, match=said):
        client.clean(job_id, dry_run=dry_run)
    assert client.clean(job_id, keep_checkpoints=True)["num_bytes"] > 0
    client.cancel(other)
    assert client.clean(job_id)["num_bytes"] >= 10_000


def test_only_its_user_and_who_runs_the_cluster_clean_up_after_a_job(client, cluster):
    job_id = run(client, cluster)
    cluster.controller.cleaner.owner = "root-of-all"
    mine = client.user
    client._connection.user = "mallory"
    with pytest.raises(NotOwnerError, match=f"is of {mine}: only {mine} can .* or root-of-all"):
        client.clean(job_id)
    client._connection.user = "root-of-all"
    assert client.clean(job_id)["num_bytes"] > 0


def test_no_job_begins_with_checkpoints_that_are_being_removed(folder):
    controller = controller_without_agents(folder)
    tried = []

    async def there(row):
        return CheckpointFolder("folder", True)

    async def story():
        jobs, files = controller.jobs, controller.files
        row = await jobs.submit(JOB, user="me", key=None, body_hash="")
        await jobs.cancel(row)
        again = JOB._replace(resume_from=controller.state.spec[row].job_id)
        files.checkpoints = there

        async def remove(row, **how):
            with pytest.raises(JobFileError, match="is being cleaned up"):
                await jobs.resumed_from(again)
            tried.append(row)
            return 0

        assert await jobs.resumed_from(again) == "1"
        files.clean = remove
        await controller.cleaner.clean(row, "me")
        assert await jobs.resumed_from(again) == "1"

    asyncio.run(story())
    controller.record.store.close()
    assert tried == [0]


def test_a_job_that_is_submitted_at_the_same_moment_keeps_what_it_needs(folder):
    controller = controller_without_agents(folder)

    async def story():
        row = await controller.jobs.submit(JOB, user="me", key=None, body_hash="")
        await controller.jobs.cancel(row)
        next_job = JOB._replace(resume_from="1")
        entering = controller.jobs.enter(Entry(next_job, "me", None, ""))
        with pytest.raises(TransitionError, match="which may need its checkpoints"):
            await controller.cleaner.clean(row, "me")
        await entering

    asyncio.run(story())
    controller.record.store.close()


def test_a_cleaning_is_known_to_the_next_controller(folder):
    controller = controller_without_agents(folder)

    async def story():
        row = await controller.jobs.submit(JOB, user="me", key=None, body_hash="")
        await controller.jobs.cancel(row)
        await controller.cleaner.clean(row, "me", keeps_checkpoints=True)

    asyncio.run(story())
    controller.record.store.close()
    controller = controller_without_agents(folder)
    told = controller.state.cleaned[0]
    assert (told.user, told.keeps_checkpoints) == ("me", True)
    with pytest.raises(NotFoundError, match="removed by me with `rota clean`"):
        asyncio.run(controller.files.output(0, 1, limit=100))
    controller.record.store.close()
