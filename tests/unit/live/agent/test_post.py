"""Words between agents arrive once and in order, whatever connections do."""

import random

import pytest

from rota.errors import AgentError
from rota.live.agent.post import Post

ABOUT, KEY = {"job_id": "j", "attempt": 1}, ("j", 1)


class Line:
    """Two agents, "a" and "b", with a controller between them that may lose what it is given."""

    def __init__(self, seed=0, loss=0.0):
        self._random, self.loss = random.Random(seed), loss
        self.on_the_way, self.heard = [], {"a": [], "b": []}
        self.posts = {}
        for name in ("a", "b"):
            self.restart(name)

    def restart(self, name):
        self.posts[name] = Post(lambda message: self.on_the_way.append((name, message)))

    def tell(self, name, body):
        self.posts[name].tell("b" if name == "a" else "a", ABOUT, {"say": body})

    def deliver(self):
        """Pass on what is on the way, and what that leads to."""
        while self.on_the_way:
            sender, message = self.on_the_way.pop(0)
            if self._random.random() >= self.loss:
                other = message["node"]
                word = self.posts[other].receive(message | {"node": sender})
                if word is not None:
                    self.heard[other].append((word.anew, word.body and word.body["say"]))

    def again(self):
        for post in self.posts.values():
            post.again()
        self.deliver()


@pytest.mark.parametrize("seed", range(20))
def test_each_word_arrives_once_and_in_order_on_a_line_that_loses_half(seed):
    line = Line(seed, loss=0.5)
    for number in range(30):
        line.tell("a", number)
        line.tell("b", -number)
        line.deliver()
    while line.posts["a"].is_awaited("b", KEY) or line.posts["b"].is_awaited("a", KEY):
        line.again()
    assert line.heard["b"] == [(False, number) for number in range(30)]
    assert line.heard["a"] == [(False, -number) for number in range(30)]


def test_an_agent_that_starts_anew_gets_what_was_not_confirmed_and_counts_again():
    line = Line()
    line.tell("a", "before")
    line.deliver()
    line.tell("a", "lost")
    line.on_the_way.clear()
    line.restart("b")
    line.tell("b", "back")
    line.again()
    line.again()
    line.tell("a", "after")
    line.deliver()
    assert line.heard["b"] == [(False, each) for each in ("before", "lost", "after")]
    assert line.heard["a"] == [(True, "back")]


def test_one_that_has_forgotten_the_attempt_is_told_anew():
    line = Line()
    for side in ("a", "b"):
        line.tell(side, "hello")
    line.deliver()
    line.posts["b"].keep(KEY, [])
    line.tell("a", "again")
    line.again()
    line.again()
    assert line.heard["b"] == [(False, "hello"), (False, "again")]
    assert not line.posts["a"].is_awaited("b", KEY)


def test_words_about_other_attempts_and_nodes_stay():
    line = Line(loss=1.0)
    line.tell("a", "kept")
    line.posts["a"].keep(("j", 2), [])
    line.posts["a"].keep(KEY, ["b"])
    assert line.posts["a"].is_awaited("b", KEY)
    line.posts["a"].keep(KEY, [])
    assert not line.posts["a"].is_awaited("b", KEY)


@pytest.mark.parametrize("field", ["life", "number", "their", "confirmed", "body", "node"])
def test_what_is_no_word_is_refused(field):
    line = Line()
    line.tell("a", "hello")
    ((_, message),) = line.on_the_way
    del message[field]
    with pytest.raises(AgentError, match="relay"):
        line.posts["b"].receive(message)


def test_a_word_numbered_for_an_agent_before_is_heard_once_it_is_numbered_anew():
    """Its sender counts from the beginning as soon as it knows this agent."""
    sent = []
    post = Post(sent.append)
    word = {"node": "b", "job_id": "1", "attempt": 1, "launch": None, "life": "b's", "number": 1}
    word |= {"body": {"say": "hello"}, "their": "of an agent before", "confirmed": 0}
    assert post.receive(word) is None
    assert post.receive(word | {"their": sent[-1]["life"]}).body == {"say": "hello"}
