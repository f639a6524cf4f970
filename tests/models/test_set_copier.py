"""The set copier beyond the paper: raw values, sets of one size, a head."""

from typing import Any

import pytest
import torch
from torch import nn

from slotmesh import SlotAttention
from slotmesh.models import SetCopier
from slotmesh.nn import LearnedSlots, Mesh, Sinkhorn, Softmax
from slotmesh.worlds import RandomObjects

BEYOND = {"raw_values": True, "rescale": True, "head": True}


def sets(sigma: float = 1.0) -> torch.Tensor:
    return RandomObjects(sigma=sigma, n_objects=3, n_background=5, dim=8).sample(range(4)).inputs


def copier(**options: Any) -> SetCopier:
    torch.manual_seed(1)
    return SetCopier(8, 3, Sinkhorn(), mlp_dim=16, init=LearnedSlots(), **options)


def blinded(**options: Any) -> SlotAttention:
    """Slot attention whose normalisation leaves nothing of the inputs."""
    torch.manual_seed(0)
    module = SlotAttention(8, 6, 3, Softmax(), init=LearnedSlots(), **options)
    nn.init.zeros_(module.norm_inputs.weight)
    return module


def test_raw_values_do_not_pass_through_the_normalisation() -> None:
    x = sets()
    for raw in (False, True):
        module = blinded(raw_values=raw)
        slots = module(x).slots
        differ = (slots - slots[:1]).abs().amax((-2, -1))[1:]
        assert bool((differ > 1e-2).all()) == raw
        assert bool((differ == 0).all()) != raw


def test_raw_values_are_the_inputs_times_the_weights() -> None:
    """With keys that see nothing, attention is uniform, and an update is the mean value."""
    module, x = blinded(raw_values=True), sets()
    seen: list[torch.Tensor] = []
    module.gru.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module(x)
    mean = module.to_value(x).mean(-2, keepdim=True).expand(-1, 3, -1)
    torch.testing.assert_close(seen[0].view(4, 3, 6), mean)


def test_normalised_values_lose_mean_and_norm_and_raw_ones_do_not() -> None:
    x = sets()
    other = 3.0 * x + 0.5
    for raw in (False, True):
        module = SlotAttention(8, 6, 3, Softmax(), init=LearnedSlots(), raw_values=raw)
        # The zeros are constant vectors too.
        same = torch.allclose(module(x).slots, module(other).slots, atol=1e-4)
        assert same != raw


@pytest.mark.parametrize("factor", [2.0**-7, 1e-3, 30.0])
@pytest.mark.parametrize("options", [{"rescale": True}, BEYOND])
def test_rescaling_makes_predictions_follow_the_size_of_a_set(
    options: dict[str, Any], factor: float
) -> None:
    model, x = copier(**options), sets()
    found = model(factor * x).slots
    torch.testing.assert_close(found, factor * model(x).slots, rtol=1e-4, atol=1e-5 * factor)
    plain = copier(raw_values=True)
    assert not torch.allclose(plain(factor * x).slots, factor * plain(x).slots, rtol=0.1)


def test_each_set_has_its_own_size() -> None:
    model, x = copier(**BEYOND), sets()
    sizes = torch.tensor([1.0, 0.1, 10.0, 5.0]).view(4, 1, 1)
    torch.testing.assert_close(model(sizes * x).slots, sizes * model(x).slots, rtol=1e-4, atol=1e-6)


def test_the_size_is_that_of_the_vectors_to_find() -> None:
    model = copier(rescale=True)
    seen: list[torch.Tensor] = []
    model.attention.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(sets(sigma=0.01))
    rms = seen[0][:, :3].square().mean((1, 2)).sqrt()
    torch.testing.assert_close(rms, torch.ones(4))


def test_a_set_of_zeros_is_no_trouble() -> None:
    x = torch.zeros(2, 6, 8, requires_grad=True)
    slots = copier(**BEYOND)(x).slots
    assert slots.isfinite().all()
    assert slots.abs().max() < 1e-30
    slots.sum().backward()


def test_a_head_is_a_linear_layer_on_the_slots() -> None:
    plain, model = copier(raw_values=True), copier(raw_values=True, head=True)
    assert model.head is not None
    x = sets()
    torch.testing.assert_close(model(x).slots, model.head(plain(x).slots))
    torch.testing.assert_close(model(x).attention, plain(x).attention)


def test_slots_can_be_longer_than_vectors() -> None:
    model = copier(**BEYOND, slot_dim=20)
    out = model(sets())
    assert out.slots.shape == (4, 3, 8)
    assert model.attention.to_value.weight.shape == (20, 8)
    with pytest.raises(ValueError, match="slot_dim is 20 and dim is 8, expected the same"):
        copier(slot_dim=20)


def test_the_options_are_saved(tmp_path: Any) -> None:
    assert not any(name.startswith("head") for name in copier(rescale=True).state_dict())
    model = SetCopier(8, 3, Mesh(), slot_dim=9, **BEYOND).eval()  # pyright: ignore[reportArgumentType]
    model.save_pretrained(tmp_path)
    loaded = SetCopier.from_pretrained(tmp_path)
    assert (loaded.attention.raw_values, loaded.rescale) == (True, True)
    noise = [torch.Generator().manual_seed(2) for _ in range(2)]
    x = sets()
    assert torch.equal(loaded(x, generator=noise[0]).slots, model(x, generator=noise[1]).slots)


def test_a_vector_is_no_set() -> None:
    with pytest.raises(ValueError, match=r"SetCopier: inputs .* expected .*\(..., n, dim\)"):
        copier(**BEYOND)(torch.zeros(8))
