"""Answers about outputs that somebody follows: as soon as there is more, or nothing will follow."""

import asyncio
import json

import pytest

from rota.folder import Folder
from rota.live.agent import answers
from rota.live.wire.questions import AskOutput, NoAnswer, ask_message, ask_of

NODE = "here"


@pytest.fixture
def folder(tmp_path):
    it = Folder(tmp_path / "home").create()
    it.attempt(NODE, "1", 1).mkdir(parents=True)
    return it


def asked(**fields):
    return AskOutput(node=NODE, job_id="1", attempt=1, started=True, **fields)


def test_an_answer_that_may_wait_comes_with_the_next_output(folder, monkeypatch):
    looks, look_up = [], answers.look_up
    log = folder.log(NODE, "1", 1, 0)
    log.write_bytes(b"one\n")

    def looked(*about):
        looks.append(None)
        if len(looks) == 3:
            with log.open("ab") as file:
                file.write(b"two\n")
        return look_up(*about)

    monkeypatch.setattr(answers, "look_up", looked)
    monkeypatch.setattr(answers, "LOOK_AGAIN_S", 0.0)
    found = asyncio.run(answers.find(folder, NODE, asked(offset=4, wait_s=60.0)))
    assert (found.text, found.next_offset, len(looks)) == ("two\n", 8, 3)


@pytest.mark.parametrize(
    "fields", [{"offset": 4}, {"offset": 4, "over": True, "wait_s": 60.0}, {"wait_s": 60.0}]
)
def test_others_come_at_once(folder, monkeypatch, fields):
    folder.log(NODE, "1", 1, 0).write_bytes(b"one\n")
    monkeypatch.setattr(answers, "LOOK_AGAIN_S", None)
    found = asyncio.run(answers.find(folder, NODE, asked(**fields)))
    assert found.text == ("" if "offset" in fields else "one\n")


def test_what_is_not_there_is_told_at_once(folder, monkeypatch):
    monkeypatch.setattr(answers, "LOOK_AGAIN_S", None)
    folder.attempt(NODE, "1", 1).rmdir()
    assert isinstance(asyncio.run(answers.find(folder, NODE, asked(wait_s=60.0))), NoAnswer)


def test_a_question_of_before_does_not_wait():
    message = ask_message(1, asked())
    del message["question"]["wait_s"]
    assert ask_of(json.loads(json.dumps(message))).question.wait_s == 0.0
