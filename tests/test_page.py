"""The page without a server, from disk in a real browser with no network: any request or error of it fails."""

import io
import json
import re
import urllib.error

import numpy as np
import pytest
import torch
from PIL import Image

import codanet
from chromium import PATIENCE, until, visits
from codanet import CoDANet, Layer
from codanet._support import download
from codanet.cli import main
from codanet.data import DataError
from codanet.export import engine as engines
from codanet.export import page as pages
from codanet.plot import colour_scale, heatmap
from colours import colour_model, halves
from test_browser import (
    drag,
    expect_a_multi_image_of_three,
    expect_light_and_dark,
    expect_the_box_to_stay_move_and_go,
    expect_to_fit,
    expect_what_is_dropped_or_pasted_to_be_read,
    give,
    give_and_wait,
    next_number,
    number,
    png,
    rows,
    shown_map,
    upload,
    upload_from_a_phone,
    verdict,
)

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.browser

NASTY = ("a", "</script><b>&\"'", "c", "d")


@pytest.fixture(scope="module")
def ready():
    """The engine, from the cache or fetched."""
    try:
        engines.engine()
    except DataError as error:
        pytest.skip(str(error))


def deep() -> CoDANet:
    torch.manual_seed(0)
    return CoDANet([Layer(6, 2), Layer(4, 2, stride=2)], image_size=16, class_names=NASTY, temperature=2.0).eval()


def wide() -> CoDANet:
    torch.manual_seed(2)
    return CoDANet([Layer(4, 2)], image_size=(12, 16), class_names=NASTY, temperature=2.0).eval()


def grey() -> CoDANet:
    torch.manual_seed(1)
    names = tuple("0123456789")
    return CoDANet([Layer(6, 2), Layer(10, 2)], image_channels=1, image_size=8, class_names=names).eval()


@pytest.fixture(scope="module")
def written(ready, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "why & how.html"
    return pages.page({"colours": colour_model(), "<deep>": deep(), "grey": grey(), "wide": wide()}, path)


def offline(browser, written):
    """Visitors who have no network and may say nothing."""
    own = written.path.as_uri()

    def alone(page, errors):
        page.context.set_offline(True)
        page.context.route("**/*", lambda route: route.continue_() if route.request.url == own else route.abort())
        page.on("console", lambda message: errors.append(message.text))

    return visits(browser, own, "html[data-ready] .stage", (own, "data:", "blob:null/"), alone)


@pytest.fixture
def visit(browser, written):
    with offline(browser, written) as visit:
        yield visit


@pytest.fixture(scope="module")
def regular(browser, written):
    """One visitor for all tests that need no fresh one: a page takes longer to load than most of them to run."""
    with offline(browser, written) as visit:
        yield visit()


@pytest.fixture
def page(regular):
    regular.locator("#seen input").uncheck()
    regular.locator("#model select").select_option("colours")
    settled(regular, "predicted")
    return regular


def read(image: Image.Image, model: CoDANet | None = None):
    model = model or colour_model()
    return model.explain(codanet.read_image(image, model)[None], "all")


def noise(width: int, height: int) -> Image.Image:
    """Rough at every scale, so that another way to make it smaller would give other pixels."""
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def saved(page, button: str, folder):
    with page.expect_download() as waiting:
        page.locator(f"#save-{button}").click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def settled(page, words: str) -> None:
    until(page, f"document.querySelector('#status').textContent.includes({json.dumps(words)})")


def test_upload_predict_and_choose_another_class(page):
    upload(page, Image.new("RGB", (64, 64), "blue"), "blue")
    upload(page, halves(160, "red", "lime"), "red")
    why = read(halves(160, "red", "lime"))
    listed = page.locator("#bars .class").all_inner_texts()
    assert [line.split("\n")[0] for line in listed] == ["red", "green", "blue"]
    assert f"{100 * why.probabilities[0, 0]:.1f} %" in listed[0]
    values = why.pixels[0, 0]
    assert np.abs(shown_map(page) - heatmap(values, colour_scale(values))[0]).max() <= 2  # a shade, where it rounds

    page.locator("#bars .class").nth(1).click()
    page.wait_for_selector(".legend:has-text('for green')")
    values = why.pixels[0, 1]
    assert np.abs(shown_map(page) - heatmap(values, colour_scale(values))[0]).max() <= 2
    assert verdict(page) == "red"  # what the model says stays
    assert re.search(r"Explained in \d+ ms", page.locator("#status").inner_text())

    page.locator("#versus select").select_option("red")
    page.wait_for_selector(".equation:has-text('difference of the logits')")
    difference = number(page.locator(".equation b").last.inner_text())
    assert difference == pytest.approx(float(why.logits[0, 1] - why.logits[0, 0]), abs=0.011)
    assert page.locator(".legend").inner_text().split("\n")[0] == "for red"


@pytest.mark.parametrize("size", [(16, 16), (97, 61), (33, 240), (7, 9)])
def test_pictures_are_seen_as_python_sees_them(page, tmp_path, size):
    """Larger, smaller, wide and tall: the same numbers as codanet.read_image and model.explain."""
    for name, model in {"<deep>": deep(), "grey": grey()}.items():
        page.locator("#model select").select_option(name)
        settled(page, "predicted")
        give_and_wait(page, png(noise(*size)))
        found = json.loads(saved(page, "numbers", tmp_path).read_text())
        why = read(noise(*size), model)
        order = why.logits[0].argsort(descending=True)
        assert [each["class"] for each in found["classes"]] == [model.class_names[c] for c in order]
        close = 1e-5 if size == (16, 16) else 0.02  # rounding of a pixel to the next of 255 shades
        np.testing.assert_allclose([each["logit"] for each in found["classes"]], why.logits[0, order], atol=close)
        expected = why.pixels[0, order[0]].numpy()
        assert np.abs(found["shown"]["contributions"] - expected).max() <= max(close / 10, 1e-6)
        total = np.sum(found["shown"]["contributions"]) + found["bias"]
        assert total == pytest.approx(found["shown"]["logit"], abs=1e-4)


def test_a_file_that_is_being_chosen_outlives_the_tiles(page):
    """The tiles are drawn anew with every picture and model; a dialog that was opened before gives its file after."""
    tile = f"#picker .tile[data-key='upload-{next_number(page)}'][aria-pressed='true']"
    page.evaluate("window.chosen = document.querySelector('#picker .file')")
    page.locator("#model select").select_option("grey")
    page.wait_for_selector("#about:has-text('grey')")
    settled(page, "predicted")
    assert page.evaluate("window.chosen.isConnected && window.chosen === document.querySelector('#picker .file')")
    page.evaluate_handle("window.chosen").as_element().set_input_files(
        {"name": "late.png", "mimeType": "image/png", "buffer": png(noise(16, 16))}
    )
    page.wait_for_selector(tile)


def test_drag_a_box_and_read_its_part(page):
    upload(page, halves(16, "red", "blue"), "red")
    why = read(halves(16, "red", "blue"))
    drag(page, (0.01, 0.01), (0.49, 0.99))
    until(page, "!document.querySelector('#region .later')")
    found = rows(page)
    for c, name in enumerate(("red", "green", "blue")):
        inside, outside, bias, logit = found[name]
        assert inside == pytest.approx(float(why.pixels[0, c, :, :8].sum()), abs=0.006)
        assert outside == pytest.approx(float(why.pixels[0, c, :, 8:].sum()), abs=0.006)
        assert inside + outside + bias == pytest.approx(logit, abs=0.02)  # four numbers, each rounded
    assert "8 × 16 pixels, 50% of the picture" in page.locator("#region").inner_text()
    expect_the_box_to_stay_move_and_go(page)


def test_the_slider_fades_and_the_picture_is_seen_as_the_model_sees_it(page):
    opacity = "s => Number(getComputedStyle(document.querySelector(s)).opacity)"
    for value, cover, heat in (("0", 0, 0), ("0.5", 1, 0), ("1", 1, 1)):
        page.locator("#fade input").fill(value)
        until(page, f"({opacity})('.stage .heat') === {heat} && ({opacity})('.stage .cover') === {cover}")
    page.locator("#seen input").check()
    until(page, "document.querySelector('.stage .seen').getBoundingClientRect().width > 100")
    assert page.locator(".stage .photo").first.bounding_box()["width"] == 0


def test_multi_image(page):
    for colour, name in (("red", "red"), ("lime", "green"), ("blue", "blue")):
        upload(page, Image.new("RGB", (32, 32), colour), name)
    expect_a_multi_image_of_three(page)
    drag(page, (0.02, 0.02), (0.48, 0.48))
    until(page, "!document.querySelector('#region .later')")
    assert rows(page)["blue"][0] > 0  # the cell of the blue picture
    page.locator("#picker .tile[data-key^='upload']").first.click()  # back to a single one
    page.wait_for_selector(".stage[data-width='16']")


def test_pictures_that_are_no_longer_offered_are_forgotten_and_left_out_of_a_multi_image(page):
    page.evaluate("state.mixed = []")
    upload(page, Image.new("RGB", (16, 16), "red"), "red")
    chosen = page.locator("#mixer .tile").first.get_attribute("data-key")
    page.locator("#mixer .tile").first.click()
    page.wait_for_selector("#mixer .order:has-text('1')")
    for _ in range(page.evaluate("MOST_UPLOADS")):
        upload(page, Image.new("RGB", (16, 16), "blue"), "blue")
    assert page.locator("#mixer .tile[data-key^='upload']").count() == page.evaluate("MOST_UPLOADS")
    assert page.evaluate(f"!canvases.has('{chosen}') && state.mixed.includes('{chosen}')")
    page.locator("#two").click()
    until(page, "document.querySelectorAll('#cells figure').length === 4")
    captions = page.locator("#cells figcaption").all_inner_texts()
    assert [caption.split("\n")[0] for caption in captions] == ["blue"] * 4
    assert page.locator("#message").is_hidden()
    page.evaluate("state.mixed = []")


def test_cells_lie_on_their_pictures_where_these_are_not_square(page):
    page.locator("#model select").select_option("wide")
    settled(page, "predicted")
    page.locator("#two").click()
    until(page, "document.querySelectorAll('#cells figure').length === 4")
    boxes = page.evaluate(
        """[...document.querySelectorAll('#cells figure')].map((figure) => ['img', '.cell'].map((name) => {
          const { left, top, width, height } = figure.querySelector(name).getBoundingClientRect();
          return [left, top, width, height];
        }))"""
    )
    for place, ((left, top, width, height), cell) in enumerate(boxes):
        row, column = divmod(place, 2)
        assert width / height == pytest.approx(16 / 12, rel=0.02)
        assert cell == pytest.approx(
            [left + column * width / 2, top + row * height / 2, width / 2, height / 2], abs=1.5
        )


def test_a_picture_is_saved_without_the_maps_of_all_classes_and_the_numbers_with_them(page, tmp_path):
    page.evaluate("window.afterwards = later; later = () => {}")  # nothing is computed that nobody waits for
    try:
        upload(page, halves(16, "red", "blue"), "red")
        saved(page, "picture", tmp_path)
        assert page.evaluate("state.reading.maps.size") == 1
        saved(page, "numbers", tmp_path)
        assert page.evaluate("state.reading.maps.size") == 3
    finally:
        page.evaluate("later = window.afterwards")


def test_save_the_picture_and_the_numbers(page, tmp_path):
    upload(page, halves(16, "red", "blue"), "red")
    drag(page, (0.01, 0.01), (0.49, 0.99))
    picture, numbers = saved(page, "picture", tmp_path), saved(page, "numbers", tmp_path)
    assert (picture.name, numbers.name) == ("why-red.png", "why-red.json")
    card = Image.open(picture)
    assert card.format == "PNG"
    assert card.width > 3 * 480
    found = json.loads(numbers.read_text())
    why = read(halves(16, "red", "blue"))
    assert np.allclose(found["shown"]["contributions"], why.pixels[0, 0].numpy(), atol=1e-6)
    assert found["box"] == [0, 0, 8, 16]
    assert found["codanet"] == codanet.__version__
    assert len(found["classes"]) == 3


def test_another_model(page):
    names = page.locator("#model option").all_inner_texts()
    assert names == ["colours", "<deep>", "grey", "wide"]
    page.locator("#model select").select_option("<deep>")
    until(page, "document.querySelectorAll('#bars .class').length === 4")
    assert NASTY[1] in page.locator("#bars").inner_text()  # as words
    assert "16 × 16 pixels, RGB" in page.locator("#about").inner_text()
    upload(page, noise(20, 20), NASTY[int(read(noise(20, 20), deep()).logits.argmax())])


def test_dropped_and_pasted(page):
    expect_what_is_dropped_or_pasted_to_be_read(page)


def test_pictures_of_every_kind(page):
    """Turned by EXIF, transparent, grey, with a palette; each as codanet.read_image reads it."""
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    halves(64, "red", "blue").save(turned, "PNG", exif=exif)
    clear = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    for content in (turned.getvalue(), png(clear), png(noise(16, 16).convert("L")), png(halves().convert("P"))):
        give_and_wait(page, content)
        why = read(content)
        logit = number(page.locator(".equation b").last.inner_text())
        assert logit == pytest.approx(float(why.logits.max()), abs=0.02)


def test_bad_files_are_answered_in_words(page):
    upload(page, Image.new("RGB", (64, 64), "blue"), "blue")
    bad = {
        "empty": b"",
        "words": b"this is no picture",
        "cut": png(noise(64, 64))[:60],
        "script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    }
    for kind, content in bad.items():
        give(page, content, f"{kind}.png")
        page.locator("#message", has_text="not a picture this browser can read").wait_for()
        assert verdict(page) == "blue"
        page.locator("#message button").click()
        page.wait_for_selector("#message", state="hidden")
    upload(page, Image.new("RGB", (64, 64), "red"), "red")


def test_on_a_phone(visit):
    page = upload_from_a_phone(visit)
    assert 320 < page.locator(".stage").bounding_box()["width"] <= 390
    expect_to_fit(page, 390, "#picker", "#viewer", "#bars", "#region", ".sentence", ".more")


def test_dark_and_light(page):
    expect_light_and_dark(page)


def test_for_a_screen_reader(page):
    """Every control has a name, and what happens is said."""
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    assert page.locator("#message").get_attribute("role") == "alert"
    unnamed = """() => [...document.querySelectorAll('button, select, input, .stage, img')].filter(
        (e) => !(e.textContent.trim() || e.title || e.hasAttribute('aria-label') || e.hasAttribute('alt')
                 || e.labels?.length)).length"""
    assert page.evaluate(unnamed) == 0
    page.locator("#bars .class").nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#bars .class.shown:focus")  # where one was, one stays


def test_the_policy_forbids_every_request(visit, browser, written):
    """Even a script that got into the page could not send anything."""
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', written.path.read_text())[1]
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert "http" not in policy
    context = browser.new_context()
    page = context.new_page()
    asked = []
    context.route("http://**", lambda route: (asked.append(route.request.url), route.abort()))
    page.goto(written.path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=PATIENCE)
    for attempt in (
        "fetch('http://example.com/').then(() => 'sent', () => 'refused')",
        "new Promise((done) => Object.assign(new Image(), { onload: () => done('sent'), "
        "onerror: () => done('refused'), src: 'http://example.com/a.png' }))",
    ):
        assert page.evaluate(attempt) == "refused"
    context.close()
    assert asked == []


def test_without_the_engine(tmp_path, monkeypatch):
    """No npm and no network: one sentence, and no half file."""
    monkeypatch.setenv("CODANET_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(download.shutil, "which", lambda name: None)

    def cut(*_, **__):
        raise urllib.error.URLError(OSError(101, "Network is unreachable"))

    monkeypatch.setattr(download.urllib.request, "urlopen", cut)
    with pytest.raises(DataError, match="neither through npm .* nor from its address") as caught:
        pages.page({"colours": colour_model()}, tmp_path / "why.html")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "why.html").exists()
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "is a folder"), ("why.txt", "does not end in .html"), ("file/why.html", "could not be written")],
)
def test_a_place_that_will_not_do(ready, tmp_path, name, words):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=words):
        pages.page({"colours": colour_model()}, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_shown():
    with pytest.raises(ValueError, match="no model was given"):
        pages.page({}, "why.html")
    with pytest.raises(ValueError, match="images of 4 channels"):
        pages.page({"four": CoDANet([Layer(2, 2)], image_channels=4)}, "why.html")


def test_command_line(ready, tmp_path, capsys):
    codanet.save(colour_model(), tmp_path / "colours.safetensors")
    path = tmp_path / "out" / "why.html"
    assert main(["page", "cifar10", str(tmp_path / "colours.safetensors"), "-o", str(path), "--half"]) == 0
    said = capsys.readouterr().out
    assert "cifar10: logits within" in said
    assert "colours: logits within" in said
    assert path.stat().st_size < 10e6
    (tmp_path / "bad.safetensors").write_bytes(b"damaged")
    assert main(["page", str(tmp_path / "bad.safetensors"), "-o", str(tmp_path / "bad.html")]) == 2
    assert "cannot be read as safetensors" in capsys.readouterr().err
    assert not (tmp_path / "bad.html").exists()
