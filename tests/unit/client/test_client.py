"""The client against a real server: finding it, its errors, restarts, logs that join up."""

import asyncio
import http.server
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from rota.client import client as client_module
from rota.client import stream
from rota.client.client import Client, who_is_left
from rota.client.outputs import MOST_LINE_CHARS
from rota.errors import (
    AuthError,
    InputError,
    JobFileError,
    NeverFitsError,
    NotFoundError,
    ServerError,
    TransitionError,
    UnreachableError,
)
from rota.model.events import AttemptLost, JobFinished
from rota.model.job import JobState
from rota.request.jobfile import JobRequest
from rota.server import streams
from support.served import StandInController, controller_without_agents, served

JOB = JobRequest("train", "python train.py", "/tmp")


def finish(cluster, row=0, outcome=JobState.SUCCEEDED, code=0):
    cluster.apply(JobFinished(cluster.controller.now_s(), row, outcome, code))


class Ahead(StandInController):
    def now_s(self):
        return time.time() + 3600.0


def wait_and_hear(client):
    """Wait for job 2, and be told of nothing but its events."""
    heard = []
    ended = client.wait("2", timeout_s=60.0, told=heard.append, after=client.cursor)
    assert {each.job_id for each in heard} == {"2"}
    return ended


def test_the_time_of_the_cluster_is_known_from_its_answers(folder):
    with served(folder, Ahead(folder)), Client(folder=folder) as client:
        assert client.ahead_s == 0.0
        client.jobs()
        assert 3540 < client.ahead_s < 3660
        assert client.now_s() > time.time() + 3540


class TestFinding:
    def test_by_the_folder(self, cluster, folder):
        with Client(folder=folder.path) as client:
            assert client.jobs() == []

    def test_by_the_environment(self, cluster, folder, monkeypatch, tmp_path):
        monkeypatch.setenv("ROTA_HOME", str(tmp_path / "empty"))
        monkeypatch.setenv("ROTA_SERVER", cluster.url + "/")
        monkeypatch.setenv("ROTA_TOKEN", folder.token.read_text())
        with Client() as client:
            assert client.jobs() == []

    def test_a_proxy_of_the_environment_is_not_asked(self, client, monkeypatch):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        assert client.jobs() == []

    def test_without_a_controller_it_says_how_to_start_one(self, tmp_path):
        with Client(folder=tmp_path) as client, pytest.raises(UnreachableError, match="rota up"):
            client.jobs()

    def test_an_address_that_is_set_is_named_instead(self, monkeypatch):
        monkeypatch.setenv("ROTA_TOKEN", "x")
        monkeypatch.setenv("ROTA_SERVER", "http://127.0.0.1:1")
        with Client() as client, pytest.raises(UnreachableError, match="is ROTA_SERVER right"):
            client._call("GET", "/jobs", patience_s=0.0)

    def test_an_address_of_http_does_not_speak_https(self, cluster, monkeypatch):
        monkeypatch.setenv("ROTA_TOKEN", "x")
        monkeypatch.setenv("ROTA_SERVER", cluster.url.replace("http:", "https:"))
        with (
            Client() as client,
            pytest.raises(UnreachableError, match=f"ROTA_SERVER={cluster.url}"),
        ):
            client._call("GET", "/jobs", patience_s=0.0)

    @pytest.mark.parametrize(
        ("url", "fix"),
        [
            ("localhost:8787", "write http://localhost:8787"),
            ("gpu0.lab:7800", "write https://gpu0.lab:7800"),
            ("gpu0", "write https://gpu0"),
            ("ftp://gpu0", "neither http:// nor https://, as an address does"),
        ],
    )
    def test_an_address_without_a_scheme_is_refused(self, monkeypatch, url, fix):
        monkeypatch.setenv("ROTA_SERVER", url)
        with pytest.raises(InputError, match=f"ROTA_SERVER: '{url}' begins with .*{fix}$"):
            Client()

    def test_a_folder_of_somebody_else_is_told(self, folder, monkeypatch):
        def refuse(*_: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_text", refuse)
        with Client(folder=folder, token="x") as client, pytest.raises(UnreachableError) as error:
            client._call("GET", "/jobs", patience_s=0.0)
        assert "its owner can tell you what to set ROTA_SERVER" in str(error.value)

    def test_a_word_that_is_out_of_date_is_unreachable(self, folder, monkeypatch):
        monkeypatch.setattr(client_module, "PATIENCE_S", 0.0)
        with served(folder) as it:
            word = folder.server.read_text()
        folder.server.write_text(word)
        with Client(folder=folder) as client, pytest.raises(UnreachableError, match="rota up") as e:
            client._call("GET", "/jobs", patience_s=0.0)
        assert it.url in str(e.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
    def test_a_damaged_word_is_unreachable(self, folder, text):
        folder.server.write_text(text)
        with Client(folder=folder, token="x") as client, pytest.raises(UnreachableError):
            client.jobs()

    @pytest.mark.parametrize("token", ["wrong", "ünicode", "new\nline"])
    def test_a_wrong_token_is_an_auth_error(self, cluster, folder, token):
        with Client(folder=folder, token=token) as client, pytest.raises(AuthError):
            client.jobs()

    def test_a_token_that_cannot_be_read_is_an_auth_error(self, cluster, folder):
        folder.token.unlink()
        with Client(folder=folder) as client, pytest.raises(AuthError, match="ROTA_HOME"):
            client.jobs()


async def real_controller(folder):
    return controller_without_agents(folder)


class TestCalls:
    def test_a_job_from_submission_to_its_end(self, client, cluster):
        job = client.submit(JOB)
        assert (job["id"], job["name"], job["state"]) == ("1", "train", "PENDING")
        assert client.check(JOB)["job"] == JOB.to_fields()
        cluster.do(cluster.controller.turn)
        assert client.job("@last")["state"] == "RUNNING"
        assert [job["id"] for job in client.jobs(states=["RUNNING"])] == ["1"]
        finish(cluster)
        assert client.wait("train")["state"] == "SUCCEEDED"
        assert client.jobs(everything=True)[0]["exit_code"] == 0
        assert [event["line"] for event in client.story("1")] == [
            "submitted",
            "started",
            "succeeded",
        ]

    def test_steering(self, client):
        client.submit(JOB)
        assert client.suspend("1")["state"] == "HELD"
        assert client.resume("1")["state"] == "PENDING"
        assert client.cancel("1")["state"] == "CANCELLED"
        assert client.explain("1")["sentence"].startswith("it ended as CANCELLED")

    def test_the_cluster(self, client):
        assert client.nodes()[0]["name"] == "here"
        assert client.policies()[0]["name"] == "fifo"

    def test_the_same_key_is_the_same_job(self, client):
        assert client.submit(JOB, key="k")["id"] == client.submit(JOB, key="k")["id"]
        assert client.submit(JOB)["id"] == "2"
        with pytest.raises(InputError, match="another job"):
            client.submit(JOB._replace(priority=1), key="k")

    def test_names_that_nothing_can_have_are_refused_before_a_request(self, client, monkeypatch):
        monkeypatch.setattr(client, "_call", lambda *args, **kw: pytest.fail("it was asked for"))
        of_jobs = (
            *(client.job, client.explain, client.story, client.wait, client.log_piece),
            *(client.cancel, client.suspend, client.resume, client.clean),
        )
        never = ["", ".", "..", "a/b", "../../healthz"]
        for name in (*never, "%2e%2e", "x" * 400, "1;x=1", "a\n", " 1"):
            for call in of_jobs:
                with pytest.raises(NotFoundError, match="; write an id, a job's name or") as error:
                    call(name)
                assert str(error.value).startswith(f"there is no job {name!r:.80}; ")
            with pytest.raises(NotFoundError, match="; write a sweep's name or @last"):
                client.sweep(name)
        for name in never:
            for call in (client.cordon, client.drain, client.enable):
                with pytest.raises(NotFoundError, match="; write a node's name"):
                    call(name)

    def test_errors_come_back_as_what_they_were(self, client):
        with pytest.raises(NotFoundError, match="'7'"):
            client.job("7")
        with pytest.raises(NeverFitsError, match="NEVER_FITS"):
            client.submit(JOB._replace(num_gpus=99))
        with pytest.raises(JobFileError, match="did you mean priority"):
            client.submit({"run": "x", "workdir": "/", "prority": 1})
        client.submit(JOB)
        client.cancel("1")
        with pytest.raises(TransitionError, match=r"ended as CANCELLED at .*; `rota show 1`"):
            client.suspend("1")

    def test_waiting_may_take_too_long(self, client):
        client.submit(JOB)
        with pytest.raises(TimeoutError, match="PENDING"):
            client.wait("1", timeout_s=0.0)
        with pytest.raises(TimeoutError, match="PENDING"):
            asyncio.run(client.wait_async("1", timeout_s=0.0))

    @pytest.mark.parametrize(
        "wait",
        [
            lambda client: client.wait("2", timeout_s=60.0),
            wait_and_hear,
            lambda client: asyncio.run(client.wait_async("2", timeout_s=60.0)),
        ],
    )
    def test_a_wait_ends_as_the_job_does_and_asks_for_it_no_oftener(
        self, folder, monkeypatch, wait
    ):
        with (
            served(folder, asyncio.run(real_controller(folder))),
            Client(folder=folder) as client,
        ):
            client.submit(JOB)
            after = [{"job": "1", "when": "succeeded"}]
            client.submit({"run": "true", "workdir": "/tmp", "depends_on": after})
            asked, call = [], client._call
            monkeypatch.setattr(
                client, "_call", lambda *args, **more: asked.append(args) or call(*args, **more)
            )
            with Client(folder=folder) as other, ThreadPoolExecutor(1) as pool:
                waits = pool.submit(wait, client)
                for _ in range(5):
                    other.submit(JOB)
                other.cancel("2")
                assert waits.result()["state"] == "CANCELLED"
            assert len(asked) < 5


class TestRestarts:
    def test_a_call_goes_to_the_controller_that_has_come_back(self, folder):
        controller = StandInController(folder)
        with Client(folder=folder) as client:
            with served(folder, controller) as first:
                client.submit(JOB)
            with served(folder, controller) as second:
                assert first.url != second.url
                assert client.job("1")["name"] == "train"

    def test_a_call_waits_for_the_controller_to_come_back(self, folder, monkeypatch):
        controller = StandInController(folder)
        waited = []
        with Client(folder=folder) as client:
            with served(folder, controller):
                client.submit(JOB)
            back = served(folder, controller)

            def sleep(seconds):
                waited.append(seconds)
                if len(waited) == 3:
                    back.__enter__()

            monkeypatch.setattr(client_module.time, "sleep", sleep)
            try:
                assert client.job("1")["name"] == "train"
            finally:
                back.__exit__(None, None, None)
        assert len(waited) >= 3

    def test_following_goes_on_where_it_was_however_long_nothing_was_printed(
        self, folder, monkeypatch
    ):
        controller = StandInController(folder)
        quiet_s, clock = 0.0, stream.time.monotonic
        monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: clock() + quiet_s))
        with Client(folder=folder) as client:
            with served(folder, controller) as it:
                client.submit(JOB)
                it.do(controller.turn)
                it.write_log(0, b"one\n")
                pieces = client.logs("1", follow=True)
                assert next(pieces) == "one\n"
            quiet_s = 3600.0
            with served(folder, controller) as it:
                it.write_log(0, b"two\n")
                finish(it)
                assert "".join(pieces) == "two\n"


class TestWithoutAPlaceForAStream:
    @pytest.fixture(autouse=True)
    def no_place(self, monkeypatch):
        monkeypatch.setattr(streams, "MOST_STREAMS", 0)
        monkeypatch.setattr(streams, "PATIENCE_S", 0.0)
        monkeypatch.setattr(stream, "ASK_EVERY_S", 0.01)

    def test_who_waits_for_a_job_looks_at_it_and_says_so_once(self, client, cluster):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        said = []

        def end(words):
            said.append(words)
            finish(cluster)

        client.notice(end)
        assert client.wait("1")["state"] == "SUCCEEDED"
        (words,) = said
        assert "and 0 in all are open" in words
        assert "asks every few seconds" in words

    def test_output_is_asked_for_until_its_end_and_whoever_follows_is_told_once(
        self, client, cluster, monkeypatch
    ):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"one\n")
        said = []
        client.notice(said.append)
        pieces = client.logs("1", follow=True)
        assert next(pieces) == "one\n"
        cluster.write_log(0, b"two\n")
        assert next(pieces) == "two\n"
        monkeypatch.setattr(streams, "MOST_STREAMS", 9)  # it finds a place in the end
        cluster.write_log(0, b"three\n")
        assert next(pieces) == "three\n"
        finish(cluster)
        assert list(pieces) == []
        assert len(said) == 1


class TestLogs:
    def test_all_of_a_long_log(self, client, cluster):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        text = "".join(f"line {n} ☃\n" for n in range(20_000))
        cluster.write_log(0, text.encode())
        assert "".join(client.logs("1")) == text
        assert "".join(client.logs("1", tail=2)) == "line 19998 ☃\nline 19999 ☃\n"
        finish(cluster)
        assert "".join(client.logs("1")) == text
        assert "".join(client.logs("1", follow=True)) == text

    def test_a_log_that_grows_faster_than_it_is_read_comes_to_an_end(
        self, client, cluster, monkeypatch
    ):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"x" * 200_000)
        log_piece = client.log_piece

        def print_more(*about, **more):
            cluster.write_log(0, b"y" * 200_000)
            return log_piece(*about, **more)

        monkeypatch.setattr(client, "log_piece", print_more)
        text = "".join(client.logs("1"))
        assert 400_000 <= len(text) < 600_000

    def test_nothing_before_the_start_nor_without_one(self, client, cluster):
        client.submit(JOB)
        assert list(client.logs("1")) == []
        client.cancel("1")
        assert list(client.logs("1", follow=True)) == []

    def test_each_rank_has_its_own(self, client, cluster):
        client.submit(JOB._replace(num_gpus=2))
        cluster.do(cluster.controller.turn)
        for rank in (0, 1):
            cluster.write_log(0, f"rank {rank}\n".encode(), rank)
        assert list(client.logs("1", rank=1)) == ["rank 1\n"]
        assert list(client.logs("1", rank=2)) == []

    def test_what_was_printed_as_rank_0_goes_on_in_the_process_that_is_rank_0_now(
        self, client, cluster
    ):
        client.submit(JOB._replace(num_gpus=2))
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [0, 1], leaders=[0])
        for process in (0, 1, 2):
            cluster.write_log(0, f"process {process}\n".encode(), process)
        pieces = client.logs("1", follow=True)
        assert next(pieces) == "process 0\n"
        cluster.write_ranks(0, [1, 2], leaders=[0, 1])
        assert next(pieces) == "process 1\n"
        finish(cluster)
        assert list(pieces) == []
        assert list(client.logs("1")) == ["process 0\n", "process 1\n"]
        assert list(client.logs("1", tail=1)) == ["process 1\n"]
        assert list(client.logs("1", rank=1)) == ["process 2\n"]
        assert list(client.logs("1", process=0)) == ["process 0\n"]

    def test_ranks_and_processes_that_there_are_not_are_errors(self, client, cluster):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, [1, 2], leaders=[0, 1])
        with pytest.raises(NotFoundError, match=r"no rank 2: it has ranks 0 to 1; .* 0 to 2"):
            list(client.logs("1", rank=2))
        with pytest.raises(NotFoundError, match=r"no process 3: .* from 0 to 2"):
            list(client.logs("1", process=3))

    @pytest.mark.parametrize("which", [{}, {"rank": "all"}, {"system": True}, {"follow": True}])
    def test_attempts_that_there_are_not_are_errors(self, client, cluster, which):
        read = client.log_lines if {"rank", "system"} & which.keys() else client.logs
        client.submit(JOB)
        with pytest.raises(NotFoundError, match=r"^job 1 has no attempt 1: it has not started yet"):
            list(read("1", attempt=1, **which))
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"first\n")
        with pytest.raises(NotFoundError, match=r"no attempt 9: it has had attempt 1 alone"):
            list(read("1", attempt=9, **which))
        cluster.apply(AttemptLost(cluster.controller.now_s(), 0, 1, "its agent died"))
        cluster.do(cluster.controller.turn)
        with pytest.raises(NotFoundError, match=r"no attempt 3: it has had attempts 1 to 2"):
            list(read("1", attempt=3, **which))

    def test_following_goes_through_attempts(self, client, cluster):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"first\n")
        pieces = client.logs("1", follow=True)
        assert next(pieces) == "first\n"
        cluster.apply(AttemptLost(cluster.controller.now_s(), 0, 1, "its agent died"))
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"second\n")
        finish(cluster)
        assert "".join(pieces) == "second\n"
        assert list(client.logs("1", attempt=1, follow=True)) == ["first\n"]

    def test_an_output_is_followed_asynchronously_too(self, client, cluster):
        client.submit(JOB)
        cluster.do(cluster.controller.turn)
        cluster.write_log(0, b"first\n")

        async def read():
            told = []
            async for piece in client.follow("1", system=True):
                told.append(piece.text)
                if piece.text == "first\n":
                    await asyncio.to_thread(finish, cluster)
            return told

        told = asyncio.run(read())
        assert sorted(told) == ["first\n", "started", "submitted", "succeeded"]
        assert told[-1] == "succeeded"


class TestLines:
    def begins(self, client, cluster, num_gpus=1):
        client.submit(JOB._replace(num_gpus=num_gpus))
        cluster.do(cluster.controller.turn)
        cluster.write_ranks(0, list(range(num_gpus)))

    def prints(self, cluster, *lines, rank=0):
        """The rank prints each text by its time, and nothing else."""
        sizes, text = [], ""
        for at_s, line in lines:
            text += line
            sizes.append((at_s, len(text)))
        cluster.log_path(0, rank).write_text(text)
        cluster.write_times(0, *sizes, rank=rank)

    def test_lines_have_their_times_also_those_that_came_in_parts(self, client, cluster):
        self.begins(client, cluster)
        self.prints(cluster, (10.0, "a\nb"), (20.0, "egin\n\n"), (30.0, "last"))
        told = [(10.0, "a"), (10.0, "begin"), (20.0, ""), (30.0, "last")]
        assert [(line.at_s, line.text) for line in client.log_lines("1")] == told
        cluster.write_log(0, b"\n")
        finish(cluster)
        following = client.log_lines("1", follow=True)
        assert [(line.at_s, line.text) for line in following] == told
        since = client.log_lines("1", since_s=15.0)
        assert [line.text for line in since] == ["", "last"]
        assert "".join(client.logs("1", since_s=25.0)) == "last\n"

    def test_a_line_without_end_comes_in_parts(self, client, cluster):
        self.begins(client, cluster)
        bar = "\r".join(f"{n} %" for n in range(200_000))
        self.prints(cluster, (10.0, bar[:1_000_000]), (20.0, bar[1_000_000:]), (30.0, "\nend\n"))
        finish(cluster)
        for follow in (False, True):
            lines = list(client.log_lines("1", follow=follow))
            assert lines[-1].text == "end"
            assert "".join(line.text for line in lines[:-1]) == bar
            assert {len(line.text) for line in lines[:-2]} == {MOST_LINE_CHARS}
            assert [line.at_s for line in lines] == sorted(line.at_s for line in lines)
            assert {line.at_s for line in lines} == {10.0, 20.0, 30.0}
        tail = "".join(client.logs("1", tail=3))
        assert tail == (bar + "\nend\n")[-2 * MOST_LINE_CHARS - 5 :]
        last = [line.text for line in client.log_lines("1", tail=3)]
        assert last == [bar[-2 * MOST_LINE_CHARS : -MOST_LINE_CHARS], bar[-MOST_LINE_CHARS:], "end"]

    def test_lines_of_all_ranks_come_in_the_order_of_their_times(self, client, cluster):
        self.begins(client, cluster, num_gpus=2)
        self.prints(cluster, (10.0, "a\n"), (30.0, "c\n" * 40_000))
        self.prints(cluster, (20.0, "b\n"), (40.0, "d\n"), rank=1)
        finish(cluster)
        told = [(0, "a"), (1, "b"), *[(0, "c")] * 40_000, (1, "d")]
        for follow in (False, True):
            assert list(client.rank_logs("1", follow=follow)) == told
        assert list(client.rank_logs("1", since_s=35.0)) == [(1, "d")]

    def test_without_times_they_come_rank_by_rank(self, client, cluster):
        self.begins(client, cluster, num_gpus=2)
        cluster.write_log(0, b"a\nb\n", rank=0)
        cluster.write_log(0, b"c\n", rank=1)
        lines = client.log_lines("1", rank="all")
        assert [(line.at_s, line.rank, line.text) for line in lines] == [
            (None, 0, "a"),
            (None, 0, "b"),
            (None, 1, "c"),
        ]

    def test_the_story_is_told_among_the_lines(self, client, cluster):
        self.begins(client, cluster)
        started_s = client.job("1")["first_start_s"]
        self.prints(cluster, (started_s + 0.001, "hello\n"))
        lines = client.log_lines("1", system=True, follow=True)
        told = [next(lines) for _ in range(3)]
        assert [(line.system, line.text) for line in told] == [
            (True, "submitted"),
            (True, "started"),
            (False, "hello"),
        ]
        finish(cluster)
        (last,) = lines
        assert (last.system, last.text) == (True, "succeeded")
        assert last.at_s == client.job("1")["finish_s"]
        since = client.log_lines("1", system=True, since_s=last.at_s)
        assert [line.text for line in since] == ["succeeded"]

    def test_an_output_that_was_removed_is_an_error(self, client, cluster):
        self.begins(client, cluster, num_gpus=2)
        finish(cluster)
        shutil.rmtree(cluster.log_path(0).parent)
        for lines in (client.logs("1"), client.log_lines("1"), client.rank_logs("1")):
            with pytest.raises(NotFoundError, match="output of job 1 is no longer there"):
                list(lines)


class TestSomethingElseAtTheAddress:
    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (200, "<html>"),
            (200, "[]"),
            (500, "oops"),
            (404, "{}"),
            (400, json.dumps({"code": "open", "detail": "x"})),
            (400, json.dumps({"code": "RotaErrorX", "detail": "x"})),
        ],
    )
    def test_it_is_a_server_error(self, folder, status, body):
        with answering(status, body) as url, Client(url, "t", folder) as client:
            with pytest.raises(ServerError) as caught:
                client.jobs()
            assert type(caught.value) is ServerError


@contextmanager
def answering(status, body):
    """A web server that says the same to everybody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_cluster_that_does_not_end_is_told_by_those_who_are_left(cluster, folder, monkeypatch):
    heard = []
    clock = SimpleNamespace(monotonic=lambda: len(heard), sleep=time.sleep)  # of the client alone
    monkeypatch.setattr(client_module, "time", clock)
    with Client(folder=folder) as client, pytest.raises(ServerError) as error:
        client.shut_down(timeout_s=2.0, told=heard.append)
    assert "has not ended after 2 s: it waits for the agent of here; `rota down --now`" in str(
        error.value
    )
    assert [left["agents"] for left in heard] == [["here"], ["here"]]
    assert cluster.controller.life == ["start", "end_jobs"]


def test_shutting_down_returns_when_the_controller_has_ended(cluster, folder):
    cluster.controller.end_jobs = cluster.controller.journal.stopped.set
    with Client(folder=folder) as client:
        client.shut_down(timeout_s=None)
        with pytest.raises(UnreachableError):
            client.jobs()


@pytest.mark.parametrize(
    ("jobs", "agents", "words"),
    [
        ([], [], "its controller"),
        ([], ["a", "b"], "the agents of a, b"),
        ([3], [], "job 3 (x)"),
        ([3, 4], ["a"], "job 3 (x), job 4 (x) and the agent of a"),
        (range(1, 8), [], ", ".join(f"job {i} (x)" for i in range(1, 6)) + " and 2 more jobs"),
    ],
)
def test_who_is_left_is_named_and_many_are_counted(jobs, agents, words):
    named = [{"id": str(job), "name": "x", "node": "a"} for job in jobs]
    assert who_is_left({"jobs": named, "agents": agents}) == words
