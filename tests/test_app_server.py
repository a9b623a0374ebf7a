"""The server: what it refuses, what it lets through, and that it ends."""

import asyncio
import json
import re
import signal
import sys
import urllib.error
import urllib.request

import pytest

import codanet
from codanet import CoDANet
from codanet.app import session, start
from codanet.app.gate import HEADERS, Gate
from codanet.models.network import Layer
from colours import colour_model
from processes import COMMAND, Forked


def asked(method: str, path: str, body: bytes = b"", length: str | None = None) -> tuple[int, dict[str, str]]:
    """What the gate answers, or 200 if it lets the request pass and its body is read."""
    sent = []

    async def application(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    parts = [body[i : i + 100] for i in range(0, len(body), 100)] or [b""]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", length.encode())] if length is not None else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(Gate(application, most_bytes=1000)(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/assets/index-1.js", 200),
        ("GET", "/gradio_api/heartbeat/abc", 200),
        ("POST", "/gradio_api/queue/join", 200),
        ("POST", "/gradio_api/upload", 404),
        ("GET", "/gradio_api/file=/etc/passwd", 404),
        ("GET", "/gradio_api/file=http://example.com/a.png", 404),
        ("GET", "/file=/etc/passwd", 404),
        ("GET", "/gradio_api/proxy=http://example.com", 404),
        ("GET", "/assets/../../secret", 404),
        ("POST", "/gradio_api/process_recording", 404),
        ("POST", "/gradio_api/run/predict", 404),
        ("POST", "/gradio_api/component_server", 404),
        ("GET", "/gradio_api/deep_link", 404),
        ("GET", "/monitoring/summary", 404),
        ("DELETE", "/", 404),
    ],
)
def test_gate(method, path, status):
    found, headers = asked(method, path)
    assert found == status
    assert set(HEADERS) <= set(headers)


def test_gate_limits_bodies():
    join = "/gradio_api/queue/join"
    assert asked("POST", join, b"x" * 1000, "1000")[0] == 200
    assert asked("POST", join, b"", "1001")[0] == 413
    assert asked("POST", join, b"", "many")[0] == 413
    assert asked("POST", join, b"x" * 1001)[0] == 413  # without a length, counted as it comes


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ({}, {}, "no model was given"),
        ({"six": CoDANet([Layer(2, 1)], image_channels=6)}, {}, "6 channels"),
        ({"m": colour_model()}, {"port": 99999}, "between 1 and 65535"),
    ],
)
def test_what_cannot_be_served(models, options, words):
    with pytest.raises(ValueError, match=words):
        start(models, **options)


def test_without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ValueError, match="pip install 'codanet\\[demo\\]'"):
        start({"m": colour_model()})


@pytest.fixture(scope="module")
def served():
    page = start({"colours": colour_model()})
    yield page
    page.close(verbose=False)


def fetched(page, path: str, body: object = None) -> tuple[int, str]:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(page.local_url.rstrip("/") + path, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(4000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def joined(page, function: str, data: list, event: object = None) -> str:
    """The end of an event, as the server streams it."""
    number = next(i for i, each in page.fns.items() if each.name == function)
    body = {"data": data, "event_data": event, "fn_index": number, "session_hash": "tester", "trigger_id": None}
    status, _ = fetched(page, "/gradio_api/queue/join", body)
    assert status == 200
    address = page.local_url.rstrip("/") + "/gradio_api/queue/data?session_hash=tester"
    with urllib.request.urlopen(address, timeout=60) as stream:
        for line in stream:
            if b"process_completed" in line:
                return line.decode()
    raise AssertionError("the event did not end")


def test_the_server_takes_no_path_and_no_address(served):
    assert served.local_url.startswith("http://127.0.0.1:")
    assert fetched(served, "/")[0] == 200
    for path in ("/gradio_api/file=/etc/passwd", "/gradio_api/upload", "/gradio_api/info", "/gradio_api/deep_link"):
        assert fetched(served, path)[0] == 404
    meta = {"_type": "gradio.FileData"}
    for path in ("/etc/passwd", "http://example.com/a.png", "../secret"):
        file = {"path": path, "url": path, "meta": meta}
        for value in (file, [file], [[file]]):
            assert "not something this page takes" in joined(served, "on_why", [None, value])
        assert '"success":false' in joined(served, "on_upload", [None], {"content": file})
    assert '"success":false' in joined(served, "on_tile", [None], "no mapping")
    assert '"success":true' in joined(served, "on_why", [None, 1])
    assert fetched(served, "/")[0] == 200


def test_a_fault_of_ours_is_not_told(served, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("secret detail of /home/someone")

    monkeypatch.setattr(session, "choose_class", broken)
    told = joined(served, "on_why", [None, 1])
    assert "secret" not in told
    assert "fault of its own" in told


def test_a_port_that_is_taken(served):
    with pytest.raises(ValueError, match="choose another --port"):
        start({"m": colour_model()}, port=served.server_port)


def test_the_command(tmp_path):
    """Served until Ctrl-C, then gone without a traceback."""
    codanet.save(colour_model(), tmp_path / "colours.safetensors")
    with Forked(COMMAND, "demo", "colours.safetensors", cwd=tmp_path) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+", process.first_line())
        assert address, process.said()
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert b"codanet" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Ended." in out
    assert "Traceback" not in err
    assert not list(tmp_path.glob(".gradio*"))
