"""The loss, and that λ's gradient is the one of the dense matrix."""

import pytest
import torch

from codanet import CoDANet, create_model
from codanet.benchmarks.algorithm1 import Algorithm1Conv2d, Algorithm1Net
from codanet.data import load_data
from codanet.data.augmentation import least_most_or_patches
from codanet.models.network import Layer
from codanet.training.loss import (
    asked_classes,
    classification_loss,
    contributions,
    contributions_term,
    evidence_term,
    mean_weight,
    objective,
    removal_term,
    weight_rows,
    wrong_classes,
)
from nearness import relative


def test_bce_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    p = logits.sigmoid()
    expected = -(torch.log(1 - p[0, 0]) + torch.log(p[0, 1]) + torch.log(1 - p[0, 2])) / 3
    assert classification_loss(logits, torch.tensor([1])).item() == pytest.approx(expected.item())


def test_wrong_classes_are_wrong_and_even():
    labels = torch.arange(5).repeat(4000)
    drawn = wrong_classes(labels, 5, torch.Generator().manual_seed(1))
    assert (drawn != labels).all()
    shares = torch.bincount(drawn[labels == 2], minlength=5) / 4000
    assert shares[2] == 0
    assert (shares[[0, 1, 3, 4]] - 0.25).abs().max() < 0.03
    assert torch.equal(drawn, wrong_classes(labels, 5, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("rescale", ["sq", "l2", "l1"])
def test_gradient_equals_autograd_through_the_dense_matrix(rescale):
    layers = [Layer(3, 2), Layer(4, 3, 3, 2), Layer(3, 2, 1)]
    model = CoDANet(layers, temperature=3.0, image_channels=1, rescale=rescale).double()
    x, labels = torch.rand(2, 1, 4, 5, dtype=torch.float64), torch.tensor([0, 2])
    loss, _ = objective(model, x, labels, regularisation=0.3, generator=torch.Generator().manual_seed(5))
    loss.backward()

    slow = Algorithm1Net.from_model(model)
    hidden = slow.encode(x)
    whole = torch.eye(hidden[0].numel(), dtype=torch.float64).expand(2, -1, -1)
    for layer in slow.layers:  # W_{0→L}, dense and differentiable
        whole = Algorithm1Conv2d.dynamic_matrix.__wrapped__(layer, hidden) @ whole
        hidden = layer(hidden)
    whole = whole.view(2, 3, -1, whole.shape[-1]).sum(2)  # sum-pooling
    wrong = wrong_classes(labels, 3, torch.Generator().manual_seed(5))
    rows = torch.stack([whole[torch.arange(2), labels], whole[torch.arange(2), wrong]])
    expected = classification_loss(slow(x), labels) + 0.3 * rows.abs().mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for layer, other in zip(model.layers, slow.layers, strict=True):
        for mine, theirs in zip((layer.B.grad, layer.A.grad), other.factor_gradients(), strict=True):
            assert relative(mine, theirs) < 1e-9


def test_lambda_zero_does_not_touch_the_rows(monkeypatch):
    model = create_model("nano_coda", image_channels=1)
    monkeypatch.setattr(CoDANet, "align", lambda *_: pytest.fail("rows were computed for λ = 0"))
    loss, _ = objective(model, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    loss.backward()


def test_lambda_gives_sparser_weights():
    """Both learn the digits; with λ the mean |W| is less than half of what it is without."""
    data = load_data("digits")
    images, labels = data.train.images.float() / 255, data.train.labels
    reached = {}
    layers = (Layer(8, 4, stride=2), Layer(16, 8), Layer(10, 8, 1))
    for strength in (0.0, 0.2):
        torch.manual_seed(0)
        model = CoDANet(layers, image_channels=1, temperature=16)
        optimiser = torch.optim.Adam(model.parameters(), 2e-2)
        generator = torch.Generator().manual_seed(0)
        for _ in range(90):
            chosen = torch.randint(len(images), (48,), generator=generator)
            loss, _ = objective(model, images[chosen], labels[chosen], regularisation=strength, generator=generator)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            held = data.val.images.float() / 255
            labels_held = data.val.labels
            targets = torch.stack([labels_held, wrong_classes(labels_held, 10, torch.Generator().manual_seed(1))], 1)
            maps, rows = weight_rows(model)(held, targets)
            logits, weight = model.pool(maps), mean_weight(rows, model.temperature)
        reached[strength] = weight.item(), (logits.argmax(1) == data.val.labels).float().mean().item()
    assert reached[0.2][0] < 0.5 * reached[0.0][0], reached
    assert min(accuracy for _, accuracy in reached.values()) > 0.9, reached


def test_several_labels_and_another_temperature():
    model = create_model("nano_coda", image_channels=1, temperature=16).double()
    images, labels = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.tensor([3, 1])
    wanted = torch.nn.functional.one_hot(labels, 10)
    assert objective(model, images, labels)[0] == objective(model, images, wanted)[0]
    loss, logits = objective(model, images, labels, temperature=4.0)
    colder = create_model("nano_coda", image_channels=1, temperature=4).double()
    colder.load_state_dict(model.state_dict())
    assert loss.item() == pytest.approx(objective(colder, images, labels)[0].item(), rel=1e-12)
    assert torch.equal(logits, model(images))
    with pytest.raises(ValueError, match="leave mosaics out"):
        objective(model, images, wanted, regularisation=0.1)


def test_evidence_term_by_hand():
    maps = torch.tensor([[[[5.0, 1.0]], [[3.0, -7.0]], [[-1.0, -2.0]]]])  # [1, 3, 1, 2]
    # of class 0: classes 1 and 2 are wrong, and only a 3 speaks for one of them, whatever the -7 takes away again
    assert evidence_term(maps, torch.tensor([0]), temperature=2.0).item() == pytest.approx(3 / 2 / 2)
    assert evidence_term(maps, torch.tensor([[1, 1, 0]]), temperature=2.0) == 0
    assert evidence_term(maps, torch.tensor([[1, 1, 1]]), temperature=2.0) == 0  # there is no wrong class


def test_wrong_evidence_joins_the_loss_and_leaves_the_logits():
    model = create_model("nano_coda", image_channels=1, temperature=16).double()
    images, labels = torch.rand(3, 1, 8, 8, dtype=torch.float64), torch.tensor([3, 1, 0])
    plain, logits = objective(model, images, labels, temperature=4.0)
    loss, same = objective(model, images, labels, temperature=4.0, wrong_evidence=0.3)
    maps = model.features(model.encode(images))
    assert torch.equal(logits, same)
    assert loss.item() == pytest.approx((plain + 0.3 * evidence_term(maps, labels, 4.0)).item(), rel=1e-12)


def test_wrong_evidence_presses_what_speaks_for_wrong_classes():
    """Two images of two classes, learnt with and without: both are right, and less speaks for the wrong one."""
    images = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels, left = torch.tensor([0, 1]), {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model = CoDANet((Layer(8, 4), Layer(2, 4, 1)), image_channels=1, temperature=8)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(100):
            loss, logits = objective(model, images, labels, wrong_evidence=weight)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert torch.equal(logits.argmax(1), labels)
        left[weight] = evidence_term(model.features(model.encode(images)), labels, 8).item()
    assert left[1.0] < 0.5 * left[0.0], left


def test_wrong_contributions_are_the_positive_ones_of_explanations():
    """Of a quarter of the batch, at any temperature, beside λ and wrong_evidence; the logits stay as they are."""
    torch.manual_seed(0)
    model = create_model("nano_coda", image_channels=1, temperature=16).double()
    images, labels = torch.rand(8, 1, 8, 8, dtype=torch.float64), torch.arange(8)
    plain, logits = objective(model, images, labels, temperature=4.0)
    wrong = wrong_classes(labels, 10, torch.Generator().manual_seed(2))
    pixels = model.explain(images, wrong).pixels.clamp(min=0).sum((1, 2)) * 4  # T = 4 instead of 16

    def asked(**terms):
        generator = torch.Generator().manual_seed(2)
        return objective(model, images, labels, generator=generator, temperature=4.0, **terms)

    loss, same = asked(wrong_contributions=0.3)
    torch.testing.assert_close(same, logits, rtol=1e-12, atol=1e-12)
    assert loss.item() == pytest.approx((plain + 0.3 * pixels[:2].mean()).item(), rel=1e-10)
    with_evidence = evidence_term(model.features(model.encode(images)), labels, 4.0)
    rows = model.explain(images, torch.stack([labels, wrong], 1)).rows
    expected = plain + 0.2 * mean_weight(rows, 16) + 0.1 * with_evidence + 0.3 * pixels.mean()
    loss, _ = asked(regularisation=0.2, wrong_evidence=0.1, wrong_contributions=0.3)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    with pytest.raises(ValueError, match="leave mosaics out"):
        objective(model, images, torch.nn.functional.one_hot(labels, 10), wrong_contributions=0.1)


def test_contributions_term_by_hand():
    rows = torch.tensor([[[[1.0, -2.0]], [[-3.0, 4.0]]]])  # [1, 2, 1, 2]: the pixels add 1 - 3 and -2 + 4
    added = contributions(rows, torch.ones(1, 2, 1, 2))
    assert added.tolist() == [[[-2, 2]]]
    assert contributions_term(added) == 2


def test_asked_classes_are_the_true_one_or_the_likeliest_other():
    logits = torch.tensor([[5.0, 1.0, 2.0]]).expand(4000, -1)
    labels = torch.arange(2).repeat(2000)
    asked = asked_classes(logits, labels, torch.Generator().manual_seed(0))
    for label, likeliest in ((0, 2), (1, 0)):
        mine = asked[labels == label]
        assert set(mine.tolist()) == {label, likeliest}
        assert (mine == label).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_removal_term_by_hand():
    contributed, gone = torch.tensor([[[1.0, 2.0, -4.0]]]), torch.tensor([[[True, False, True]]])
    assert removal_term(contributed, gone, torch.tensor([-3.0])) == 0
    assert removal_term(contributed, gone, torch.tensor([-3.5])) == 0.5**2 / 2
    assert removal_term(contributed, gone, torch.tensor([2.0])) == 5 - 0.5


def test_nothing_is_wrong_with_removal_where_the_weights_are_constant():
    """With B = 0 every unit's weights are g(b), whatever is removed: the network is linear."""
    torch.manual_seed(0)
    model = create_model("nano_coda", image_channels=1, temperature=2).double()
    with torch.no_grad():
        for layer in model.dau_layers:
            layer.B.zero_()
            layer.A[-1].normal_()  # b
    images, labels = torch.rand(8, 1, 8, 8, dtype=torch.float64), torch.arange(8)
    plain, logits = objective(model, images, labels)
    assert (logits - model(torch.zeros(1, 2, 8, 8, dtype=torch.float64))).abs().max() > 0.1
    loss, _ = objective(model, images, labels, generator=torch.Generator().manual_seed(1), removal_error=1.0)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)


def test_removal_error_is_what_explanations_and_predictions_say():
    """Of a quarter of the batch, at any temperature, beside λ and wrong contributions; the logits stay as they are."""
    torch.manual_seed(0)
    model = create_model("nano_coda", image_channels=1, temperature=0.01).double()
    images, labels = torch.rand(8, 1, 8, 8, dtype=torch.float64), torch.arange(8)
    plain, logits = objective(model, images, labels, temperature=0.005)

    def expected(few):
        generator = torch.Generator().manual_seed(2)
        wrong = wrong_classes(labels, 10, generator)
        asked = asked_classes(logits[:few], labels[:few], generator)
        pixels = model.explain(images[:few], asked).pixels * 2  # T = 0.005 instead of 0.01
        gone = least_most_or_patches(pixels, generator)
        assert 0 < gone.float().mean() < 0.25
        lost = (logits[:few] - model(torch.where(gone[:, None], 0, model.encode(images[:few])))) * 2
        return wrong, removal_term(pixels, gone, lost[torch.arange(few), asked])

    def asked_for(**terms):
        generator = torch.Generator().manual_seed(2)
        return objective(model, images, labels, generator=generator, temperature=0.005, removal_error=0.3, **terms)

    loss, same = asked_for()
    torch.testing.assert_close(same, logits, rtol=1e-12, atol=1e-12)
    wrong, error = expected(2)
    assert error > 1e-3
    assert loss.item() == pytest.approx((plain + 0.3 * error).item(), rel=1e-10)
    _, error = expected(8)
    explained = model.explain(images, torch.stack([labels, wrong], 1))
    positive = explained.pixels[:, 1].clamp(min=0).sum((1, 2)).mean() * 2
    whole = plain + 0.2 * mean_weight(explained.rows, 0.01) + 0.1 * positive + 0.3 * error
    loss, _ = asked_for(regularisation=0.2, wrong_contributions=0.1)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-10)
    with pytest.raises(ValueError, match="leave mosaics out"):
        objective(model, images, torch.nn.functional.one_hot(labels, 10), removal_error=0.1)


def test_learning_with_removal_error_lowers_it():
    data = load_data("digits")
    images, labels, left = data.train.images[:200].float() / 255, data.train.labels[:200], {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        model = CoDANet((Layer(8, 4, stride=2), Layer(16, 8), Layer(10, 8, 1)), image_channels=1, temperature=4)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(0)
        for _ in range(120):
            loss, _ = objective(model, images, labels, generator=generator, removal_error=weight)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            classified, logits = objective(model, images, labels)
            asked, _ = objective(model, images, labels, generator=torch.Generator().manual_seed(1), removal_error=1.0)
            size = (logits - model.logit_bias).gather(1, labels[:, None]).mean()  # smaller logits err less, too
        left[weight] = ((asked - classified) / size).item()
        assert (logits.argmax(1) == labels).float().mean() > 0.9
    assert left[1.0] < 0.5 * left[0.0], left
