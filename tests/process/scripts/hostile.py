"""A program that speaks to its agent as the library does, and tells what it should not.

    python hostile.py OUT HELLO ANSWERS

HELLO is what its hello has beside the usual; ANSWERS what it says to each type of message, and at
the ``start``. All that the agent says is a line in the file OUT. It ends only when it is killed.
"""

import contextlib
import json
import os
import socket
import sys
import time

out, hello, answers = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])


def talk(link):
    usual = {"type": "hello", "job_id": os.environ["ROTA_JOB_ID"], "suspended": False}
    usual |= {"attempt": int(os.environ["ROTA_ATTEMPT"]), "rank": int(os.environ["RANK"])}
    say(link, [usual | hello, *answers.get("start", [])])
    for line in link.makefile():
        with open(out, "a") as file:
            file.write(line)
        say(link, answers.get(json.loads(line)["type"], []))


def say(link, messages):
    for message in messages:
        if message.get("at_s") == "now":
            message = message | {"at_s": time.time()}
        link.sendall(json.dumps(message).encode() + b"\n")


with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
    link.connect(os.environ["ROTA_AGENT_SOCKET"])
    talk(link)
with open(out, "a") as file:
    file.write('{"type": "closed"}\n')
while True:
    time.sleep(0.05)
