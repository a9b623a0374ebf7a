"""`codanet explain` from the outside: what is printed and what is drawn."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from codanet import plot, read_image
from codanet._support.pictures import picture_paths
from codanet.cli import explain, main
from codanet.models.hybrid import HybridNet, head_layers
from codanet.models.layer_contributions import layer_contributions
from codanet.plot import gallery
from codanet.plot.gallery import ahead, explain_files
from explained import LEFT, RIGHT, SIDE, TOP, centres, furnish, noise, run, small_model


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A folder to be in."""
    furnish(tmp_path, model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_picture(folder, capsys, model):
    code, out, err = run(capsys, "a.png")
    explanation = model.explain(read_image("a.png", model)[None])
    name, p = explanation.class_name(int(explanation.targets)), explanation.probabilities.max().item()
    assert (code, out.split()) == (0, ["a.png", name, f"{p:.2f}", "why.png"])
    assert "fitted to 16x16 pixels" in err
    assert (folder / "why.png").read_bytes() == plot.png(plot.comparison(explanation))
    assert run(capsys, "a.png")[1].endswith("why-2.png\n")  # nothing is overwritten without being told to


def test_a_page_of_several(folder, capsys, model):
    code, out, _ = run(capsys, "c.png", "a.png", "-o", "all.png", "--palette", "orange-purple")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["c.png", "a.png"]
    assert len({line.index("all.png") for line in out.splitlines()}) == 1  # in columns
    images = torch.stack([read_image(name, model) for name in ("c.png", "a.png")])
    explanation = model.explain(images)
    tops = [
        f"{explanation.class_name(i)} p={explanation.probabilities.max(1).values[n]:.2f}"
        for n, i in enumerate(explanation.targets.tolist())
    ]
    figure = plot.contribution_maps(
        explanation, titles=[f"c.png\n{tops[0]}", f"a.png\n{tops[1]}"], palette="orange-purple"
    )
    assert (folder / "all.png").read_bytes() == plot.png(figure)


def test_a_page_each(folder, capsys, model):
    code, out, _ = run(capsys, ".", "-o", "pages", "--json")
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["image"] for record in records] == ["a.png", "b.png", "c.png"]
    for record in records:
        image = read_image(record["image"], model)
        explanation = model.explain(image[None])
        np.testing.assert_array_equal(centres(record["picture"], LEFT), plot.pictures(image[None])[0])
        np.testing.assert_array_equal(centres(record["picture"], RIGHT), plot.heatmap(explanation.pixels)[0])
        (target,) = record["targets"]
        assert target["positive"] + target["negative"] + target["bias"] == pytest.approx(target["logit"], abs=1e-4)
        assert target == {**target, **record["classes"][0]}
        assert record["classes"][0]["number"] == int(explanation.targets)


def test_a_scale_of_ones_own(folder, capsys, model):
    run(capsys, "a.png", "b.png", "-o", "pages", "--scale", "0.25")
    for name in "ab":
        pixels = model.explain(read_image(f"{name}.png", model)[None]).pixels
        np.testing.assert_array_equal(centres(f"pages/{name}-why.png", RIGHT), plot.heatmap(pixels, 0.25)[0])


def test_targets_and_top(folder, capsys, model):
    code, out, _ = run(capsys, "a.png", "--target", "frog", "--target", "7", "--json", "-o", "why.svg")
    targets = json.loads(out)["targets"]
    assert (code, [target["number"] for target in targets]) == (0, [2, 4])  # "7" is a name here, the fifth
    assert (folder / "why.svg").read_text().startswith("<?xml")
    assert json.loads(run(capsys, "a.png", "--target", "3", "--json")[1])["targets"][0]["class"] == "ship"
    out = run(capsys, "a.png", "--target", "frog")[1]
    assert "  for frog 0." in out
    code, out, _ = run(capsys, "a.png", "--top", "3", "--json", "-o", "why.pdf")
    record = json.loads(out)
    order = model.explain(read_image("a.png", model)[None]).logits[0].topk(3).indices.tolist()
    assert [target["number"] for target in record["targets"]] == order
    assert [each["number"] for each in record["classes"]] == order


def test_beside_other_methods(folder, capsys, model):
    from codanet.attribution import attribute

    assert run(capsys, "a.png", "--compare", "gradcam, ixg", "-o", "page.png")[0] == 0
    assert run(capsys, "a.png", "--compare", "ixg", "--target", "frog", "-o", "cards")[0] == 0
    values = attribute(model, read_image("a.png", model)[None], 2, "ixg")
    third = RIGHT + 240 + 14
    np.testing.assert_array_equal(centres("cards/a-why.png", third), plot.heatmap(values[0])[0])
    code, _, err = run(capsys, "a.png", "--compare", "gradcm")
    assert code == 2
    assert "did you mean 'gradcam'" in err


def test_layer_by_layer(folder, capsys, model):
    assert run(capsys, "a.png", "--layers", "-o", "page.png")[0] == 0
    assert run(capsys, "a.png", "--layers", "-o", "cards")[0] == 0
    last = layer_contributions(model, read_image("a.png", model)[None])[-1]
    dots = np.asarray(Image.open("cards/a-why.png"))
    left = LEFT + 3 * 254
    np.testing.assert_array_equal(
        dots[TOP + 15 : TOP + 240 : 30, left + 15 : left + 240 : 30], plot.heatmap(last[0])[0]
    )


def test_layers_say_which_class_they_lead_to(folder, model):
    paths = [folder / "a.png", folder / "b.png"]
    for number in (1, 2):
        explained = list(explain_files(model, paths[:number], targets=["frog"], layers=True))
        images = [axes for axes in gallery.page(explained).axes if axes.images][:: 1 + len(explained[0].layers)]
        for each, axes in zip(explained, images, strict=True):
            said = int(each.explanation.logits.argmax())
            assert ("for frog p=" if said != 2 else "frog p=") in axes.get_title()


def test_styles(folder, capsys, model):
    for style in plot.STYLES:
        assert run(capsys, "a.png", "--style", style, "-o", style)[0] == 0
        explanation = model.explain(read_image("a.png", model)[None])
        np.testing.assert_array_equal(centres(f"{style}/a-why.png", RIGHT), plot.painted(explanation, style)[0, 0])


def test_moving_pictures(folder, capsys):
    stills = [noise(seed) for seed in range(4)]
    stills[0].save("clip.gif", save_all=True, append_images=stills[1:], duration=50)
    code, out, _ = run(capsys, "clip.gif", "-o", "why.mp4", "--target", "dog", "--json")
    facts = json.loads(out)
    assert (code, facts["class"], facts["frames"], facts["picture"]) == (0, "dog", 4, "why.mp4")
    code, out, _ = run(capsys, "clip.gif")
    assert (code, out.split()[-1]) == (0, "why.gif")
    with Image.open("why.gif") as made:
        assert made.n_frames == 4
    assert run(capsys, "clip.gif", "-o", "first.png")[0] == 0  # as a picture: its first frame
    assert "one class" in run(capsys, "clip.gif", "-o", "why.gif", "--layers")[2]
    assert "give one film" in run(capsys, "clip.gif", "a.png", "-o", "why.gif")[2]
    assert "is what is to be explained" in run(capsys, "clip.gif", "-o", "clip.gif")[2]


def test_too_many_for_one_page(folder, capsys, monkeypatch):
    monkeypatch.setattr(explain, "ON_ONE_PAGE", 2)
    code, _, err = run(capsys, ".", "-o", "why.png")
    assert code == 2
    assert "give a folder, as in -o why" in err
    code, out, _ = run(capsys, ".")  # it makes a folder by itself
    assert (code, len(out.splitlines())) == (0, 3)
    assert (folder / "why" / "b-why.png").exists()


def test_a_picture_is_not_written_over(folder, capsys):
    noise(5).save("a-why.png")
    before = (folder / "a-why.png").read_bytes()
    code, _, err = run(capsys, "a.png", "a-why.png", "-o", ".")
    assert code == 2
    assert "a-why.png is what is to be explained: give -o another name" in err
    assert (folder / "a-why.png").read_bytes() == before
    assert not (folder / "a-why-why.png").exists()


def test_folders_with_a_dot_in_their_name(folder, capsys):
    assert run(capsys, "a.png", "-o", "out.v1/")[0] == 0
    assert (folder / "out.v1" / "a-why.png").exists()
    assert run(capsys, "b.png", "-o", "out.v1")[0] == 0  # it is there by now
    assert (folder / "out.v1" / "b-why.png").exists()
    assert run(capsys, "a.png", "-o", "new/deep/why.png")[0] == 0
    assert run(capsys, "a.png", "-o", "never", "--target", "cta")[0] == 2
    assert not (folder / "never").exists()


def test_work_ahead_is_bounded_and_in_order():
    begun, lock = [], threading.Lock()

    def work(item):
        with lock:
            begun.append(item)
        return item * item

    taken = 0
    for result in ahead(work, range(200), threads=3, window=8):
        assert result == taken * taken
        with lock:
            assert len(begun) - taken <= 8
        taken += 1
    assert taken == 200

    def failing(item):
        if item == 5:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(ahead(failing, range(100), threads=2, window=4))


def test_many_pictures_in_batches(folder, model, monkeypatch):
    monkeypatch.setattr(gallery, "BATCH", 4)
    seen, reading = [], 0
    explain_all, read = model.explain, gallery.read_image

    def counted(images, target=None):
        seen.append(len(images))
        assert reading - sum(seen) <= 2 * 4  # pictures read and not yet explained
        return explain_all(images, target)

    def reader(*arguments, **options):
        nonlocal reading
        reading += 1
        return read(*arguments, **options)

    monkeypatch.setattr(model, "explain", counted)
    monkeypatch.setattr(gallery, "read_image", reader)
    paths = picture_paths(["a.png", "b.png", "c.png"]) * 10
    results = list(explain_files(model, paths))
    assert seen == [4] * 7 + [2]
    assert [result.path for result in results] == paths
    direct = explain_all(torch.stack([read(path, model) for path in paths[:3]]))
    torch.testing.assert_close(results[5].explanation.pixels[0], direct.pixels[2])


def test_photographs_count_as_large_as_they_are_drawn(folder, monkeypatch):
    """A hybrid's are read six times as large here, for the page: 32 of them at a time would be 19 times the memory."""
    model = HybridNet(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), head_layers(5, (4,), 2), image_size=SIDE).eval()
    monkeypatch.setattr(gallery, "BATCH_NUMBERS", 2 * 3 * SIDE * SIDE * (2 + 6 * 6))
    batches, explain = [], model.explain
    monkeypatch.setattr(model, "explain", lambda images, target: batches.append(len(images)) or explain(images, target))
    results = list(explain_files(model, [folder / f"{name}.png" for name in "abc"], dots=6 * SIDE))
    assert batches == [2, 1]
    assert {tuple(each.explanation.images.shape) for each in results} == {(1, 3, 6 * SIDE, 6 * SIDE)}
    (seen, *_) = explain_files(model, [folder / "a.png"])
    assert seen.explanation.images.shape == (1, 3, SIDE, SIDE)


def test_stopped_and_cut_off(folder, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(gallery, "explain_files", stop)
    assert run(capsys, "a.png")[0] == 130

    def closed(*arguments, **options):
        raise BrokenPipeError

    monkeypatch.setattr(gallery, "explain_files", closed)
    assert main(["explain", "model.safetensors", "a.png"]) == 0


def test_no_two_pictures_get_one_name():
    paths = [Path("a/cat.jpg"), Path("b/cat.jpg"), Path("a/cat-2.jpg"), Path("c/cat.png")]
    assert len(set(explain._names(paths, Path("pages")).values())) == 4


def test_threads_are_as_many_as_asked_for(folder, capsys, monkeypatch):
    seen = []
    real = gallery.explain_files
    monkeypatch.setattr(gallery, "explain_files", lambda *a, **k: seen.append(torch.get_num_threads()) or real(*a, **k))
    before = torch.get_num_threads()
    assert run(capsys, "a.png", "--threads", "2")[0] == 0
    assert (seen, torch.get_num_threads()) == ([2], before)


def test_all_classes_of_a_picture_share_the_passes_of_a_method(folder, model, monkeypatch):
    calls = []
    real = gallery.attribute
    monkeypatch.setattr(gallery, "attribute", lambda *a, **k: calls.append(1) or real(*a, **k))
    (explained,) = explain_files(model, [folder / "a.png"], top=3, methods=["ixg"])
    assert len(calls) == 1
    image = read_image(folder / "a.png", model)[None]
    for place, target in enumerate(explained.explanation.targets[0].tolist()):
        alone = real(model, image, [target], "ixg")[0]
        assert torch.allclose(explained.others["IxG"][0, place], alone, rtol=1e-3, atol=1e-5 * alone.abs().max())
