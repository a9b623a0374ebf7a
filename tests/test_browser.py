"""The web page in a real browser: upload, predict, another class, compare, drag a box, download, bad files, a phone."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import codanet
from chromium import until, visits
from codanet import CoDANet
from codanet.app import start
from codanet.models.network import Layer
from colours import colour_model, halves
from visitors import BAD, SOURCES

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served():
    torch.manual_seed(0)
    deep = CoDANet([Layer(6, 2), Layer(4, 2, stride=2)], image_size=16, class_names=("a", "b", "c", "d")).eval()
    page = start({"colours": colour_model(), "deep": deep})
    yield page
    page.close(verbose=False)


@pytest.fixture
def visit(browser, served):
    with visits(browser, served.local_url, ".stage", (served.local_url, "data:", "blob:")) as visit:
        yield visit


@pytest.fixture(scope="module")
def regular(browser, served):
    """One visitor for all tests that need no fresh one: a page takes longer to load than most of them to run."""
    with visits(browser, served.local_url, ".stage", (served.local_url, "data:", "blob:")) as visit:
        yield visit()


@pytest.fixture
def page(regular):
    regular.locator("#seen input").uncheck()
    if regular.locator("#model input").input_value() != "colours":
        choose_model(regular, "colours", 3)
    return regular


def choose_model(page, name: str, classes: int) -> None:
    page.locator("#model input").click()
    page.get_by_role("option", name=name).click()
    page.wait_for_function(f"document.querySelectorAll('#bars .class').length === {classes}")


def give(page, content: bytes, name: str = "picture.png") -> None:
    page.set_input_files(".file", {"name": name, "mimeType": "application/octet-stream", "buffer": content})


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def next_number(page) -> int:
    """That this visitor's next picture will have."""
    return 1 + max([int(key.split("-")[1]) for key in keys(page)], default=0)


def give_and_wait(page, content: bytes, name: str = "picture.png") -> None:
    """Until it is the picture on show."""
    number = next_number(page)
    give(page, content, name)
    page.wait_for_selector(f"#picker .tile[data-key='upload-{number}'][aria-pressed='true']")


def upload(page, image: Image.Image, expected: str) -> None:
    give_and_wait(page, png(image))
    expect_verdict(page, expected)


def expect_verdict(page, expected: str) -> None:
    until(page, f"document.querySelector('.verdict strong').textContent === {json.dumps(expected)}")


def keys(page) -> list[str]:
    """Of this visitor's own pictures."""
    return [tile.get_attribute("data-key") for tile in page.locator("#picker [data-key^='upload']").all()]


def verdict(page) -> str:
    return page.locator(".verdict strong").inner_text()


def shown_map(page) -> np.ndarray:
    """The colours of the contribution map on the screen, [H, W, 3]."""
    source = page.locator(".stage .heat").get_attribute("src")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB")).astype(int)


def drag(page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one place of the picture to another, as shares of it."""
    page.locator(".stage").scroll_into_view_if_needed()
    frame = page.locator(".stage").bounding_box()
    places = [(frame["x"] + x * frame["width"], frame["y"] + y * frame["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=5)
    page.mouse.up()


def number(words: str) -> float:
    return float(words.replace("−", "-").replace("+", ""))


def rows(page) -> dict[str, list[float]]:
    """The region's table: inside, outside, b0 and logit of every class."""
    page.wait_for_selector("#region .parts")
    found = {}
    for row in page.locator("#region .parts tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        found[row.locator("th").inner_text()] = [number(cell) for cell in cells[-4:]]
    return found


def read(image: Image.Image):
    model = colour_model()
    return model, model.explain(codanet.read_image(image, model)[None], "all")


def expect_the_box_to_stay_move_and_go(page) -> None:
    """A box of 8 x 16 stays with another class, is made narrower by the keyboard, and removed by it."""
    page.locator("#bars .class").nth(2).click()
    page.wait_for_selector("#region tr.shown:has-text('green')")
    assert page.locator(".stage .box").is_visible()
    page.locator(".stage").focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_selector("#region:has-text('7 × 16 pixels')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#region:has-text('Drag a box')")
    assert not page.locator(".stage .box").is_visible()


def expect_what_is_dropped_or_pasted_to_be_read(page) -> None:
    for name, colour, expected in (("drop", "lime", "green"), ("paste", "blue", "blue")):
        page.evaluate(
            """([name, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "a.png", { type: "image/png" }));
                const options = { bubbles: true, cancelable: true };
                const event = name === "drop" ? new DragEvent("drop", { ...options, dataTransfer: data })
                                              : new ClipboardEvent("paste", { ...options, clipboardData: data });
                document.body.dispatchEvent(event);
            }""",
            [name, list(png(Image.new("RGB", (20, 20), colour)))],
        )
        expect_verdict(page, expected)


def expect_screen(page, scheme: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    until(page, {"dark": f"Math.max(...{colour}) < 60", "light": f"Math.min(...{colour}) > 230"}[scheme], seconds=10)


def expect_light_and_dark(page) -> None:
    """As the visitor's screen was when the page was loaded, and as it becomes."""
    expect_screen(page, "light")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        expect_screen(page, scheme)


def upload_from_a_phone(visit):
    """A dark one, 390 points wide."""
    screen = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "color_scheme": "dark"}
    page = visit(is_mobile=True, has_touch=True, **screen)
    expect_screen(page, "dark")
    upload(page, halves(16, "red", "blue"), "red")
    assert page.evaluate("document.documentElement.scrollWidth <= 390 && innerWidth === 390")
    return page


def expect_to_fit(page, width: int, *parts: str) -> None:
    """Each of these parts of a page lies within its width."""
    for part in parts:
        box = page.locator(part).first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def expect_a_multi_image_of_three(page) -> None:
    """Blue, green, red, the newest first, and the fourth cell left over, once they are there to choose from."""
    for place in (0, 1, 2):
        page.locator("#mixer .tile").nth(place).click()
        page.wait_for_selector(f"#mixer .order:has-text('{place + 1}')")
    page.locator("#two").click()
    until(page, "document.querySelectorAll('#cells figure').length === 4")
    captions = page.locator("#cells figcaption").all_inner_texts()
    assert [caption.split("\n")[0] for caption in captions[:3]] == ["blue", "green", "red"]
    assert page.locator(".stage").get_attribute("data-width") == "32"
    assert verdict(page) == "4 pictures"


def test_upload_predict_and_choose_another_class(page):
    upload(page, Image.new("RGB", (64, 64), "blue"), "blue")
    upload(page, halves(160, "red", "lime"), "red")
    _, why = read(halves(160, "red", "lime"))
    listed = page.locator("#bars .class").all_inner_texts()
    assert [line.split("\n")[0] for line in listed] == ["red", "green", "blue"]
    assert f"{100 * why.probabilities[0, 0]:.1f} %" in listed[0]
    colours = shown_map(page)
    assert colours.shape == (16, 16, 3)
    assert (colours[:, 0, 0] > colours[:, 0, 2]).all()  # red speaks for red
    assert (colours[:, -1, 2] > colours[:, -1, 0]).all()  # green against it

    page.locator("#bars .class").nth(1).click()
    page.wait_for_selector("#bars .class.shown:has-text('green')")
    page.wait_for_selector(".legend:has-text('for green')")
    colours = shown_map(page)
    assert (colours[:, 0, 2] > colours[:, 0, 0]).all()
    assert (colours[:, -1, 0] > colours[:, -1, 2]).all()
    assert verdict(page) == "red"  # what the model says stays

    page.locator("#versus input").click()
    page.get_by_role("option", name="red").click()
    page.wait_for_selector(".legend:has-text('for red')")
    page.wait_for_selector(".equation:has-text('difference of the logits')")
    difference = number(page.locator(".equation b").last.inner_text())
    assert difference == pytest.approx(float(why.logits[0, 1] - why.logits[0, 0]), abs=0.011)


def test_drag_a_box_and_read_its_part(page):
    upload(page, halves(16, "red", "blue"), "red")
    model, why = read(halves(16, "red", "blue"))
    drag(page, (0.01, 0.01), (0.49, 0.99))
    found = rows(page)
    for c, name in enumerate(("red", "green", "blue")):
        inside, outside, bias, logit = found[name]
        assert inside == pytest.approx(float(why.pixels[0, c, :, :8].sum()), abs=0.006)
        assert outside == pytest.approx(float(why.pixels[0, c, :, 8:].sum()), abs=0.006)
        assert bias == pytest.approx(model.logit_bias, abs=0.006)
        assert inside + outside + bias == pytest.approx(logit, abs=0.02)  # four numbers, each rounded
    assert "8 × 16 pixels, 50% of the picture" in page.locator("#region").inner_text()
    place = "(({ style }) => `${style.left} ${style.width} ${style.height}`)(document.querySelector('.stage .box'))"
    page.wait_for_function(f"{place} === '0% 50% 100%'")

    expect_the_box_to_stay_move_and_go(page)


def test_the_slider_fades_and_the_picture_is_seen_as_the_model_sees_it(page):
    opacity = "s => Number(getComputedStyle(document.querySelector(s)).opacity)"
    slider = page.locator("#fade input[type=range]")
    for value, cover, heat in ((0, 0, 0), (0.5, 1, 0), (1, 1, 1)):
        slider.evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", value)
        page.wait_for_function(f"({opacity})('.stage .heat') === {heat} && ({opacity})('.stage .cover') === {cover}")
    assert page.locator(".stage .seen").bounding_box()["width"] == 0
    page.locator("#seen input").check()
    page.wait_for_function("document.querySelector('.stage .seen').getBoundingClientRect().width > 100")
    assert page.locator(".stage .photo").first.bounding_box()["width"] == 0


def test_compare_with_other_methods(page):
    upload(page, halves(64, "red", "lime"), "red")
    page.locator("#compare").click()
    page.wait_for_function("document.querySelectorAll('#comparison figure:not(.waiting)').length === 4")
    captions = page.locator("#comparison figcaption").all_inner_texts()
    assert [caption.split("\n")[0] for caption in captions] == ["CoDA", "IxG", "IntGrad", "GradCAM"]
    assert all(re.search(r"\d+ ms|\d\.\d s", caption) for caption in captions)
    page.locator("#bars .class").nth(1).click()  # what was compared was another class
    page.wait_for_function("document.querySelectorAll('#comparison figure').length === 0")


def test_multi_image(page):
    for colour, name in (("red", "red"), ("lime", "green"), ("blue", "blue")):
        upload(page, Image.new("RGB", (32, 32), colour), name)
    page.get_by_role("tab", name="Multi-image").click()
    expect_a_multi_image_of_three(page)
    drag(page, (0.02, 0.02), (0.48, 0.48))
    assert rows(page)["blue"][0] > 0  # the cell of the blue picture
    page.locator("#picker .tile").nth(1).click()  # back to a single one
    page.wait_for_selector(".stage[data-width='16']")


def test_download_the_picture_and_the_numbers(page, tmp_path):
    upload(page, halves(16, "red", "blue"), "red")
    drag(page, (0.01, 0.01), (0.49, 0.99))
    rows(page)
    page.get_by_role("tab", name="Take it with you").click()
    files = {}
    for button in ("picture", "numbers", "table", "table"):
        with page.expect_download() as waiting:
            page.locator(f"#save-{button}").click()
        files[button] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[button])
    assert [path.name for path in files.values()] == ["why-red.png", "why-red.json", "why-red.csv"]
    assert Image.open(files["picture"]).format == "PNG"
    numbers = json.loads(files["numbers"].read_text())
    _, why = read(halves(16, "red", "blue"))
    assert np.allclose(numbers["shown"]["contributions"], why.pixels[0, 0].numpy(), atol=1e-6)
    assert numbers["box"] == [0, 0, 8, 16]
    assert files["table"].read_text(encoding="utf-8-sig").splitlines()[1].startswith("red,")


def test_another_model(page):
    choose_model(page, "deep", 4)
    page.get_by_role("tab", name="This model").click()
    assert "16 × 16 pixels, RGB" in page.locator("#about").inner_text()


def test_bad_files_are_answered_in_words(page, served):
    """The toast says what is wrong, the picture before stays, and the next good one is read."""
    upload(page, Image.new("RGB", (64, 64), "blue"), "blue")
    for kind, (content, words) in BAD.items():
        give(page, content, f"{kind}.png")
        toast = page.locator(".toast-body", has_text=words)
        toast.first.wait_for()
        assert "Traceback" not in toast.first.inner_text()
        for close in page.locator(".toast-close").all():
            close.click()
        page.wait_for_function("document.querySelectorAll('.toast-body').length === 0")
        assert verdict(page) == "blue"
        assert page.request.get(served.local_url).ok
    give(page, b"\0" * (codanet.app.session.MOST_BYTES + 1), "large.png")
    page.locator(".toast-body", has_text="larger than the 16 MiB").wait_for()
    upload(page, Image.new("RGB", (64, 64), "red"), "red")


def test_odd_files_are_read(visit, served):
    page = visit()
    count = page.locator("#picker .tile").count()
    for place, (kind, content) in enumerate(SOURCES.items(), start=1):
        give(page, content, f"{kind}.bin")
        key = f"#picker .tile[data-key='upload-{place}'][aria-pressed='true']"
        page.wait_for_selector(key)
        assert page.request.get(served.local_url).ok
    assert page.locator("#picker .tile").count() == count + 9  # the last nine are kept
    assert page.locator(".toast-body").count() == 0


def test_dropped_and_pasted(page):
    expect_what_is_dropped_or_pasted_to_be_read(page)


def test_two_visitors_do_not_see_each_other(page, visit):
    one, other = visit(), page
    upload(one, Image.new("RGB", (8, 8), "lime"), "green")
    upload(other, Image.new("RGB", (8, 8), "blue"), "blue")
    assert verdict(one) == "green"
    assert one.locator("#picker [data-key^='upload']").count() == 1
    drag(one, (0.1, 0.1), (0.9, 0.9))
    assert max(rows(one), key=lambda name: rows(one)[name][3]) == "green"


def test_on_a_phone(visit):
    page = upload_from_a_phone(visit)
    stage = page.locator(".stage")
    stage.scroll_into_view_if_needed()
    frame = stage.bounding_box()
    assert 320 < frame["width"] <= 390
    touch = page.context.new_cdp_session(page)

    def finger(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": frame["x"] + x * frame["width"], "y": frame["y"] + y * frame["height"]} for x, y in places]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    finger("touchStart", (0.02, 0.02))
    for share in (0.2, 0.35, 0.49):
        finger("touchMove", (share, 2 * share))
    finger("touchEnd")
    assert rows(page)["red"][0] > 0
    assert "8 × 16 pixels" in page.locator("#region").inner_text()
    expect_to_fit(page, 390, "#picker", "#viewer", "#bars", "#region", ".sentence")


def test_dark_and_light(page):
    expect_light_and_dark(page)


def test_nothing_is_written_to_disk(page):
    from gradio.utils import get_upload_folder

    before = set(Path(get_upload_folder()).rglob("*"))
    upload(page, Image.new("RGB", (8, 8), "lime"), "green")
    assert set(Path(get_upload_folder()).rglob("*")) == before
