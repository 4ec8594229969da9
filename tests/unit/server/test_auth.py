"""Tokens are made once, for their owner alone, and of two kinds."""

import os
import threading

import pytest

from rota.errors import AuthError, InputError
from rota.folder import Folder
from rota.server.auth import AGENT, USER, Tokens, check_token, ensure_tokens


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


def test_the_first_start_makes_them_and_later_ones_keep_them(folder):
    tokens = ensure_tokens(folder)
    assert len(tokens.user) > 40
    assert tokens.user != tokens.agent
    assert ensure_tokens(folder) == tokens
    assert {path.name for path in folder.path.iterdir()} == {"token", "agent.token"}


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o277])
def test_nobody_else_may_read_them_whatever_the_umask(folder, mask):
    before = os.umask(mask)
    try:
        ensure_tokens(folder)
    finally:
        os.umask(before)
    for path in (folder.token, folder.agent_token):
        assert path.stat().st_mode & 0o177 == 0


def test_starts_at_once_agree(folder):
    start = threading.Barrier(8)
    made = []

    def run():
        start.wait()
        made.append(ensure_tokens(folder))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_token_that_others_can_read_is_refused(folder, mode):
    ensure_tokens(folder)
    folder.token.chmod(mode)
    with pytest.raises(InputError, match="read by others"):
        ensure_tokens(folder)


@pytest.mark.parametrize("content", ["", "short", "x" * 600])
def test_a_file_without_a_token_is_refused(folder, content):
    folder.token.touch(mode=0o600)
    folder.token.write_text(content)
    with pytest.raises(InputError, match="remove it"):
        ensure_tokens(folder)


@pytest.mark.parametrize("put", ["link", "pipe", "folder"])
def test_something_else_in_its_place_is_refused(folder, put, tmp_path):
    if put == "link":
        (tmp_path / "elsewhere").write_text("a token that somebody else knows\n")
        folder.token.symlink_to(tmp_path / "elsewhere")
    elif put == "pipe":
        os.mkfifo(folder.token, 0o600)
    else:
        folder.token.mkdir()
    with pytest.raises(InputError):
        ensure_tokens(folder)


def test_only_the_right_token_of_the_right_kind_passes():
    tokens = Tokens("user-token-of-some-length", "agent-token-of-some-length")
    check_token(f"Bearer {tokens.user}", USER, tokens)
    check_token(f"bearer  {tokens.agent} ", AGENT, tokens)
    for header in (None, "", "Bearer", "Bearer ", tokens.user, f"Basic {tokens.user}"):
        with pytest.raises(AuthError, match="a token is needed"):
            check_token(header, USER, tokens)
    for kind, token in ((USER, tokens.agent), (AGENT, tokens.user)):
        with pytest.raises(AuthError, match="other kind"):
            check_token(f"Bearer {token}", kind, tokens)
    for token in (tokens.user[:-1], tokens.user + "x", "ü", "\ud800"):
        with pytest.raises(AuthError, match="wrong"):
            check_token(f"Bearer {token}", USER, tokens)
