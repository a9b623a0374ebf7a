"""Every test starts from the same seed, in two threads, or as many as OMP_NUM_THREADS says, one beside others."""

import os
import signal

import pytest
import torch
from PIL import Image
from torch import nn

import codanet
from chromium import FLAGS, MISSING, chromium
from colours import colour_model, halves
from striped import RECIPE, paint
from visitors import encoded, given

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or no child would hear the Ctrl-C that it is tested with

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # gw0, gw1, …: each has a thread, and ports, of its own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["GRADIO_SERVER_PORT"] = str(7860 + 100 * (1 + int(worker.removeprefix("gw"))))
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        del os.environ[name]  # the Makefile's, for this process: programs it starts keep memory as a user's would

# Longest first, in processor seconds, so that no process is left alone with one of them.
LONGEST = ("training", "experiments", "browser", "training_photos", "page", "tutorials", "export", "attribution")
LONGEST += ("bench", "evaluation", "scaling", "package", "network", "peers", "dau", "data_sets", "exported_net")
# These fork programs from a process that imports PyTorch first (processes.py): those of a group share one.
FORKING = (
    ("training", "training_stops", "training_damage"),
    ("training_photos", "report", "crew", "shards", "app_server", "rooms"),
)

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))


def pytest_collection_modifyitems(items):
    """Where processes share the tests out, file by file, they take them in this order."""
    if worker:
        places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file stays in one process, and so does a group of files that fork."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            name = file.removeprefix("tests/test_").removesuffix(".py")
            return next((group[0] for group in FORKING if name in group), file)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Two wait for each other on small work; asked for by `pytestmark`."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gallery():
    """The page's model of three colours, with four plain pictures to begin with."""
    from codanet.app import session

    model = colour_model()
    shades = {name: Image.new("RGB", (40, 40), name) for name in ("red", "lime", "blue", "white")}
    pictures = tuple(
        session.seen_by(f"example-{i}", n, s, {"colours": model}) for i, (n, s) in enumerate(shades.items())
    )
    return session.Gallery({"colours": model}, {"colours": pictures})


@pytest.fixture
def opened(gallery):
    """A visitor who gave a picture, red on the left and blue on the right."""
    from codanet.app import session

    return session.take_upload(gallery, session.Session("colours"), given(encoded(halves(16))), "halves.png")


@pytest.fixture(scope="module")
def browser():
    """Chromium, headless, driven by Playwright."""
    path = chromium()
    if path is None:
        pytest.fail(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A small CoDA-Net that has seen enough digits to be sure of some."""
    from codanet.data import load_data

    torch.manual_seed(0)
    data = load_data("digits")
    model = codanet.CoDANet(
        [codanet.Layer(12, 4), codanet.Layer(10, 4, stride=2)],
        image_channels=1,
        image_size=8,
        temperature=4,
        class_names=data.classes,
    )
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    images, labels = data.train.images.float() / 255, data.train.labels
    for _ in range(100):
        batch = torch.randint(len(labels), (48,))
        wanted = nn.functional.one_hot(labels[batch], 10).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(images[batch]), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return codanet.save(model.eval(), tmp_path_factory.mktemp("digits") / "model.safetensors")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return paint(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def recipe(tmp_path, pictures):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {pictures}\n{RECIPE}")
    return path


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, pictures):
    """A run that nothing disturbed."""
    from codanet.training import train

    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "recipe.yaml").write_text(f"data: {pictures}\n{RECIPE}")
    torch.manual_seed(0)
    train(folder / "recipe.yaml", folder / "run", quiet=True)
    return folder / "run"
