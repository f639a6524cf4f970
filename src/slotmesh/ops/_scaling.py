r"""Sinkhorn by scalings, on a few batch elements at a time: the CPU's way.

In the log domain every half-iteration takes an exponential of every entry. Here one a Sinkhorn is
enough. With :math:`K = -C/\tau`, starting potentials :math:`u_0` and
:math:`h_j = \max_i (K_{ij} + u_{0i})`, let :math:`E_{ij} = \exp(K_{ij} + u_{0i} - h_j)`, which has
a 1 in every column. For :math:`p_t = \exp(u_t - u_0)` and :math:`q_t = \exp(v_t + h)`, one
iteration is

.. math:: s_t = E^\top p_{t-1}, \quad q_t = b / s_t, \quad r_t = E q_t, \quad p_t = a / r_t,

from :math:`p_0 = 1`, and the plan is :math:`P = p_T E q_T`, where vectors scale rows and columns.

The half-steps are log-sum-exps, whose derivatives are the softmaxes :math:`p_{t-1} E / s_t` and
:math:`E q_t / r_t`: once more :math:`E`, scaled. So reverse mode needs the vectors alone. Let
:math:`G = P \circ \partial J/\partial P`, :math:`g_T` its row sums and :math:`c` its column sums.
From :math:`t = T` down to 1,

.. math::
    \alpha_t = g_t / r_t, \quad
    \beta_t = (q_t \circ E^\top \alpha_t - [t = T]\, c) / s_t, \quad
    g_{t-1} = p_{t-1} \circ E \beta_t,

and :math:`\partial J/\partial K = G + E \circ \sum_t (p_{t-1} \beta_t^\top - \alpha_t q_t^\top)`,
whose sum is one product of two small matrices. The derivatives by :math:`u_0`, :math:`a` and
:math:`b` are :math:`g_0`, :math:`\sum_t \alpha_t / p_t` and :math:`-\sum_t \beta_t s_t / b`.

Scalings have less range than logarithms. Where those of the slots leave ``1 / LIMIT`` to ``LIMIT``,
entries of :math:`E` that were too small to be exact could matter: such batch elements have to be
solved in the log domain. The scalings of the inputs cannot leave their range by themselves, as
:math:`s_t` lies between the least :math:`p_{t-1}` and ``m`` times the largest.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

_backends: Any = torch.backends

# The most that the potential of a slot may change within one Sinkhorn, as a factor.
LIMIT = 1e8

# Entries of E are at least exp(LEAST) = 1e-30: arithmetic that underflows is very slow.
LEAST = -69.0

# Within these bounds the library of matrix products sums in an order of its own, but always in the
# same one. Beyond, it depends on the number of threads and of batch elements.
MOST_SLOTS, MOST_ENTRIES = 32, 2**15

# It takes this many rows at once, and what is left in another order. Equal slots must stay equal.
ROWS = 4


class _Step(NamedTuple):
    """The vectors of one iteration: (size, 1, m) of slots, (size, 1, n) of inputs."""

    before: Tensor  # p of the iteration before
    s: Tensor
    q: Tensor
    p: Tensor
    alpha: Tensor
    beta: Tensor
    to_alpha: Tensor  # p / r, which turns E times the next beta into alpha
    to_beta: Tensor  # q / s, which turns E^T alpha into beta


class Scaling:
    """Memory for a block of batch elements, and Sinkhorn on it, forwards and backwards.

    Args:
        like: ``(size, m, n)``, gives shape and dtype.
        n_iters: Number of iterations.

    Attributes:
        trusted: ``(size,)``, True where all scalings since :meth:`take` can be trusted; or None, if
            they can everywhere.
    """

    real: Tensor | None
    padded: Tensor | None
    trusted: Tensor | None
    by_product: bool

    def __init__(self, like: Tensor, n_iters: int) -> None:
        (size, m, n), T = like.shape, n_iters
        self.shape, self.n_iters = like.shape, n_iters
        self.spare, self.grad = torch.empty_like(like), torch.empty_like(like)
        columns = like.new_empty(3 * T + 1, size, 1, m)
        rows = like.new_empty(4 * T, size, 1, n)
        self.to_alpha, self.alpha, self.p = columns[:T], columns[T : 2 * T], columns[2 * T :]
        self.to_beta, self.s, self.q, self.beta = (rows[k * T : (k + 1) * T] for k in range(4))
        self.after = self.p[1:]  # every p but the first
        # Factors of the sum of all p beta^T - alpha q^T, once alpha is negative.
        self.left = columns[T:-1].squeeze(-2).permute(1, 2, 0)
        self.right = rows[2 * T :].squeeze(-2).transpose(0, 1)
        column, row = columns.unbind(), rows.unbind()
        self.steps = [
            _Step(
                column[2 * T + t],
                row[T + t],
                row[2 * T + t],
                column[2 * T + t + 1],
                column[T + t],
                row[3 * T + t],
                column[t],
                row[t],
            )
            for t in range(T)
        ]
        self.ones = self.steps[0].before.fill_(1.0)
        self.last = self.steps[-1]
        self.last_p, self.last_before = self.last.p.mT, self.last.before.mT  # (size, m, 1)
        self.height = m + -m % ROWS
        self.width = MOST_ENTRIES // self.height
        self.tall = like.new_empty(size, 1, self.height)
        self.sums = self.tall[..., :m]
        self.flat_sums = self.sums.squeeze(-2)
        self.wide = like.new_empty(size, 1, n)
        self.release()

    def release(self) -> None:
        """Let go of what belongs to others."""
        self.a = self.b = self.kernel = self.transposed = self.spare
        self.real = self.padded = self.trusted = None

    def take(self, a: Tensor, b: Tensor, slots: Tensor | None, memory: Tensor, begin: int) -> None:
        """Turn to a block.

        Args:
            a: ``(size, m)``, the mass of each slot.
            b: ``(size, n)``, the mass of each input.
            slots: ``(size, m)``, True where real, or None.
            memory: Memory for E, of :func:`slotmesh.ops._blocked.kernels`.
            begin: Which of the matrices there is the first of the block.
        """
        # Padded slots have rows of zeros in E. Any p will do for them, and 1 is in range.
        self.a = (a if slots is None else torch.where(slots, a, 1.0)).unsqueeze(-2)
        self.b = b.unsqueeze(-2)
        self.real = None if slots is None else slots.to(a.dtype).unsqueeze(-1)
        self.padded = None if self.real is None else 1.0 - self.real.mT
        size, m, n = self.shape
        first = begin * m * n
        self.kernel = memory.as_strided(self.shape, (m * n, n, 1), first)
        # Runs on into the next matrix, whose sums are not looked at.
        self.transposed = memory.as_strided((size, n, self.height), (m * n, 1, n), first)
        self.trusted = None
        # Products may have been allowed to round their factors to bfloat16.
        precision: str = _backends.mkldnn.matmul.fp32_precision
        self.by_product = precision in ("none", "ieee") and m <= MOST_SLOTS

    def absorb(self, cost: Tensor, tau: float | Tensor, u: Tensor) -> Tensor:
        """Fill in E of a cost (size, m, n) and starting potentials (size, m, 1); returns h."""
        E = self.kernel
        if isinstance(tau, Tensor):
            torch.sub(u, torch.div(cost, tau, out=E), out=E)
        else:
            torch.add(u, cost, alpha=-1.0 / tau, out=E)
        h = E.amax(-2, keepdim=True)
        E.sub_(h).clamp_(min=LEAST).exp_()
        if self.real is not None:
            E.mul_(self.real)
        return h

    def iterate(self) -> None:
        """All iterations, each kept."""
        a, b, r, padded = self.a, self.b, self.sums, self.padded
        for t in self.steps:
            self._over_slots(t.before, t.s)
            torch.div(b, t.s, out=t.q)
            self._over_inputs(t.q)
            if padded is not None:
                r.add_(padded)
            torch.div(a, r, out=t.p)
        low, high = torch.aminmax(self.p)
        # A NaN is in no range.
        if not (low.item() >= 1 / LIMIT and high.item() <= LIMIT):
            fine = (self.p.amin((0, 2, 3)) >= 1 / LIMIT) & (self.p.amax((0, 2, 3)) <= LIMIT)
            self.trusted = fine if self.trusted is None else self.trusted & fine

    @property
    def lost(self) -> bool:
        """Whether the scalings of no batch element can be trusted any more."""
        return self.trusted is not None and not bool(self.trusted.any())

    def potentials(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the last p (size, m, 1) and q (size, 1, n)."""
        return self.last_p.log(), self.last.q.log()

    def recall(self, s: Tensor, p: Tensor) -> None:
        """Take up iterations that were kept from before."""
        self.s.copy_(s)
        self.p.copy_(p)
        torch.div(self.b, self.s, out=self.q)

    def plan(self, out: Tensor) -> Tensor:
        """Write the plan (size, m, n) of the last iteration."""
        return torch.mul(self.kernel, self.last.q, out=out).mul_(self.last_p)

    def reverse(self, grad: Tensor, by_u: Tensor | None = None, by_v: Tensor | None = None) -> None:
        """Pull a derivative back through the iterations.

        Args:
            grad: ``(size, m, n)``, G; becomes the derivative by K.
            by_u: ``(size, m)``, derivative by the last u beside what goes through the plan.
            by_v: ``(size, n)``, the same for the last v.
        """
        torch.sum(grad, -1, out=self.flat_sums)
        into_u, into_v = self.sums, self._column_sums(grad)
        if by_u is not None:
            into_u += by_u.unsqueeze(-2)
        if by_v is not None:
            into_v += by_v.unsqueeze(-2)
        torch.div(self.after, self.a, out=self.to_alpha)  # 1 / r
        torch.mul(into_u, self.last.to_alpha, out=self.last.alpha)
        self.to_alpha.mul_(self.after)
        torch.div(self.q, self.s, out=self.to_beta)
        after = None
        for t in reversed(self.steps):
            if after is not None:
                torch.mul(self._over_inputs(after), t.to_alpha, out=t.alpha)
            self._over_slots(t.alpha, t.beta)
            t.beta.mul_(t.to_beta)
            if after is None:
                t.beta.addcdiv_(into_v, t.s, value=-1)
            after = t.beta
        self.alpha.neg_()
        self._add_products(grad)
        self._settle(grad, by_v)

    def centre(self, plan: Tensor, by_plan: Tensor) -> Tensor:
        """Turn the plan (size, m, n) into G, less the mean of its rows.

        Slot sums are constant, so the mean is of no consequence for the derivative by K, only for
        its rounding. Returns the mean (size, m), the derivative by the masses of slots.
        """
        torch.mul(plan, by_plan, out=self.spare)
        mean = self.spare.sum(-1, keepdim=True).div_(self.a.mT)
        plan.mul_(torch.sub(by_plan, mean, out=self.spare))
        return mean.squeeze(-1)

    def by_start(self) -> Tensor:
        """Derivative by the starting potentials (size, m), after :meth:`reverse`."""
        return self._over_inputs(self.steps[0].beta).squeeze(-2)

    def by_a(self) -> Tensor:
        """Derivative by the mass of each slot (size, m), after :meth:`reverse`, but the mean."""
        return (self.alpha / -self.after).sum(0).squeeze(-2)

    def by_b(self) -> Tensor:
        """Derivative by the mass of each input (size, n), after :meth:`reverse`; 0 without mass."""
        found = (self.beta * self.s).sum(0) / -self.b
        return torch.where(self.b > 0, found, 0.0).squeeze(-2)

    def _over_slots(self, x: Tensor, out: Tensor) -> None:
        """E^T x, (size, 1, m) to (size, 1, n)."""
        if self.by_product:
            torch.bmm(x, self.kernel, out=out)
        else:
            torch.mul(self.kernel, x.mT, out=self.spare)
            torch.sum(self.spare, -2, keepdim=True, out=out)

    def _over_inputs(self, x: Tensor) -> Tensor:
        """E x, (size, 1, n) to (size, 1, m), in memory that is used again."""
        n = self.shape[-1]
        if self.by_product and n <= self.width:
            torch.bmm(x, self.transposed, out=self.tall)
        elif self.by_product:
            self.tall.zero_()
            for begin in range(0, n, self.width):
                part = slice(begin, begin + self.width)
                self.tall.baddbmm_(x[..., part], self.transposed[:, part])
        else:
            torch.mul(self.kernel, x, out=self.spare)
            torch.sum(self.spare, -1, out=self.flat_sums)
        return self.sums

    def _column_sums(self, x: Tensor) -> Tensor:
        """Sums over slots, (size, m, n) to (size, 1, n), in memory that is used again."""
        if self.by_product:
            return torch.bmm(self.ones, x, out=self.wide)
        return torch.sum(x, -2, keepdim=True, out=self.wide)

    def _add_products(self, grad: Tensor) -> None:
        """Add E times the sum of all p beta^T - alpha q^T to ``grad``; alpha is negative by now."""
        if self.by_product:
            torch.bmm(self.left, self.right, out=self.spare)
        else:
            self.spare.zero_()
            for t in self.steps:
                self.spare.addcmul_(t.before.mT, t.beta).addcmul_(t.alpha.mT, t.q)
        grad.addcmul_(self.kernel, self.spare)

    def _settle(self, grad: Tensor, by_v: Tensor | None) -> None:
        """Make the column sums of a derivative by K right.

        What is added to a column of K is taken off its v, and nothing else changes: the sum is
        minus the derivative by v. Where nearly all of an input goes to one slot, terms cancel in
        that entry up to rounding, which may be more than all other entries.
        """
        excess = self._column_sums(grad)
        if by_v is not None:
            excess += by_v.unsqueeze(-2)
        torch.mul(self.kernel, excess.div_(self.last.s), out=self.spare)
        grad.addcmul_(self.spare, self.last_before, value=-1)
