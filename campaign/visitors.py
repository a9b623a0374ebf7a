"""(c) Visitors to the web page, polite and rude, and what the server has become after each thousand requests."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from report import Part

POLITE, RUDE = 8, 8
PAUSE = 5.0  # seconds between two looks that are half a second apart
# the page's pool has 8 threads, which come with the load and go when they were idle for ten seconds
SLACK = {"MiB": 0, "descriptors": 200, "threads": 8, "temporary files": 0}
EVENTS = ("on_upload", "on_tile", "on_class", "on_why", "on_box", "on_mix", "on_two", "table_file")


class Asked(NamedTuple):
    """One question of a polite visitor."""

    start: float
    end: float
    prediction: bool
    problem: str


class Crowd:
    """What visitors share: the address, the functions of the page, and the counts."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.seed = port, seed
        self.lock, self.requests, self.problems = threading.Lock(), 0, list[str]()
        self.asked: list[Asked] = []
        self.pauses: list[tuple[float, float]] = []  # of the whole campaign, by whoever needs a quiet machine
        self.over = threading.Event()
        config = json.loads(self.ask("GET", "/config")[1])
        # private events have no names: by their place, as the page is wired
        self.functions = dict(zip(EVENTS_IN_ORDER, [each["id"] for each in config["dependencies"]], strict=False))

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            words = answer.read().decode(errors="replace")
            return answer.status, words
        finally:
            connection.close()
            with self.lock:
                self.requests += 1

    def join(self, who: str, function: str, data: list[object], event: object = None) -> int:
        body = {"data": data, "event_data": event, "fn_index": self.functions[function], "session_hash": who}
        return self.ask("POST", "/gradio_api/queue/join", {**body, "trigger_id": None})[0]

    def answer(self, who: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", f"/gradio_api/queue/data?session_hash={who}")
            stream = connection.getresponse()
            while line := stream.readline():
                if b"process_completed" in line:
                    return line.decode(errors="replace")
            return ""
        finally:
            connection.close()
            with self.lock:
                self.requests += 1


# the order in which `codanet.app.page` wires them
EVENTS_IN_ORDER = (
    "on_model",
    "on_tile",
    "on_upload",
    "on_class",
    "on_why",
    "on_versus",
    "on_box",
    "on_mix",
    "on_two",
    "on_three",
    "on_compare",
    "picture_file",
    "on_numbers",
    "table_file",
)


def picture(draw: random.Random) -> dict[str, str]:
    from PIL import Image

    side = draw.choice((32, 64, 400, 1200))
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 90).convert("RGB").save(buffer, "JPEG")
    return {"content": base64.b64encode(buffer.getvalue()).decode(), "title": "mine"}


def polite(crowd: Crowd, number: int) -> None:
    """Uploads, clicks, listens."""
    draw, visit = random.Random(f"{crowd.seed}-polite-{number}"), 0
    while not crowd.over.is_set():
        who, visit = f"polite{number}x{visit}", visit + 1
        for step in range(12):
            if crowd.over.is_set():
                return
            function = "on_upload" if step == 0 else draw.choice(EVENTS)
            event: object = {
                "on_upload": lambda: picture(draw),
                "on_tile": lambda: {"key": "example-0"},
                "on_class": lambda: {"number": draw.randrange(10)},
                "on_box": lambda: {"box": [1, 1, 9, 9]},
                "on_mix": lambda: {"key": "example-1"},
            }.get(function, lambda: None)()
            started = time.monotonic()
            data: list[object] = [None, draw.randrange(10)] if function == "on_why" else [None]
            status, told = 0, ""
            try:
                status = crowd.join(who, function, data, event)
                told = crowd.answer(who) if status == 200 else ""
            except (OSError, http.client.HTTPException) as error:
                told = repr(error)
            if status == 503:
                time.sleep(0.2)
                continue
            problem = "" if '"success":true' in told else f"{function} of {who}: {status} {told[:200]}"
            prediction = function in ("on_upload", "on_why", "on_class")
            crowd.asked.append(Asked(started, time.monotonic(), prediction, problem))


UNFINISHED = b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
UNREAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
DRIPPING = UNFINISHED + b"\r\n{"


def rude(crowd: Crowd, number: int) -> None:
    """Never listens, never reads, sends nonsense, comes by another name, says nothing, is slow, floods."""
    draw = random.Random(f"{crowd.seed}-rude-{number}")
    silent: list[socket.socket] = []
    while not crowd.over.is_set():
        kind, status = draw.randrange(7), 0
        for each in silent[-3:]:  # one more byte of what never ends
            with suppress(OSError):
                each.send(b" ")
        try:
            if kind == 0:
                status = crowd.join(f"deaf{draw.randrange(10**9)}", "on_upload", [None], picture(draw))
            elif kind == 1:
                status = crowd.ask("GET", "/", headers={"Host": "evil.example"})[0]
            elif kind == 2:
                status = crowd.ask(
                    "POST",
                    "/gradio_api/queue/join",
                    {"fn_index": draw.choice((-1, 999)), "session_hash": "x", "data": []},
                )[0]
            elif kind == 3:
                status = crowd.ask(
                    "GET", draw.choice(("/gradio_api/file=/etc/passwd", "/..%2f..%2fetc/passwd", "/gradio_api/upload"))
                )[0]
            elif kind == 4:
                silent.append(socket.create_connection(("127.0.0.1", crowd.port), timeout=10))
                silent[-1].sendall(draw.choice((UNFINISHED, UNREAD, DRIPPING)))
                with crowd.lock:
                    crowd.requests += 1
                while len(silent) > 20:
                    silent.pop(0).close()
            elif kind == 5:
                status = crowd.join(f"flood{number}", "on_why", [None, draw.choice((1, None, "x", 10**9))])
            else:
                status = crowd.ask(
                    "POST", "/gradio_api/queue/join", draw.choice(([], "x", {"data": [[[]]]}, {"session_hash": 3}))
                )[0]
        except (OSError, http.client.HTTPException):
            continue
        if status == 500:
            crowd.problems.append(f"a rude visitor's request of kind {kind} was answered with 500")
        time.sleep(0.05)
    for each in silent:
        each.close()


def state(pid: int) -> dict[str, int]:
    words = Path(f"/proc/{pid}/status").read_text().split()
    return {
        "MiB": int(words[words.index("VmRSS:") + 1]) // 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(words[words.index("Threads:") + 1]),
        "temporary files": len(list(Path(tempfile.gettempdir()).glob("gradio*"))),
    }


def run(folder: Path, seed: int, cases: range, until: float, rude_ones: int = RUDE) -> Part:
    part = Part("Visitors" if rude_ones else "Polite visitors alone", seed)
    words, log = [sys.executable, "-m", "codanet", "demo"], folder / "server.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        assert server.stdout is not None
        line = server.stdout.readline()
        port = urlsplit(next(word for word in line.split() if word.startswith("http"))).port
        crowd = Crowd(int(port or 0), seed)
        threads = [threading.Thread(target=polite, args=(crowd, each), daemon=True) for each in range(POLITE)]
        threads += [threading.Thread(target=rude, args=(crowd, each), daemon=True) for each in range(rude_ones)]
        for thread in threads:
            thread.start()
        samples: dict[int, dict[str, int]] = {}
        last = time.monotonic()
        while crowd.requests < len(cases) and time.monotonic() < until and server.poll() is None:
            time.sleep(0.5)
            last, before = time.monotonic(), last
            if last - before > PAUSE:
                crowd.pauses.append((before, last))
            if crowd.requests // 1000 > max(samples, default=0):
                samples[crowd.requests // 1000] = state(server.pid)
                print(f"visitors: {crowd.requests} requests, {samples[max(samples)]}", file=sys.stderr, flush=True)
        crowd.over.set()
        for thread in threads:
            thread.join(60)
        part.cases = crowd.requests
        if server.poll() is not None:
            part.failures.append(f"the server ended with {server.returncode}")
        server.send_signal(signal.SIGINT)
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            part.failures.append("the server did not end within a minute of Ctrl-C")
            server.kill()
    errors = log.read_text(errors="replace")
    if "Traceback" in errors:
        part.failures.append("a traceback in the server's log: " + errors.strip().splitlines()[-1][:200])
    judged = [each for each in crowd.asked if not any(each.start < b and each.end > a for a, b in crowd.pauses)]
    part.failures += [*crowd.problems, *(each.problem for each in judged if each.problem)][:20]
    part.failures += grown(samples)
    waits = sorted(each.end - each.start for each in judged if each.prediction)
    if crowd.pauses:
        part.facts["paused"] = f"{len(crowd.pauses)} times; {len(crowd.asked) - len(judged)} questions not judged"
    if waits:
        slow = waits[int(0.99 * len(waits))]
        part.facts["predictions"] = (
            f"{len(waits)} of {POLITE} polite visitors beside {rude_ones} rude ones: median "
            f"{waits[len(waits) // 2]:.2f} s, 99% within {slow:.2f} s"
        )
        if not rude_ones and slow > 1:
            part.failures.append(f"one prediction in a hundred takes more than {slow:.2f} s: is the machine quiet?")
    for thousand, found in samples.items():
        part.facts[f"after {thousand},000 requests"] = ", ".join(f"{count} {name}" for name, count in found.items())
    return part


def grown(samples: dict[int, dict[str, int]]) -> list[str]:
    """What is more by a tenth at the end than after the first thousand requests, small numbers aside."""
    if len(samples) < 2:
        return []
    first, last = samples[min(samples)], samples[max(samples)]
    return [
        f"{name} grew from {first[name]} to {last[name]}"
        for name in first
        if last[name] > 1.1 * first[name] + SLACK[name]
    ]


def polite_only(folder: Path, seed: int, cases: range, until: float) -> Part:
    return run(folder, seed, cases, until, rude_ones=0)
