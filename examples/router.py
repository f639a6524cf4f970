"""
A balanced mixture-of-experts router
====================================

There are eight kinds of tokens and eight experts. A router that sends every token to the expert
with the highest score overloads a few experts and starves the others, which then never learn.
``mesh`` chooses one expert per token and gives every expert its share. **You should see** idle
experts on the left, an even load in the middle, and an error that is several times lower.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from slotmesh import mesh

STEPS, EXPERTS, TOKENS, SIZE = 250, 8, 128, 16


def by_scores(scores: Tensor) -> Tensor:
    """The expert with the highest score."""
    return scores.argmax(0)


def by_mesh(scores: Tensor) -> Tensor:
    """One expert per token, and the same number of tokens for every expert."""
    share = torch.full((EXPERTS,), TOKENS / EXPERTS)
    return mesh(-scores.detach(), a=share, b=torch.ones(TOKENS)).plan.argmax(0)


def learn(route) -> tuple[list[float], Tensor]:
    """Train router and experts; return the errors and each expert's number of tokens at the end."""
    torch.manual_seed(0)
    centres, maps = 2 * torch.randn(EXPERTS, SIZE), torch.randn(EXPERTS, SIZE, SIZE) / SIZE**0.5
    router = nn.Linear(SIZE, EXPERTS, bias=False)
    experts = nn.Parameter(torch.randn(EXPERTS, SIZE, SIZE) / SIZE**0.5)
    optimizer = torch.optim.Adam([*router.parameters(), experts], 2e-2)
    kind = torch.arange(TOKENS) % EXPERTS
    errors = []
    for _ in range(STEPS):
        tokens = centres[kind] + torch.randn(TOKENS, SIZE)
        target = (tokens[:, None] @ maps[kind])[:, 0]  # a linear map per kind
        scores = router(tokens).mT  # experts x tokens
        expert = route(scores)
        gate = scores.softmax(0).gather(0, expert[None])  # through which the router learns
        error = (gate.mT * (tokens[:, None] @ experts[expert])[:, 0] - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    return errors, expert.bincount(minlength=EXPERTS)


results = {"highest score": learn(by_scores), "MESH": learn(by_mesh)}

# %%
# Tokens per expert in the last batch, and the error during training:

figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
for i, (name, (errors, load)) in enumerate(results.items()):
    axes[i].bar(range(EXPERTS), load.sort(descending=True).values.numpy(), color=f"C{i}")
    axes[i].axhline(TOKENS / EXPERTS, color="0.5", ls=":")
    axes[i].set(title=name, xlabel="expert", ylabel="tokens", ylim=(0, TOKENS / 2))
    axes[2].plot(errors, color=f"C{i}", label=name)
axes[2].set(title="error", xlabel="step", yscale="log")
axes[2].legend(frameon=False)
plt.show()
