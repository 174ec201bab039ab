#!/usr/bin/env python3
"""A pipeline for `kind = "command"`: copies lines of files to files.

    feed_command.py IN OUT

Every IN/*.txt is a span; its lines go to OUT/SPAN.txt. IN and OUT are directories that all nodes of the
feed have. docs/feeds-command.md explains every message.

The fence: OUT/SPAN.state holds the highest epoch that ever started the span, how far it is, and how many
bytes of OUT/SPAN.txt count. Whoever writes holds a lock, compares the epoch, writes, and replaces the state
last. So a process that was paused and wakes up writes nothing, and after a crash nothing is there twice.
"""

import contextlib
import fcntl
import json
import os
import select
import sys
import time

VERSION = 1
LOOK_EVERY_SECONDS = 0.05
CHECKPOINT_EVERY_SECONDS = 1.0
BATCH_BYTES = 1 << 20

source, sink = sys.argv[1], sys.argv[2]
running = {}  # span -> {"epoch", "position", "told"}


class Fenced(Exception):
    """A higher epoch owns the span."""


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def replace(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


@contextlib.contextmanager
def owned(span, epoch):
    """The state of a span, locked; refuses whoever is out of date. Saved at the end."""
    path = os.path.join(sink, span + ".state")
    with open(os.path.join(sink, span + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = {"epoch": 0, "position": 0, "bytes": 0}
        if os.path.exists(path):
            with open(path) as file:
                state = json.load(file)
        if state["epoch"] > epoch:
            raise Fenced(f"{span}: epoch {epoch} is out of date, {state['epoch']} owns it")
        before = dict(state)
        state["epoch"] = epoch
        yield state
        if state != before:
            replace(path, json.dumps(state))


def copy(span, dispatcher):
    """One step of a dispatcher: whole lines that are there, made durable before they are reported."""
    at = int(time.time() * 1000)
    with open(os.path.join(source, span + ".txt"), "rb") as file:
        file.seek(dispatcher["position"])
        lines = file.read(BATCH_BYTES)
    lines = lines[: lines.rfind(b"\n") + 1]
    if lines:
        with owned(span, dispatcher["epoch"]) as state:
            with open(os.path.join(sink, span + ".txt"), "ab") as file:
                file.truncate(state["bytes"])  # what a crash left behind the state
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            state["bytes"] += len(lines)
            state["position"] = dispatcher["position"] + len(lines)
        dispatcher["position"] += len(lines)
    if lines or at - dispatcher["told"] > CHECKPOINT_EVERY_SECONDS * 1000:
        dispatcher["told"] = at
        say({"type": "checkpoint", "span": span, "epoch": dispatcher["epoch"],
             "position": dispatcher["position"], "at": at})


def answer(message):
    kind, span = message["type"], message.get("span")
    if kind == "hello":
        return {"type": "hello", "version": VERSION}
    if kind == "spans":
        names = sorted(name[:-4] for name in os.listdir(source) if name.endswith(".txt"))
        return {"type": "spans", "spans": names}
    if kind == "prepare":
        open(os.path.join(source, span + ".txt")).close()
    elif kind == "start":
        with owned(span, message["epoch"]) as state:
            # The sink knows best how far it is; what the predecessor reported is in message["from"].
            running[span] = {"epoch": message["epoch"], "position": state["position"], "told": 0}
    elif kind == "stop":
        # Nothing is in flight between two steps.
        dispatcher = running.pop(span, {"position": 0, "told": 0})
        return {"type": "stopped", "position": dispatcher["position"], "at": dispatcher["told"]}
    # "release", "sweep" and "ping" need nothing here.
    return {"type": "done"}


def hear(line):
    message = json.loads(line)
    try:
        reply = answer(message)
    except Fenced as fenced:
        reply = {"type": "error", "message": str(fenced), "fenced": True}
    except OSError as error:
        reply = {"type": "error", "message": str(error)}
    if "id" in message:
        reply["id"] = message["id"]
    say(reply)


def work():
    for span, dispatcher in list(running.items()):
        try:
            copy(span, dispatcher)
        except (Fenced, OSError) as error:
            del running[span]
            say({"type": "failed", "span": span, "epoch": dispatcher["epoch"], "message": str(error),
                 "fenced": isinstance(error, Fenced)})


def main():
    heard = b""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_EVERY_SECONDS if running else None)
        if ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                hear(line)
        work()


main()
