"""Videos: frame after frame, each from the slots of the one before."""

import pytest
import torch

from slotmesh.models import ObjectDiscovery, VideoObjectDiscovery
from slotmesh.nn import (
    EMD,
    FixedNoise,
    LearnedNoise,
    Mesh,
    Sinkhorn,
    Softmax,
    Transition,
    TransitionOutput,
)

SIZES = {"resolution": (7, 9), "channels": 4, "slot_dim": 6, "mlp_dim": 7, "n_iters": 2}


def pair(make, **settings):
    """A video model and an image model with the same weights."""
    video = VideoObjectDiscovery(3, make(), **SIZES, **settings).double()
    image = ObjectDiscovery(3, make(), **SIZES).double()
    image.load_state_dict(
        {k: v for k, v in video.state_dict().items() if not k.startswith("transition.")}
    )
    return video, image


def assert_frame(tensors, out, t, expected):
    """Frame t of a video's output is the output for an image."""
    ours = {k: v[:, t] for k, v in tensors(out).items() if k != "kl"}
    theirs = tensors(expected)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("transition", [Transition, FixedNoise, LearnedNoise])
def test_one_frame_is_an_image(transition, transport, data, tensors):
    video, image = pair(transport, transition=transition())
    frames = data("video", torch.float64)[:, :1]
    rng = torch.Generator()
    out = video(frames, generator=rng.manual_seed(0), trace=True)
    expected = image(frames[:, 0], generator=rng.manual_seed(0), trace=True)
    assert_frame(tensors, out, 0, expected)
    assert torch.equal(out.kl, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("transition", [Transition, lambda: FixedNoise(0.0)])
@pytest.mark.parametrize("make", [Softmax, Sinkhorn, EMD, lambda: Mesh(noise=0.0)])
def test_the_slots_of_a_frame_start_the_next(make, transition, data, tensors):
    video, image = pair(make, transition=transition())
    frames = data("video", torch.float64)
    out = video(frames, slots=torch.ones(2, 3, 6, dtype=torch.float64).cumsum(1), trace=True)
    slots = torch.ones(2, 3, 6, dtype=torch.float64).cumsum(1)
    for t in range(3):
        expected = image(frames[:, t], slots=slots, trace=True)
        assert_frame(tensors, out, t, expected)
        slots = expected.slots


class Counted(Transition):
    """Adds 1 to slots and 2 to the divergence, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, slots, generator=None):
        self.seen.append(slots)
        return TransitionOutput(slots + 1.0, slots.new_full(slots.shape[:-2], 2.0))


def test_the_transition_comes_between_frames_and_its_divergences_add_up(data, tensors):
    video, image = pair(Softmax, transition=Counted())
    frames = data("video", torch.float64)
    out = video(frames)
    assert len(video.transition.seen) == 2
    for t, slots in enumerate(video.transition.seen):
        assert torch.equal(slots, out.slots[:, t])
        assert_frame(tensors, out, t + 1, image(frames[:, t + 1], slots=slots + 1.0))
    assert torch.equal(out.kl, torch.full((2,), 4.0, dtype=torch.float64))


def test_later_frames_do_not_change_earlier_ones(data, transport, tensors):
    video, _ = pair(transport, transition=FixedNoise(0.1))
    frames = data("video", torch.float64)
    rng = torch.Generator()
    long = video(frames, generator=rng.manual_seed(0))
    short = tensors(video(frames[:, :2], generator=rng.manual_seed(0)))
    for key, value in tensors(long).items():
        if key != "kl":
            torch.testing.assert_close(value[:, :2], short[key], rtol=0, atol=1e-10)


def test_learned_noise_is_paid_for(data):
    video, _ = pair(Softmax, transition=LearnedNoise())
    out = video(data("video", torch.float64))
    assert (out.kl > 0).all()
    out.kl.sum().backward()
    assert video.transition.predict[-1].weight.grad.abs().max() > 0


@pytest.mark.parametrize("implicit", [False, True])
def test_gradients_go_from_frame_to_frame_unless_implicit(implicit, data):
    video, _ = pair(Softmax, implicit=implicit)
    frames = data("video", torch.float64).requires_grad_()
    video(frames).reconstruction[:, 2].sum().backward()
    reach = frames.grad.abs().amax((0, 2, 3, 4))
    assert reach[2] > 0
    assert bool((reach[:2] > 0).all()) is not implicit


@pytest.mark.parametrize("transition", ["FixedNoise", FixedNoise, 0.1, torch.nn.Identity()])
def test_something_else_than_a_transition_is_named(transition):
    with pytest.raises(
        ValueError, match=r"VideoObjectDiscovery: transition is .*expected an object such as"
    ):
        VideoObjectDiscovery(transition=transition)
