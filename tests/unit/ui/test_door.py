"""Links and sessions, by an injected clock."""

from rota.ui.door import LINK_S, SESSION_S, Door


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_link_is_good_once():
    door = Door("token", Clock())
    link = door.new_link()
    assert door.is_signed_in(door.sign_in(link))
    assert door.sign_in(link) is None
    assert door.sign_in("") is None and not door.is_signed_in(None)


def test_a_link_grows_stale_and_a_session_ends():
    clock = Clock()
    door = Door("token", clock)
    stale, good = door.new_link(), door.new_link()
    session = door.sign_in(good)
    clock.now_s = LINK_S + 1
    assert door.sign_in(stale) is None
    assert door.is_signed_in(session)
    clock.now_s = SESSION_S + 1
    assert not door.is_signed_in(session)


def test_only_the_token_itself_counts_as_the_token():
    door = Door("token", Clock())
    assert door.has_token("Bearer token")
    for wrong in (None, "", "Bearer", "Bearer tokens", "Bearer tok€n"):
        assert not door.has_token(wrong)
