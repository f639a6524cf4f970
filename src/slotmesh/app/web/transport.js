// Sinkhorn, MESH and exact transport in plain JavaScript, for matrices that fit on a page.
// The algorithms are those of slotmesh.ops in float64, with uniform masses: one unit per slot,
// m / n per input. A matrix is an array of rows; rows are slots, columns are inputs.
"use strict";

const slotmesh = (() => {
  const EPS = 2 ** -52;
  // A shorter gradient is not scaled up to length 1: the plan is one-hot.
  const SHORTEST = 1e-12;

  const zeros = (m, n) => Array.from({ length: m }, () => new Array(n).fill(0));
  const map = (x, f) => x.map((row, i) => row.map((value, j) => f(value, i, j)));
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const columns = (x) => x[0].map((_, j) => sum(x.map((row) => row[j])));
  const norm = (x) => Math.sqrt(sum(x.map((row) => sum(row.map((value) => value * value)))));

  // Softmax and log-sum-exp of a vector.
  function softmax(x) {
    const highest = Math.max(...x);
    const shares = x.map((value) => Math.exp(value - highest));
    const total = sum(shares);
    return [shares.map((share) => share / total), Math.log(total) + highest];
  }

  // One iteration from the slots' potentials u: the shares over slots and over inputs, and new u.
  function iterate(kernel, u) {
    const m = kernel.length;
    const n = kernel[0].length;
    const overSlots = zeros(m, n);
    const v = new Array(n);
    for (let j = 0; j < n; j++) {
      const [shares, total] = softmax(kernel.map((row, i) => row[j] + u[i]));
      shares.forEach((share, i) => (overSlots[i][j] = share));
      v[j] = Math.log(m / n) - total;
    }
    const overInputs = [];
    const next = kernel.map((row, i) => {
      const [shares, total] = softmax(row.map((value, j) => value + v[j]));
      overInputs[i] = shares;
      return -total;
    });
    return { overSlots, overInputs, u: next };
  }

  function solve(cost, temperature, nIters, first) {
    const kernel = map(cost, (value) => -value / temperature);
    let u = first || cost.map(() => 0);
    let plan = null;
    for (let k = 0; k < nIters; k++) ({ overInputs: plan, u } = iterate(kernel, u));
    return { plan, u };
  }

  // The Sinkhorn plan of a cost; one iteration is slot attention's softmax.
  function sinkhorn(cost, { temperature = 1, nIters = 5 } = {}) {
    return solve(cost, temperature, nIters).plan;
  }

  // Derivative of the plan's entropy by the log kernel, walking back through the iterations.
  function entropyGradient(kernel, first, nIters) {
    const m = kernel.length;
    const n = kernel[0].length;
    const walk = [];
    let u = first;
    for (let k = 0; k < nIters; k++) {
      walk.push(iterate(kernel, u));
      u = walk[k].u;
    }
    const last = walk[nIters - 1];
    const plan = last.overInputs;
    const slope = map(plan, (p) => (p > 0 ? -1 - Math.log(p) : 0));
    const atLargest = plan.map((row, i) => slope[i][row.indexOf(Math.max(...row))]);
    let grad = map(plan, (p, i, j) => p * (slope[i][j] - atLargest[i]));
    let intoU = grad.map(sum);
    let intoV = columns(grad);
    for (const { overSlots: q, overInputs: r } of walk.reverse()) {
      let flow = map(r, (share, i) => share * intoU[i]);
      const out = columns(flow);
      intoV = intoV.map((value, j) => value - out[j]);
      grad = map(grad, (g, i, j) => g - flow[i][j]);
      flow = map(q, (share, i, j) => share * intoV[j]);
      intoU = flow.map((row) => -sum(row));
      grad = map(grad, (g, i, j) => g - flow[i][j]);
      intoV = new Array(n).fill(0);
    }
    // Columns of the gradient sum to 0; whatever is left of their sums is rounding.
    const left = columns(grad);
    grad = map(grad, (g, i, j) => g - last.overSlots[i][j] * left[j]);
    // At an exact tie of all slots the gradient is rounding alone, and no direction leads down.
    const sizes = map(plan, (p, i, j) => {
      const size = 1 + Math.abs(kernel[i][j]) + Math.abs(first[i]);
      return p * (1 - p) * (size + Math.abs(slope[i][j]) + Math.abs(atLargest[i]));
    });
    return { grad: norm(grad) < EPS * norm(sizes) ? zeros(m, n) : grad, u };
  }

  // MESH: gradient descent on the cost until its Sinkhorn plan is nearly one-hot.
  // noise is a matrix that is added to the cost. Returns the plan, the adjusted cost, and the
  // plan after every number of steps from 0.
  function mesh(cost, { step = 1, nSteps = 4, nIters = 5, temperature = 1, noise = null } = {}) {
    const m = cost.length;
    const n = cost[0].length;
    let changed = noise ? map(cost, (value, i, j) => value + noise[i][j]) : cost;
    let u = cost.map(() => 0);
    const plans = [solve(changed, temperature, nIters, u).plan];
    for (let k = 0; k < nSteps; k++) {
      const kernel = map(changed, (value) => -value / temperature);
      const { grad, u: reached } = entropyGradient(kernel, u, nIters);
      const scale = (step * Math.sqrt(m * n)) / Math.max(norm(grad), SHORTEST);
      changed = map(changed, (value, i, j) => value + scale * grad[i][j]);
      u = reached;
      plans.push(solve(changed, temperature, nIters, u).plan);
    }
    return { plan: plans[nSteps], plans, cost: changed };
  }

  // The cheapest plan, exactly: shortest augmenting paths (Bellman-Ford) on whole numbers, every
  // slot with n units and every input with m.
  function emd(cost) {
    const m = cost.length;
    const n = cost[0].length;
    const flow = zeros(m, n);
    const supply = new Array(m).fill(n);
    const demand = new Array(n).fill(m);
    while (supply.some((units) => units > 0)) {
      const slotDistance = supply.map((units) => (units > 0 ? 0 : Infinity));
      const inputDistance = new Array(n).fill(Infinity);
      const slotFrom = new Array(m).fill(-1);
      const inputFrom = new Array(n).fill(-1);
      // Paths of equal cost must not count as shorter by their rounding.
      const shorter = (a, b) => a < b - 1e-12 * (1 + Math.abs(a));
      for (let changed = true; changed; ) {
        changed = false;
        for (let i = 0; i < m; i++) {
          for (let j = 0; j < n; j++) {
            if (shorter(slotDistance[i] + cost[i][j], inputDistance[j])) {
              inputDistance[j] = slotDistance[i] + cost[i][j];
              inputFrom[j] = i;
              changed = true;
            }
            if (flow[i][j] > 0 && shorter(inputDistance[j] - cost[i][j], slotDistance[i])) {
              slotDistance[i] = inputDistance[j] - cost[i][j];
              slotFrom[i] = j;
              changed = true;
            }
          }
        }
      }
      let end = -1;
      for (let j = 0; j < n; j++) {
        if (demand[j] > 0 && (end < 0 || inputDistance[j] < inputDistance[end])) end = j;
      }
      const path = [];
      let units = demand[end];
      for (let j = end; ; ) {
        const i = inputFrom[j];
        path.push([i, j, 1]);
        if (slotFrom[i] < 0) {
          units = Math.min(units, supply[i]);
          supply[i] -= units;
          break;
        }
        path.push([i, slotFrom[i], -1]);
        units = Math.min(units, flow[i][slotFrom[i]]);
        j = slotFrom[i];
      }
      demand[end] -= units;
      for (const [i, j, sign] of path) flow[i][j] += sign * units;
    }
    return map(flow, (units) => units / n);
  }

  // H(P) = - sum of P log P.
  function entropy(plan) {
    return sum(plan.map((row) => sum(row.map((p) => (p > 0 ? -p * Math.log(p) : 0)))));
  }

  // Euclidean distances between points [x, y].
  function pairwiseCost(slots, inputs) {
    return slots.map(([x, y]) => inputs.map(([a, b]) => Math.hypot(x - a, y - b)));
  }

  // Independent standard normal numbers; the same seed, the same matrix.
  function gaussian(m, n, seed) {
    let state = (seed + 1) * 0x9e3779b9;
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
    const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    return map(zeros(m, n), normal);
  }

  return { sinkhorn, mesh, emd, entropy, pairwiseCost, gaussian };
})();
