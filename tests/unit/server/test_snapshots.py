"""Snapshots over HTTP: sent once, held against their digest, and kept as long as a job has them."""

import asyncio
import gzip
import os
import random
from types import SimpleNamespace

import httpx
import pytest

from rota.client.client import Client
from rota.client.snapshot import pack
from rota.errors import InputError, JobFileError, NotFoundError, StoreFullError
from rota.folder import Folder
from rota.live.controller.snapshots import ASKED_FOR_S, Snapshots
from rota.model.job import JobState
from rota.model.snapshot import MAX_BYTES, MAX_PACKED_BYTES
from support.served import controller_without_agents, served
from support.small_disk import fill, small_disk

SWEEP = {"space": {"a": {"int": [1, 2]}}, "algorithm": "grid"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("snapshots") / "home").create()


@pytest.fixture(scope="module")
def cluster(folder):
    with served(folder, controller_without_agents(folder)) as it:
        yield it


@pytest.fixture
def client(cluster, folder):
    with Client(folder=folder) as it:
        yield it


@pytest.fixture
def work(tmp_path):
    """A folder whose content no other test has."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "name").write_text(str(tmp_path))
    return place


@pytest.fixture
def sent(client):
    """The calls that the client makes, as ``METHOD /path``."""
    calls, call = [], client._call

    def record(method, path, **more):
        calls.append(f"{method} {path.partition('/snapshots')[0] or '/snapshots'}")
        return call(method, path, **more)

    client._call = record
    return calls


def job(work, **more):
    return {"run": "cat name", "workdir": str(work), "snapshot": True} | more


def put(cluster, folder, digest, content):
    headers = {"Authorization": f"Bearer {folder.token.read_text().strip()}"}
    url = f"{cluster.url}/api/v1/snapshots/{digest}"
    return httpx.put(url, content=content, headers=headers, trust_env=False)


def test_what_is_there_is_not_sent_again(client, folder, work, sent):
    first, second = client.submit(job(work)), client.submit(job(work, name="other"))
    assert sent == [
        "GET /snapshots",
        "PUT /snapshots",
        "POST /jobs",
        "GET /snapshots",
        "POST /jobs",
    ]
    digest = pack(str(work)).digest
    assert [client.job(each["id"])["snapshot"] for each in (first, second)] == [digest] * 2
    assert client.job(first["id"])["workdir"] == str(work)
    assert (folder.snapshots / digest).stat().st_mode & 0o777 == 0o600
    assert folder.snapshots.stat().st_mode & 0o777 == 0o700


def test_a_job_that_is_only_looked_at_sends_nothing(client, folder, work, sent):
    client.check(job(work))
    client.plan(job(work))
    client.check_sweep(job(work, run="echo {a}", sweep=SWEEP))
    assert sent == ["POST /jobs", "POST /plans", "POST /sweeps"]
    assert not (folder.snapshots / pack(str(work)).digest).exists()


def test_the_trials_of_a_search_share_one(client, cluster, work, sent):
    name = client.submit_sweep(job(work, run="echo {a}", sweep=SWEEP))["name"]
    trials = [client.submit_trial(name, {"a": a}) for a in (1, 2)]
    assert sent[:3] == ["GET /snapshots", "PUT /snapshots", "POST /sweeps"]
    told = {client.job(each["id"])["snapshot"] for each in trials}
    assert told == {pack(str(work)).digest}


def test_a_job_whose_snapshot_is_not_there_is_refused(client, cluster, folder, work):
    headers = {"Authorization": f"Bearer {folder.token.read_text().strip()}"}
    with httpx.Client(base_url=cluster.url, headers=headers, trust_env=False) as http:
        for path, more in (("/jobs", {}), ("/sweeps", {"sweep": SWEEP, "run": "echo {a}"})):
            answer = http.post(f"/api/v1{path}", json=job(work, **more))
            assert answer.status_code == 422
            assert "`rota submit` and the Python client pack workdir" in answer.json()["detail"]
            with pytest.raises(JobFileError, match="it is not here: PUT it to"):
                (client.submit_sweep if more else client.submit)(
                    job(work, snapshot="0" * 64, **more)
                )
    with pytest.raises(NotFoundError, match="there is no snapshot '0000"):
        client._call("GET", f"/snapshots/{'0' * 64}")
    with pytest.raises(InputError, match=r"workdir: 'here'.*absolute"):
        client.submit(job("here"))


def test_what_is_not_what_it_should_be_leaves_nothing(cluster, folder, work):
    packed = pack(str(work))
    before = set(folder.snapshots.iterdir()) if folder.snapshots.exists() else set()
    noise = random.Random(1).randbytes(MAX_PACKED_BYTES)
    for digest, content, words in (
        ("0" * 64, packed.archive, f"has the digest {packed.digest}"),
        (packed.digest, packed.archive[:-1], "ends too early"),
        (packed.digest, b"", "ends too early"),
        (packed.digest, b"x" * 100_000, "not compressed by gzip"),
        (packed.digest, gzip.compress(bytes(MAX_BYTES + 1)), "more than 64 MiB"),
        (packed.digest, gzip.compress(noise, 0), "it has more than"),
        ("..", packed.archive, None),
        ("A" * 64, packed.archive, "is no digest; send 64 of 0-9 a-f"),
    ):
        answer = put(cluster, folder, digest, content)
        if words is not None:
            assert (answer.status_code, words in answer.text) == (422, True), answer.text
        assert not answer.is_success
    assert set(folder.snapshots.iterdir()) == before
    assert put(cluster, folder, packed.digest, packed.archive).status_code == 201
    assert put(cluster, folder, packed.digest, packed.archive).status_code == 200


def test_a_sender_who_goes_away_leaves_nothing(cluster, folder, work):
    packed = pack(str(work))

    def content():
        yield packed.archive[:10]
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        put(cluster, folder, packed.digest, content())
    assert put(cluster, folder, packed.digest, packed.archive).status_code == 201
    names = [each.name for each in folder.snapshots.iterdir()]
    assert [name for name in names if name.startswith(packed.digest)] == [packed.digest]


def test_agents_fetch_it_with_their_token_alone(cluster, folder, client, work):
    client.submit(job(work))
    packed = pack(str(work))
    url = f"{cluster.url}/agent/v1/snapshots/{packed.digest}"

    def get(token, url=url):
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        return httpx.get(url, headers=headers, trust_env=False)

    assert get(folder.agent_token).content == packed.archive
    assert get(folder.token).status_code == 401
    assert get(folder.agent_token, url.replace(packed.digest, "0" * 64)).status_code == 404


def test_a_full_disk_refuses_it_in_one_line(tmp_path):
    folder = Folder(tmp_path / "home").create()
    big = tmp_path / "big"
    big.mkdir()
    (big / "noise").write_bytes(random.Random(2).randbytes(3 << 20))
    with (
        small_disk(folder.snapshots, 4 << 20),
        served(folder, controller_without_agents(folder)),
        Client(folder=folder) as client,
    ):
        filler = fill(folder.snapshots, 1 << 20)
        with pytest.raises(StoreFullError) as refused:
            client.submit(job(big))
        assert str(refused.value).startswith(f"snapshot: there is no room for it in {folder.path}")
        assert list(folder.snapshots.iterdir()) == [filler]
        filler.unlink()
        client.submit(job(big))


def test_it_goes_with_the_last_job_whose_files_are_kept(tmp_path):
    """And not within an hour after somebody has asked for it."""
    folder = Folder(tmp_path / "home").create()
    digests = [str(number) * 64 for number in range(4)]
    running, ended, cleaned, searched = digests
    jobs = [(running, JobState.RUNNING), (ended, JobState.FAILED), (cleaned, JobState.FAILED)]
    state = SimpleNamespace(
        spec=[SimpleNamespace(program=SimpleNamespace(snapshot=digest)) for digest, _ in jobs],
        state=[each for _, each in jobs],
        cleaned={2: object()},
    )
    requests = [{"snapshot": searched}, {}]
    searches = SimpleNamespace(open_requests=lambda: requests)
    record = SimpleNamespace(state=state, searches=searches)
    snapshots = Snapshots(record, None, folder.snapshots)
    snapshots.remove_needless()
    folder.snapshots.mkdir()

    def left():
        snapshots.remove_needless()
        return sorted(each.name[0] for each in folder.snapshots.iterdir())

    def age(name):
        old_s = (folder.snapshots / name).stat().st_mtime - ASKED_FOR_S - 1
        os.utime(folder.snapshots / name, (old_s, old_s))

    for name in (*digests, "9.part"):
        (folder.snapshots / name).touch()
    assert left() == ["0", "1", "2", "3", "9"]
    for name in (*digests, "9.part"):
        age(name)
    snapshots.find(cleaned)
    assert left() == ["0", "1", "2", "3"]
    age(cleaned)
    requests.clear()
    state.cleaned[1] = object()
    assert left() == ["0"]


def test_a_job_that_is_cleaned_takes_its_snapshot_along(client, folder, work):
    first = client.submit({"run": "true", "workdir": "/"})["id"]
    waiting = client.submit(job(work, depends_on=[first]))["id"]
    file = folder.snapshots / pack(str(work)).digest
    os.utime(file, (1, 1))
    client.cancel(waiting)
    assert client.wait(waiting, timeout_s=60)["state"] == "CANCELLED"
    assert file.exists()
    client.clean(waiting)
    assert not file.exists()


def test_what_is_needless_goes_in_time_though_nobody_cleans_up(tmp_path, monkeypatch):
    async def scenario():
        task = asyncio.create_task(snapshots.run())
        await asyncio.sleep(0)
        assert [each.name for each in folder.iterdir()] == ["new"]
        os.utime(folder / "new", (1, 1))
        async with asyncio.timeout(60):
            while list(folder.iterdir()):
                await asyncio.sleep(0.001)
        task.cancel()

    folder = tmp_path / "snapshots"
    folder.mkdir()
    for name in ("old", "new"):
        (folder / name).touch()
    os.utime(folder / "old", (1, 1))
    nothing = SimpleNamespace(spec=[], state=[], cleaned={})
    searches = SimpleNamespace(open_requests=list)
    snapshots = Snapshots(SimpleNamespace(state=nothing, searches=searches), None, folder)
    monkeypatch.setattr(asyncio, "sleep", hasty(asyncio.sleep))
    asyncio.run(scenario())


def hasty(sleep):
    """A sleep that takes an hour in a moment."""
    return lambda seconds: sleep(min(seconds, 0.001))
