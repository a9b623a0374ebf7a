"""Every claim that experiments/ demonstrates holds on scikit-learn's digits, with a margin; no network."""

import json
import math
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import ablation
import capsules
import classification
import codanet
import eigenvectors
import low_rank
import rank
import result
import temperature
from codanet.data import load_data
from codanet.metrics import Scores
from codanet.models.architectures import ARCHITECTURES

ROOT = Path(__file__).parents[1]
NAMES = re.search(r"^EXPERIMENTS := (.*?)\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)[1]
EXPERIMENTS = NAMES.replace("\\", "").split()
SLOW = {"regularisation", "rank"}  # they train networks that no other experiment uses
DIGITS = ablation.BASES["digits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module", autouse=True)
def less_work():
    """Two thirds of the quick setting's epochs and steps, half the rank, and three temperatures show the same."""
    recipe, quick, full = DIGITS

    def sooner(function, place):
        """The same function, with two thirds of the number that is its argument at this place."""
        return lambda *words: function(*words[:place], words[place] * 2 // 3, *words[place + 1 :])

    with pytest.MonkeyPatch.context() as patch, rank.scaled("nano_coda", ("1/2",)) as names:
        patch.setitem(ablation.BASES, "digits", (recipe, quick | {"epochs": 4, "model": names["1/2"]}, full))
        patch.setitem(temperature.QUICK, "digits", (0.1, 1, 16))
        for module in (eigenvectors, low_rank):
            patch.setattr(module, "maximise", sooner(module.maximise, 2))
        patch.setattr(classification, "train", sooner(classification.train, 3))
        yield


@pytest.fixture(scope="module")
def numbers(folder):
    """Runs an experiment in its quick setting, once, as from the command line; networks are shared between them."""
    made = {}

    def run(name):
        if name not in made:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            state = torch.get_rng_state()
            patch = pytest.MonkeyPatch()
            if name in SLOW:  # what they show takes all of the quick setting
                patch.setitem(ablation.BASES, "digits", DIGITS)
            try:
                assert import_module(name).main(["--quick", "--data", "digits", "--output", str(folder)]) == 0
            finally:
                torch.set_num_threads(threads)
                patch.undo()
            assert torch.equal(torch.get_rng_state(), state)
            made[name] = json.loads((folder / f"{name}.json").read_text())
        return made[name]["numbers"]

    return run


def test_eigenvectors_span_the_digits(numbers):
    found = numbers("eigenvectors")
    assert min(found["angles_before_degrees"]) > 45
    assert max(found["angles_degrees"]) < 4
    assert min(found["cosine_digit_eigenvector"]) > 0.95 > found["cosine_digit_noisy"] + 0.1
    assert max(map(abs, found["eigenvalues_imaginary"])) == 0
    assert found["mean_output"] < found["mean_bound"]


def test_eigenvectors_of_a_known_matrix():
    unit = codanet.DAULinear(5, 1, 2, bias=False)
    with torch.no_grad():  # AB = 3 e1 e1ᵀ + 2 e4 e4ᵀ
        unit.A[:, 0] = torch.tensor([[0.0, 0, 0, 0, 2], [3, 0, 0, 0, 0]])[:, [0, 1, 2, 4, 3]]
        unit.B.copy_(torch.tensor([[0.0, 0, 0, 1, 0], [1, 0, 0, 0, 0]]))
    values, vectors = eigenvectors.eigenvectors(unit)
    assert values.real.tolist() == pytest.approx([3, 2])
    assert vectors.abs().tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    assert eigenvectors.principal_angles(torch.eye(4)[:2], torch.eye(4)[1:3]).tolist() == pytest.approx([0, 90])


def test_low_rank_daus_reach_the_best_angular_reconstruction(numbers):
    found = numbers("low_rank")
    assert len(found["ranks"]) >= 4
    for line in found["ranks"]:
        assert line["dau"] <= line["upper_bound"] + 1e-9
        assert line["dau"] > line["svd"]  # SVD is optimal by distance, not by angle
        assert line["upper_bound"] - line["dau"] < 0.2 * (line["upper_bound"] - line["svd"])
        assert line["shared_subspace"] > 0.99 > 3 * line["random_subspace"]
    assert [line["dau"] for line in found["ranks"]] == sorted(line["dau"] for line in found["ranks"])


def test_the_upper_bound_holds_for_every_subspace_and_is_met_at_the_best():
    images = torch.rand(40, 6, dtype=torch.float64)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        one, other = (torch.linalg.qr(torch.randn(6, 2, generator=generator).double()).Q.T for _ in range(2))
        assert low_rank.angular_objective(images, one) <= low_rank.upper_bound(images, other)
    # on a plane the best subspace is known: it reaches every image
    plane = torch.cat([torch.rand(40, 2).double(), torch.zeros(40, 4).double()], 1)
    best = torch.eye(6, dtype=torch.float64)[:2]
    assert low_rank.upper_bound(plane, best) == pytest.approx(low_rank.angular_objective(plane, best))
    assert low_rank.angular_objective(plane, best) == pytest.approx(plane.norm(dim=1).mean().item())


@pytest.mark.parametrize("model", ["single layer", "five layers"])
def test_classifiers_weight_the_digit_and_not_the_noise(numbers, model):
    found = numbers("classification")[model]
    assert found["accuracy"] > 0.85
    assert found["cosine_weights_image"] > 0.5
    assert abs(found["cosine_weights_noise"]) < 0.12
    assert found["cosine_input_noise"] > 0.3  # which is how much noise there was to follow


def test_capsules_are_daus_before_the_product(numbers):
    found = numbers("capsules")
    assert found["capsule_error"] < 1e-12
    assert found["dau_error"] < 1e-12
    assert found["rank_of_V"] == capsules.RANK
    drift = found["mean_relative_difference_by_iterations"]
    assert drift["1"] < 1e-12
    assert all(drift[str(iterations)] > 0.1 for iterations in capsules.ITERATIONS[1:])


@pytest.mark.parametrize("rescale", ["sq", "l2"])
def test_one_capsule_written_out(rescale):
    """Σ_i c_i W_i u_i of two capsules by hand."""
    u = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]]).double()  # [1, 2 capsules, 2]
    weight = torch.randn(1, 2, 4, 2).double()
    s = weight[0, 0] @ u[0, 0] + weight[0, 1] @ u[0, 1]  # one output capsule: c = 1
    assert torch.allclose(capsules.capsule_layer(u, weight, 1)[0, 0], capsules.squash(s))
    assert torch.allclose(capsules.joined(weight)[0] @ u.flatten(), s)


def runs(found):
    return {run["label"]: run for run in found["runs"]}


def test_localisation_rises_with_the_temperature_and_accuracy_falls_slightly(numbers):
    found = runs(numbers("temperature"))
    shares = [found[label]["localisation"] for label in ("T = 0.1", "T = 1", "T = 16")]
    assert shares[0] > 1 / 9
    assert shares[0] + 0.1 < shares[1]
    assert shares[1] + 0.05 < shares[2]
    assert 0 < found["T = 1"]["accuracy"] - found["T = 16"]["accuracy"] < 0.05


@pytest.mark.slow
def test_regularisation_sharpens_the_maps(numbers):
    found = runs(numbers("regularisation"))
    assert found["λ = 0"]["localisation"] + 0.08 < found["λ = 1"]["localisation"]
    assert found["λ = 1"]["accuracy"] > found["λ = 0"]["accuracy"] - 0.03


@pytest.mark.slow
def test_rank_buys_accuracy(numbers):
    before = dict(ARCHITECTURES)
    found = runs(numbers("rank"))
    assert before == ARCHITECTURES
    assert found["x 1/8"]["parameters"] < 0.3 * found["x 1"]["parameters"]
    assert found["x 1/8"]["accuracy"] + 0.01 < found["x 1"]["accuracy"]


def test_scaled_architectures_are_gone_after_an_error():
    before = dict(ARCHITECTURES)

    def fail():
        with rank.scaled("nano_coda", ("1/4", "1")) as names:
            assert [layer.rank for layer in ARCHITECTURES[names["1/4"]].layers] == [2, 2, 2, 2]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert before == ARCHITECTURES


def test_l2_and_sq_are_much_the_same(numbers):
    found = runs(numbers("rescaling"))
    assert abs(found["SQ"]["accuracy"] - found["L2"]["accuracy"]) < 0.04
    assert abs(found["SQ"]["localisation"] - found["L2"]["localisation"]) < 0.2
    for run in found.values():
        assert run["localisation"] > max(run["localisation_post_hoc"].values()) + 0.1


def test_maps_pass_the_sanity_check(numbers):
    found = numbers("sanity")
    assert len(found["steps"]) == 4
    assert all(abs(likeness) < 0.5 for likeness in found["spearman_mean"])
    assert abs(found["spearman_mean"][-1]) < 0.25
    assert all(abs(likeness) < 0.5 for likeness in found["ssim_mean"])


def test_a_relu_network_shows_less(numbers):
    found = numbers("piecewise_linear")
    coda, relu = found["CoDA-Net"], found["ReLU network"]
    assert min(coda["accuracy"], relu["accuracy"]) > 0.9
    assert coda["localisation"] > relu["localisation"] + 0.15
    assert coda["share_of_logit_left_out"] < 1e-4
    assert relu["share_of_logit_left_out"] > 0.02  # b(x)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXPERIMENTS]
)
def test_every_experiment_leaves_a_figure_and_says_what_made_it(numbers, folder, name):
    numbers(name)
    described = json.loads((folder / f"{name}.json").read_text())
    assert (described["experiment"], described["setting"], described["data"]) == (name, "quick", "digits")
    assert described["versions"]["codanet"] == codanet.__version__
    assert described["versions"]["torch"] == torch.__version__
    assert described["seed"] == 0
    assert all(count > 0 for count in described["n"].values())
    assert described["command"].startswith(f"python experiments/{name}.py --quick --data digits")
    with Image.open(folder / f"{name}.png") as picture:
        assert min(picture.size) > 400
        assert picture.convert("L").getextrema() == (0, 255)


def test_every_experiment_is_in_the_makefile_and_listed_in_the_map():
    page = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    for name in EXPERIMENTS:
        assert "Setting" in (ROOT / "experiments" / f"{name}.py").read_text()
        assert f"experiments/{name}.py" in page


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_measured_on_was_held_out_of_training(seed, tmp_path):
    setting = result.Setting("temperature", "digits", True, seed, tmp_path)
    settings = ablation.base(setting)
    held = load_data(settings.data, seed=settings.seed).val
    assert setting.images().val.digest() == held.digest()


def test_quick_uses_mnist_where_it_is_stored_and_digits_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("CODANET_DATA", str(tmp_path))
    assert result._stored(("digits", "mnist")) == "digits"
    (tmp_path / "mnist.safetensors").touch()
    assert result._stored(("digits", "mnist")) == "mnist"
    assert result._stored(("digits",)) == "digits"


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
def test_the_settings_of_every_data_set_make_a_network(data, quick, tmp_path):
    settings = ablation.base(result.Setting("temperature", data, quick, 3, tmp_path))
    assert (settings.data, settings.seed, settings.temperature_from) == (data, 3, None)
    network = codanet.create_model(settings.model, temperature=settings.temperature, rescale=settings.rescale)
    assert network.temperature == settings.temperature
    assert data in ablation.GRIDS


def test_networks_that_are_sure_of_nothing_have_no_point_in_the_chart():
    data = load_data("digits")
    network = codanet.create_model("nano_coda", image_channels=1, image_size=8)
    found = Scores("accuracy", torch.zeros(len(data.val)).double(), ("",) * len(data.val))
    settings = ablation.base(result.Setting("temperature", "digits", True, 0, Path()))
    figure = ablation.draw([ablation.Run("T = 1", settings, network, found, None)], data, "", "")
    localisation = figure.subfigs[0].axes[0]
    assert [line.get_linestyle() for line in localisation.lines] == [":"]  # chance alone


def test_what_could_not_be_measured_is_null(tmp_path, capsys):
    """One grid has no interval, and one image no spread: the rest of a long experiment is kept."""
    numbers = {"localisation": 0.5, "interval_95": (math.nan, math.nan)}
    outcome = result.Outcome({"grids": 1}, (8, 8), numbers, Figure())
    words = ["--quick", "--data", "digits", "--output", str(tmp_path)]
    assert result.main("one.py", None, lambda setting: outcome, words) == 0
    kept = json.loads((tmp_path / "one.json").read_text())["numbers"]
    assert kept == {"localisation": 0.5, "interval_95": [None, None]}


def test_wrong_input_is_answered_in_a_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert capsules.main(["--quick", "--data", "digits", "--output", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("capsules: ")
    with pytest.raises(SystemExit):
        capsules.main(["--data", "letters"])
    assert "invalid choice: 'letters'" in capsys.readouterr().err


def test_every_path_in_the_paper_map_exists():
    page = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|tests|benchmarks|experiments|docs)/[\w./*-]+)`", page))
    assert len(paths) > 30
    for path in paths:
        assert list(ROOT.glob(path)), path
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (ROOT / "docs" / link).exists(), link


def test_the_map_names_tests_that_exist():
    page = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", page)) - {path.stem for path in (ROOT / "tests").glob("*.py")}
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    for name in named:
        assert f"def {name}(" in written, name


def test_the_map_leaves_out_no_figure_equation_table_or_section():
    page = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    named = re.findall(r"\*\*(.*?)\*\*", page)
    numbers = (*map(str, range(1, 9)), *(f"A{i}" for i in range(1, 8)), *(f"B{i}" for i in range(1, 5)))
    wanted = {f"Fig. {number}" for number in numbers} | {"Table 1", "Table C1", "Table E1", "Algorithm 1"}
    assert wanted | {f"eq. {number}" for number in range(1, 12)} <= set(named)


def test_code_of_the_capsule_page_runs():
    page = (ROOT / "docs" / "capsules.md").read_text(encoding="utf-8")
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(program, "capsules.md", "exec"), {"__name__": "page"})
