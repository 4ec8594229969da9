"""The field ``notify`` of job files, and requests for hooks."""

import pytest

from rota.errors import JobFileError
from rota.model.job import Notice
from rota.request.jobfile import parse_job
from rota.request.notify import hook_of, key_of, shown_url

SECRET = "whsec_" + "A" * 40


def notices(value):
    return parse_job({"run": "true", "notify": value}, workdir="/").notices


def test_hooks_are_named_with_the_news_for_each():
    found = notices(
        [
            {"on": ["failed", "succeeded", "failed"], "webhook": "team"},
            {"on": "ended", "command": "c"},
        ]
    )
    assert found == (
        Notice("team", ("failed", "succeeded"), "webhook"),
        Notice("c", ("ended",), "command"),
    )
    assert notices(None) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"on": ["failed"], "webhook": "team"}, r"notify: .*write a list such as"),
        ([], r"notify: \[\] .*or leave it out"),
        ([{"on": ["failed"], "webhook": "t"}] * 17, "notify: .*at most 16"),
        (["team"], "notify: 'team' .*such as"),
        ([{"on": ["failed"]}], "notify: 'nothing' .*give one of webhook and command"),
        ([{"on": ["failed"], "webhook": "a", "command": "b"}], "notify: 'webhook and command'"),
        ([{"webhook": "team"}], "notify.on: None .*use started"),
        ([{"on": [], "webhook": "team"}], r"notify.on: \[\] .*write some of started"),
        ([{"on": ["fail"], "webhook": "team"}], "notify.on: 'fail' .*did you mean failed"),
        ([{"on": ["node_lost"], "webhook": "team"}], "notify.on: 'node_lost'"),
        ([{"on": [3], "webhook": "team"}], "notify.on: 3 .*use started"),
        ([{"on": ["failed"], "webhook": "a b"}], "notify.webhook: 'a b'"),
        ([{"on": ["failed"], "webhook": 3}], "notify.webhook: 3"),
        ([{"on": ["failed"], "webhok": "team"}], "did you mean notify.webhook"),
    ],
)
def test_what_is_wrong_is_told(value, message):
    with pytest.raises(JobFileError, match=message):
        notices(value)


def test_an_address_in_a_job_file_is_refused_without_being_shown():
    with pytest.raises(JobFileError, match="name a hook that") as refused:
        notices([{"on": ["failed"], "webhook": "https://hooks.example/s3cret"}])
    assert "s3cret" not in str(refused.value)


def hook(**fields):
    return hook_of(
        {"name": "team", "webhook": "https://x.example/s3cret", "secret": SECRET} | fields
    )


def test_a_request_for_a_hook_is_read():
    assert hook(on=["failed", "node_lost"]).on == ("failed", "node_lost")
    assert hook().private is False
    assert hook(webhook="http://127.0.0.1:80/", allow_private=True).private
    assert len(key_of(SECRET)) == 30
    command = hook_of({"name": "page", "command": "pager.sh"})
    assert (command.kind, command.target, command.secret) == ("command", "pager.sh", "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a/b"}, "name: 'a/b'"),
        ({"webhook": "ftp://x.example/s3cret"}, "webhook: 'ftp://x.example' .*use https"),
        ({"webhook": "http://x.example/s3cret"}, "use https; http is for private"),
        ({"webhook": "https:///s3cret"}, "webhook: .*write for example"),
        ({"webhook": "https://x.example:99999/s3cret"}, "webhook: .*write for example"),
        ({"webhook": "https://x.example:0/s3cret"}, "webhook: .*write for example"),
        ({"webhook": "https://x.example/s3cret\n"}, "webhook: .*write for example"),
        ({"webhook": "https://[x/s3cret"}, "webhook: .*write for example"),
        ({"webhook": "https://me:s3cret@x.example/"}, "leave out user, password"),
        ({"webhook": 3}, "webhook: 3"),
        ({"allow_private": "yes"}, "allow_private: 'yes'"),
        ({"on": ["fail"]}, "on: 'fail' .*did you mean failed"),
        ({"secret": None}, "secret: .*send whsec_"),
        ({"secret": "whsec_s3cret"}, "secret: .*base64 of 24 to 64"),
        ({"secret": "A" * 40}, "secret: .*send whsec_"),
        ({"secrets": "x"}, "did you mean secret"),
    ],
)
def test_what_is_wrong_with_a_hook_is_told_without_its_secrets(fields, message):
    with pytest.raises(JobFileError, match=message) as refused:
        hook(**fields)
    assert "s3cret" not in str(refused.value)


def test_a_command_is_a_name_and_has_no_secret():
    for fields in ({"secret": SECRET}, {"allow_private": True}):
        with pytest.raises(JobFileError, match="are a webhook's"):
            hook_of({"name": "page", "command": "pager"} | fields)
    with pytest.raises(JobFileError, match="command: '/bin/sh'"):
        hook_of({"name": "page", "command": "/bin/sh"})


def test_of_an_address_its_host_is_shown():
    assert shown_url("https://x.example:8443/a?b=c") == "https://x.example:8443/..."
    assert shown_url("https://x.example/") == "https://x.example"
    assert shown_url("https://x.example?token=1") == "https://x.example/..."
