"""Parameters in the command of a trial: each is one word, wherever bash lets it be one."""

import subprocess

import pytest

from rota.errors import JobFileError
from rota.request.searchspace import parse_space
from rota.request.trial_command import check_command, trial_command

HOSTILE = (
    "a b",
    "'; echo pwned; '",
    '"; echo pwned; "',
    "$(echo pwned)",
    "`echo pwned`",
    "\necho pwned\n",
    "EOF\necho pwned",
    "a\\",
    "# no comment",
    "",
    "*",
    "~",
    "{x}",
    "{{x}}",
)

BARE = {
    "a word": "show {x}",
    "part of a word": "show a{x}b=",
    "after quotes that are over": """show 'a' "b" {x}""",
    "after an apostrophe in double quotes": """show "it's" {x}""",
    "after quotes in single quotes": """show '"' {x}""",
    "after a quoted backslash": """show '\\' {x}""",
    "after a backslash that is escaped": "show \\\\{x}",
    "after an escaped quote": "show \\' \\\" {x}",
    "after a comment": "show a # it's no \\\nshow {x}",
    "after a sharp within a word": "show a#b {x}#",
    "in a substitution": "show $(show {x})",
    "from a here-string": "cat <<< {x}",
    "twice": "show {x}.{x}",
    "beside what is literal": "show {{x}} ${HOME} {x}",
}

HELD = {
    "single quotes": "show '{x}'",
    "double quotes": 'show "{x}"',
    "double quotes with an escaped one": 'show "\\"{x}"',
    "quotes within a substitution within quotes": 'show "$(show "{x}")"',
    "after a substitution within quotes": 'show "$(show a)" {x}',
    "a comment": "show a # {x}",
    "a comment at the start": "# {x}",
    "a comment after a semicolon": "show a;#{x}",
    "backticks": "show `show {x}`",
    "after a backslash": "show \\{x}",
    "a here-document": "cat <<EOF\n{x}\nEOF",
    "a here-document without substitutions": "cat <<'EOF'\n{x}\nEOF",
    "after the quotes that take escapes": "show $'\\'' {x}",
    "quotes around another one": "show '{y}{x}'",
}


def shown(run, value):
    """What bash shows of the command, where ``show`` prints its words one a line."""
    command = "show() { printf '<%s>' \"$@\"; }\n" + trial_command(run, {"x": value, "y": 1})
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("run", BARE.values(), ids=BARE)
def test_a_value_is_the_same_word_whatever_it_holds(run):
    marked = shown(run, "MARK")
    for value in HOSTILE:
        found = shown(run, value)
        if not run.startswith("show $("):  # which takes words apart itself
            assert found.stdout == marked.stdout.replace("MARK", value)
        assert found.stderr == "" and found.returncode == 0
        assert "\npwned" not in f"\n{found.stdout}"


@pytest.mark.parametrize("run", HELD.values(), ids=HELD)
def test_within_quotes_only_values_that_need_none_can_stand(run):
    for value in HOSTILE:
        with pytest.raises(JobFileError, match=r"^params.x: .* in run \{x\} stands within quotes"):
            trial_command(run, {"x": value, "y": 1})
        with pytest.raises(JobFileError, match=r"^sweep.space.x.choice: .* outside of them"):
            check_command(run, parse_space({"x": {"choice": ["a", value]}, "y": {"int": [1, 2]}}))
    for value in (0.001, -3, 1e-05, True, "sgd", "a/b.c-d_e", 10):
        told = str(value).lower() if isinstance(value, bool) else str(value)
        assert trial_command(run, {"x": value, "y": 1}) == run.replace("{x}", told).replace(
            "{y}", "1"
        )


def test_numbers_in_quotes_are_taken_with_the_search():
    space = parse_space({"x": {"log": [1e-5, 1]}, "y": {"choice": ["sgd", "adam", 1, True]}})
    check_command("python -c 'train({x}, \"{y}\")'", space)
