"""Visitors who do not listen, come back too late, come by another name, or say nothing at all."""

import asyncio
import base64
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from PIL import Image

from codanet.app import keeper, own_names, session, start
from codanet.app.gate import Gate, Hosts
from colours import colour_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def served():
    page = start({"colours": colour_model()})
    yield page
    page.close(verbose=False)


def fetched(page, path, body=None, headers=()):
    content = None if body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **dict(headers)}
    request = urllib.request.Request(page.local_url.rstrip("/") + path, content, named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(4000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def join(page, visitor, function, data, event=None):
    number = next(i for i, each in page.fns.items() if each.name == function)
    body = {"data": data, "event_data": event, "fn_index": number, "session_hash": visitor, "trigger_id": None}
    return fetched(page, "/gradio_api/queue/join", body)


def answer(page, visitor, function, data, event=None):
    status, words = join(page, visitor, function, data, event)
    assert status == 200, words
    return told(page, visitor)


def told(page, visitor):
    with urllib.request.urlopen(f"{page.local_url}gradio_api/queue/data?session_hash={visitor}", timeout=60) as stream:
        return next(line.decode() for line in stream if b"process_completed" in line)


def upload():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "blue").save(buffer, "PNG")
    return {"content": base64.b64encode(buffer.getvalue()).decode(), "title": "mine"}


def test_a_forgotten_picture_is_told(served):
    """After as many other visitors as are kept, the first one's click is not answered from an example."""
    assert '"success":true' in answer(served, "first", "on_upload", [None], upload())
    assert '"success":true' in answer(served, "first", "on_why", [None, 1])
    served.app.state_holder.session_data.pop("first")
    for function, data in (
        ("on_why", [None, 1]),
        ("on_two", [None]),
        ("on_numbers", [None]),
        ("on_compare", [None, []]),
    ):
        told = answer(served, "first", function, data)
        assert '"success":false' in told
        assert "no longer kept here: give it again" in told
    assert "no longer here" in answer(served, "first", "on_tile", [None], {"key": "upload-1"})
    assert '"success":true' in answer(served, "first", "on_upload", [None], upload())
    assert '"success":true' in answer(served, "first", "on_why", [None, 1])
    assert '"success":true' in answer(served, "somebody-new", "on_why", [None, 1])


def test_a_session_that_is_over_is_told_and_nothing_of_it_is_kept(served, monkeypatch):
    assert '"success":true' in answer(served, "late", "on_upload", [None], upload())
    kept = served.app.state_holder
    assert "data:image" in str(kept.session_data["late"].config_values)  # what the page shows
    kept.delete_all_expired_state()
    assert "late" in kept.session_data
    monkeypatch.setattr(type(kept.session_data["late"]), "state_components", property(all_expired))
    kept.delete_all_expired_state()  # an hour later
    assert "late" not in kept.session_data  # and with it all that was shown
    assert "late" not in kept.time_last_used
    monkeypatch.undo()
    assert "no longer kept here" in answer(served, "late", "on_why", [None, 1])


def all_expired(session):
    """What Gradio gives of a session's states, an hour later."""
    return [(session.blocks_config.blocks[key], value, True) for key, value in session.state_data.items()]


def test_answers_that_nobody_fetches_are_bounded_and_dropped(served, monkeypatch):
    queue = served._queue
    statuses = [join(served, "deaf", "on_upload", [None], upload())[0] for _ in range(8)]
    assert statuses == [200] * keeper.UNHEARD + [503] * (8 - keeper.UNHEARD)
    for number in range(100):
        join(served, f"deaf-{number}", "on_upload", [None], upload())
    assert sum(map(len, queue.pending_event_ids_session.values())) <= keeper.NEW
    monkeypatch.setattr(keeper, "PATIENCE", 0.0)
    monkeypatch.setattr(keeper, "ROUND", 0.1)
    deadline = time.monotonic() + 30
    while queue.pending_messages_per_session or queue.pending_event_ids_session:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    monkeypatch.undo()
    assert '"success":true' in answer(served, "polite", "on_why", [None, 1])


def test_those_who_never_listen_do_not_push_others_out(served, monkeypatch):
    """They have no session, not even between another's question and the moment in which its answer is asked for."""
    kept, read = served.state_holder, []
    monkeypatch.setattr(kept, "capacity", 3)
    monkeypatch.setattr(session, "read", lambda *words, known=session.read: read.append(1) or known(*words))
    assert '"success":true' in answer(served, "listening", "on_upload", [None], upload())
    assert join(served, "beginning", "on_upload", [None], upload())[0] == 200
    before = len(read)
    assert all(join(served, f"never-{number}", "on_upload", [None], upload())[0] == 200 for number in range(8))
    time.sleep(0.3)
    assert len(read) == before  # and nothing is computed for them
    assert not [name for name in kept.session_data if name.startswith("never")]
    assert not [name for name in kept.time_last_used if name.startswith("never")]
    assert '"success":true' in told(served, "beginning")
    for name in ("listening", "beginning"):
        assert '"success":true' in answer(served, name, "on_why", [None, 1])


def test_those_who_never_listen_make_room(served, monkeypatch):
    """A new visitor finds a place as soon as one of the silent has had its time; who listens needs none of theirs."""
    monkeypatch.setattr(keeper, "GRACE", 0.0)
    assert '"success":true' in answer(served, "known", "on_upload", [None], upload())
    for number in range(keeper.NEW):
        assert join(served, f"silent-{number}", "on_upload", [None], upload())[0] == 200
    monkeypatch.setattr(keeper, "GRACE", 60.0)
    assert join(served, "refused", "on_upload", [None], upload())[0] == 503
    assert '"success":true' in answer(served, "known", "on_why", [None, 1])
    monkeypatch.setattr(keeper, "GRACE", 0.0)
    assert '"success":true' in answer(served, "new", "on_upload", [None], upload())
    waiting = served._queue.pending_event_ids_session
    assert "silent-0" not in waiting
    assert f"silent-{keeper.NEW - 1}" in waiting


def test_pictures_of_those_who_never_listen_make_room(served, monkeypatch):
    monkeypatch.setattr(keeper, "WAITING_BYTES", 1000)
    monkeypatch.setattr(keeper, "GRACE", 0.0)
    assert join(served, "heavy", "on_upload", [None], {"content": "x" * 900, "title": "x"})[0] == 200
    assert '"success":true' in answer(served, "light", "on_upload", [None], upload())
    assert "heavy" not in served._queue.pending_event_ids_session


def test_no_statistics_of_visitors_are_made(served, monkeypatch):
    """They take longer with every event, and remember who asked what."""
    made = []
    monkeypatch.setattr(type(served._queue), "_get_df", staticmethod(made.append))
    for _ in range(keeper.UNREAD + 2):
        assert '"success":true' in answer(served, "polite", "on_why", [None, 1])
    assert not made
    assert len(served._queue.event_analytics) <= keeper.UNREAD


def test_pictures_on_their_way_are_bounded(served, monkeypatch):
    monkeypatch.setattr(keeper, "WAITING_BYTES", 100)
    status, words = join(served, "large", "on_upload", [None], {"content": "x" * 200, "title": "x"})
    assert status == 503
    assert "busy" in words


@pytest.mark.parametrize("number", [-1, 999, 10**9])
def test_events_that_there_are_not(served, number):
    body = {"data": [], "event_data": None, "fn_index": number, "session_hash": "x", "trigger_id": None}
    assert fetched(served, "/gradio_api/queue/join", body)[0] == 400
    body |= {"fn_index": 0, "session_hash": "x" * 1000}
    assert fetched(served, "/gradio_api/queue/join", body)[0] == 400


def test_choices_that_are_not_offered(served, capfd):
    """They are refused, and leave nothing in the log."""
    assert '"success":false' in answer(served, "odd", "on_why", [None, 10**9])
    assert "Traceback" not in capfd.readouterr().err


def test_other_names_and_other_pages(served):
    assert fetched(served, "/")[0] == 200
    for headers in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:7860"},
        {"Origin": "http://evil.example"},
        {"Host": "["},  # which is no address, nor a name
        {"Origin": "http://["},
        {"Origin": "http://203.0.113.9"},  # an address, but not that of this page
        {"Origin": "null"},
    ):
        assert fetched(served, "/config", headers=headers)[0] == 403
    assert fetched(served, "/config", headers={"Host": f"localhost:{served.server_port}"})[0] == 200
    own = f"127.0.0.1:{served.server_port}"
    assert fetched(served, "/config", headers={"Host": own, "Origin": f"http://{own}"})[0] == 200
    told = fetched(served, "/config", headers={"X-Forwarded-Host": "evil.example"})
    assert told[0] == 200
    assert "evil.example" not in told[1]


def test_names_of_a_server():
    assert Hosts(own_names("127.0.0.1")).know("127.0.0.1:7860")
    assert Hosts(own_names("::1")).know("[::1]:7860")
    assert not Hosts(own_names("127.0.0.1")).know("example.com")
    assert Hosts(own_names("0.0.0.0")).know(f"{socket.gethostname()}:80")
    assert Hosts(own_names("box.example")).know("box.example:80")
    assert Hosts(own_names("127.0.0.1", share=True)).know("abc.gradio.live")
    assert not Hosts(own_names("127.0.0.1", share=True)).know("gradio.live.evil.example")


@pytest.mark.parametrize("host", ["demo.example.org", "127.0.0.1:8000"])  # passed on, or rewritten by the proxy
def test_a_page_behind_a_proxy_answers_to_its_name(host):
    def asked(hosts: Hosts, proxied: bool) -> tuple[int, list[bytes]]:
        seen, sent = [], []

        async def application(scope, receive, send):
            seen.extend(name for name, _ in scope["headers"])

        async def send(message):
            sent.append(message)

        headers = [(b"host", host), (b"origin", "https://demo.example.org"), (b"x-forwarded-proto", "https")]
        scope = {"type": "http", "method": "GET", "path": "/config"}
        scope["headers"] = [(name, value.encode()) for name, value in headers]
        asyncio.run(Gate(application, most_bytes=10, hosts=hosts, proxied=proxied)(scope, None, send))
        return (sent[0]["status"] if sent else 200), seen

    assert asked(Hosts(own_names("127.0.0.1")), proxied=False) == (403, [])
    status, headers = asked(Hosts(own_names("127.0.0.1") | {"demo.example.org"}), proxied=True)
    assert status == 200
    assert b"x-forwarded-proto" in headers


@pytest.mark.parametrize(
    "name", ["", ".org", "https://demo.example.org", "demo.example.org:80", "a/b", "Demo.example.org", "["]
)
def test_a_name_that_is_none(name):
    with pytest.raises(ValueError, match="give the host name alone"):
        start({"colours": colour_model()}, name=name)


class Socket:
    """With a request on its way, and so many bytes of the answer not taken each time it is looked at."""

    cycle = object()

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.ended, self.transport = list(sizes), "", self

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def abort(self) -> None:
        self.ended = "aborted"

    def close(self) -> None:
        self.ended = "closed"


NO_PAGE = SimpleNamespace(_queue=SimpleNamespace(push=None, get_events=None))


def test_the_newest_of_too_many_sockets_are_closed(monkeypatch):
    monkeypatch.setattr(keeper, "SOCKETS", 50)
    there = {Socket(0, 0) for _ in range(50)}
    early = list(there)
    kept = keeper.Keeper(NO_PAGE, lambda: there)
    kept.close_silent()
    there |= {Socket(0, 0) for _ in range(50)}
    there.remove(early[0])
    kept.close_silent()
    assert not any(each.ended for each in early)
    assert sum(each.ended == "closed" for each in there) == 49


def test_silent_sockets_are_closed(served, monkeypatch):
    monkeypatch.setattr(keeper, "SILENCE", 0.3)
    monkeypatch.setattr(keeper, "ROUND", 0.1)
    with socket.create_connection(("127.0.0.1", served.server_port), timeout=30) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\nHost: ")  # and never the rest
        assert silent.recv(100) == b""


def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr("codanet.app.gate.BODY_SECONDS", 0.1)
    sent = []

    async def application(scope, receive, send):
        await receive()

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/gradio_api/queue/join", "headers": []}
    asyncio.run(Gate(application, most_bytes=10)(scope, receive, send))
    assert sent[0]["status"] == 408


def test_sockets_that_take_nothing_are_closed(monkeypatch):
    """One that reads, however slowly, stays."""

    stuck, slow, served_one = Socket(9, 9, 9), Socket(9, 8, 7), Socket(0, 0, 0)
    kept = keeper.Keeper(NO_PAGE, lambda: {stuck, slow, served_one})
    for moment in (0.0, 20.0, 40.0):
        monkeypatch.setattr(keeper.time, "monotonic", lambda moment=moment: moment)
        kept.close_silent()
    assert (stuck.ended, slow.ended, served_one.ended) == ("aborted", "", "")


def test_nobody_waits_for_anothers_multi_image(served, monkeypatch):
    begun, over, ended, real = threading.Event(), threading.Event(), threading.Event(), session.mix

    def slow(*arguments):
        begun.set()
        over.wait(60)
        ended.set()
        return real(*arguments)

    monkeypatch.setattr(session, "mix", slow)
    try:
        assert join(served, "mixing", "on_two", [None])[0] == 200
        threading.Thread(target=told, args=(served, "mixing"), daemon=True).start()  # or nothing would be made for it
        assert begun.wait(30)
        assert '"success":true' in answer(served, "quick", "on_upload", [None], upload())
        assert '"success":true' in answer(served, "quick", "on_why", [None, 1])
        assert not ended.is_set()
    finally:
        over.set()
