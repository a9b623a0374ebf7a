"""experiments/peers.py: every network for the same time, judged alike."""

import argparse
import json
import math

import pytest
import torch

import codanet
from codanet.data import ImageData
from codanet.data.split import MemorySplit
from codanet.data.tiling import TooFewImages
from codanet.models.peers import create_peer
from codanet.plot import save

pytestmark = pytest.mark.usefixtures("one_thread")


def two_classes(images: int) -> ImageData:
    pixels = torch.randint(0, 256, (images, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = MemorySplit(pixels, torch.arange(images) % 2)
    return ImageData("two", ("a", "b"), split, split, (32, 32), 3, "0" * 64)


def test_the_comparison_trains_is_taken_up_again_and_drawn(tmp_path):
    """Its schedule, a run that goes on where it stopped, and a table in which a network may lack grids."""
    import peers

    model = create_peer("resnet20")
    assert [peers.at(share, model, 32)[1] for share in (0, 0.2, 0.65, 1)] == [16, 20, 32, 32]
    assert [peers.at(share, model, 64)[1] for share in (0, 0.2, 0.65, 1)] == [32, 40, 64, 64]
    assert peers.at(0.25, model, 32)[0] == 1
    assert [round(peers.at(share, codanet.create_model("nano_coda"), 32)[2]) for share in (0, 1)] == [1000, 80000]
    data = two_classes(256)
    weights, first = peers.trained("bcos_resnet20", data, tmp_path, 0.3)
    assert first.step >= 1
    assert 0 <= first.accuracy <= 1
    again = peers.trained("bcos_resnet20", data, tmp_path, 0.3)[1]
    assert again == first  # its time is over
    assert codanet.load(weights).provenance["steps"] == first.step
    longer = peers.trained("bcos_resnet20", data, tmp_path, first.seconds + 0.1)[1]
    kept = torch.load(tmp_path / "last.pt", weights_only=True)["progress"]
    assert kept["step"] == longer.step > first.step  # given more time, it keeps its end and is measured again
    counted = peers.trained("bcos_resnet20", data, tmp_path, 0.1, steps=longer.step + 1)[1]
    assert counted.step == longer.step + 1  # whatever time they take
    facts = {"network": "A", "parameters": 2e6, "hours": 0.5, "maps": "gradcam", "ms_per_map": 2.0}
    facts |= {"accuracy": 0.5, "accuracy_interval": [0.4, 0.6], "accuracy_n": 9}
    facts |= {"removal": 0.7, "removal_interval": [0.6, 0.8], "removal_n": 7}
    maps = {"localisation": 0.3, "localisation_interval": [0.2, 0.4], "localisation_n": 8}
    words = peers.table([facts, {**facts, **maps, "network": "B", "accuracy": 0.6}])
    assert words.splitlines()[2].startswith(
        "| B | 2.00 M | 0.50 | 0.600 (0.400 to 0.600; 9) | gradcam | 0.300 (0.200 to 0.400; 8)"
    )
    assert "sure of too few images" in words
    picture = save(peers.picture([facts, {**facts, **maps}]), tmp_path / "peers.png")
    assert picture.stat().st_size > 5000


def test_the_comparison_makes_networks_for_the_size_of_its_pictures():
    import peers

    for name in ("s_coda_r1_8", "tiny_coda", "senn"):
        assert peers.untrained(name, ("a", "b"), 64).image_size == (64, 64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "'0' is not above 0"),
        (["--minutes", "-1"], "'-1' is not above 0"),
        (["--minutes", "nan"], "'nan' is not above 0"),
        (["--steps", "0"], "'0' is not above 0"),
        (["--threads", "x"], "'x' is not a whole number"),
    ],
)
def test_the_comparison_refuses_numbers_that_would_never_end(words, said, capsys):
    import peers

    with pytest.raises(SystemExit):
        peers.main(words)
    assert said in capsys.readouterr().err


def test_the_comparison_says_in_a_sentence_that_data_are_missing(tmp_path, capsys):
    import peers

    assert peers.main(["--root", str(tmp_path / "none.zip"), "--output", str(tmp_path), "--threads", "1"]) == 2
    assert capsys.readouterr().err.startswith("peers: ")


def test_the_comparison_trains_nothing_if_a_network_is_unknown(monkeypatch, tmp_path, capsys):
    import peers

    monkeypatch.setattr(peers, "trained", lambda *_: pytest.fail("it was trained"))
    monkeypatch.setattr(peers, "load_data", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(SystemExit):
        peers.main(["--networks", "resnet20,resnet65", "--output", str(tmp_path)])
    assert "unknown network 'resnet65': did you mean 'resnet56'" in capsys.readouterr().err


def test_a_network_without_maps_of_its_own_has_its_method_chosen_on_grids():
    import peers

    data, post_hoc = two_classes(4), ("gradcam", "ixg")
    assert list(peers.choice(create_peer("senn", num_classes=2), data, post_hoc)) == ["contributions"]
    unsure = peers.choice(create_peer("resnet20", num_classes=2).eval(), data, post_hoc)
    assert list(unsure) == ["gradcam"]  # two classes fill no grid of nine
    assert math.isnan(unsure["gradcam"])


def test_a_network_that_is_sure_of_too_few_images_is_judged_without_localisation(monkeypatch, tmp_path, capsys):
    import peers

    asked = []

    def evaluate(models, data, methods, metrics, folder, **options):
        asked.append(tuple(metrics))
        if "localisation" in metrics:
            raise TooFewImages("there are 3 such images")
        return "results"

    monkeypatch.setattr(peers, "evaluate", evaluate)
    options = argparse.Namespace(grids=50, images=8, root=None, data="cifar10")
    assert peers.judged("gradcam", tmp_path / "w", tmp_path / "resnet20", options) == "results"
    assert asked == [peers.METRICS, ("accuracy", "removal-least")]
    assert "resnet20: there are 3 such images" in capsys.readouterr().out

    def broken(*_, **__):
        raise ValueError("no such data")

    monkeypatch.setattr(peers, "evaluate", broken)
    with pytest.raises(ValueError, match="no such data"):  # the caller's to mend
        peers.judged("gradcam", tmp_path / "w", tmp_path / "resnet20", options)


def test_what_is_published_has_the_networks_that_have_had_this_time(tmp_path):
    import peers

    options = argparse.Namespace(output=tmp_path, data="cifar10", minutes=30.0, threads=1)
    facts = {"parameters": 2e6, "hours": 0.5, "maps": "gradcam", "ms_per_map": 2.0}
    for name in ("accuracy", "localisation", "removal"):
        facts |= {name: 0.5, f"{name}_interval": [0.4, 0.6], f"{name}_n": 9}
    for minutes, name in ((30.0, "resnet20"), (30.0, "senn"), (1.0, "vgg19_bn")):
        folder = peers.place(argparse.Namespace(**{**vars(options), "minutes": minutes}), name)
        folder.mkdir(parents=True)
        (folder / "row.json").write_text(json.dumps({"network": peers.TITLES[name], **facts}), encoding="utf-8")
    peers.publish(options)
    written = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert {row["network"] for row in written["rows"]} == {peers.TITLES["resnet20"], peers.TITLES["senn"]}
    assert (written["minutes"], written["threads"]) == (30.0, 1)
    words = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert peers.TITLES["senn"] in words
    assert peers.TITLES["vgg19_bn"] not in words
    assert (tmp_path / "peers.png").stat().st_size > 5000
