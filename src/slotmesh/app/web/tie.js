// <slotmesh-tie>: slots and inputs that one drags, and what the four variants make of them.
// Needs transport.js, and TIE_TEMPLATE, the text of tie.html. The query string of the page holds
// what is shown; with the attribute "view", this is marked there as view=... and only then read.
"use strict";

(() => {
  const MOST_SLOTS = 6;
  const MOST_INPUTS = 12;
  const SIZE = 10;
  const FILLS = ["#d1495b", "#2f7fb8", "#3a9d5d", "#e0a11b", "#8f5bb5", "#1fa6a6"];
  const INKS = ["#fff", "#fff", "#fff", "#1d2430", "#fff", "#0d1b1b"];
  const LETTERS = "ABCDEF";
  const VARIANTS = {
    SA: "Softmax over slots, normalised over inputs",
    "SA-SH": (s) => `Sinkhorn, ${s.iters} iteration${s.iters === 1 ? "" : "s"}`,
    "SA-EMD": "Exact transport: the cheapest plan",
    "SA-MESH": (s) => `Sinkhorn after ${s.steps} MESH step${s.steps === 1 ? "" : "s"}`,
  };
  const pairs = [[2, 2.2], [3.2, 1.6], [8.2, 2.4], [8.8, 3.6], [4.6, 8.6], [5.9, 8.6]];
  const around = [...Array(12).keys()].map((k) => {
    const angle = (Math.PI / 2) * Math.floor(k / 3) + 0.22 * ((k % 3) - 1) + Math.PI / 4;
    return [5 + 4 * Math.cos(angle), 5 + 4 * Math.sin(angle)].map((x) => Math.round(10 * x) / 10);
  });
  const EXAMPLES = {
    "Two equal slots and a third": { slots: [[5, 3.4], [5, 3.4], [5.2, 7]], inputs: pairs },
    "The paper's x, x, y": { cost: [[0, 0, 6], [0, 0, 6], [6, 6, 0]] },
    "All costs equal": { cost: [[1, 1], [1, 1]] },
    "Four equal slots, four groups": { slots: Array(4).fill([5, 5]), inputs: around },
    "No tie": { slots: [[2.6, 3.2], [7.4, 3.4], [5.2, 7]], inputs: pairs },
  };
  const FIRST = Object.keys(EXAMPLES)[0];
  const DEFAULTS = { step: 1, steps: 4, iters: 20, noise: 1e-3, temp: 1, seed: 0, show: "SA-MESH" };
  const NOISES = [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1];
  const short = (x) => String(Number(x.toPrecision(2)));
  // Label, range, and how a position of the slider becomes a value and back.
  const SLIDERS = {
    step: { label: "Step size (lr)", min: 0, max: 4, by: 0.05, says: (s) => `${s.step.toFixed(2)} (lr ${(s.step * Math.sqrt(s.m * s.n)).toFixed(2)})` },
    steps: { label: "MESH steps", min: 0, max: 12, by: 1 },
    iters: { label: "Sinkhorn iterations", min: 1, max: 50, by: 1 },
    noise: { label: "Noise", min: 0, max: NOISES.length - 1, by: 1, value: (x) => NOISES[x], position: (v) => Math.max(0, NOISES.findIndex((x) => x >= v * 0.99)), says: (s) => String(s.noise) },
    temp: { label: "Temperature", min: -13, max: 7, by: 1, value: (x) => Number((10 ** (x / 10)).toPrecision(2)), position: (v) => Math.round(10 * Math.log10(v)) },
  };

  const svg = (tag, attributes = {}, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text) node.textContent = text;
    return node;
  };
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  const tenth = (x) => Math.round(10 * clamp(x, 0, SIZE)) / 10;
  const copy = (x) => JSON.parse(JSON.stringify(x));

  // A list of rows of numbers from text such as "1,2;3,4", or null where it is none.
  function rows(text, most, width, low, high) {
    const found = (text || "").split(";").map((row) => row.split(",").map((x) => (x.trim() ? Number(x) : NaN)));
    const fits = found.length <= most && found.every((row) => row.length === (width || found[0].length) && row.every((x) => x >= low && x <= high));
    return fits ? found : null;
  }

  function fromQuery(query) {
    const state = { ...DEFAULTS, ...copy(EXAMPLES[FIRST]), mode: "points" };
    const cost = rows(query.get("cost"), MOST_SLOTS, 0, -100, 100);
    const slots = rows(query.get("slots"), MOST_SLOTS, 2, 0, SIZE);
    const inputs = rows(query.get("inputs"), MOST_INPUTS, 2, 0, SIZE);
    if (cost && cost[0].length <= MOST_INPUTS) Object.assign(state, { cost, mode: "cost" });
    if (slots && inputs) Object.assign(state, { slots, inputs });
    for (const [name, { min, max, value = (x) => x }] of Object.entries(SLIDERS)) {
      const given = query.get(name) === null ? NaN : Number(query.get(name));
      if (given >= value(min) && given <= value(max)) state[name] = given;
    }
    state.steps = Math.round(state.steps);
    state.iters = Math.round(state.iters);
    const seed = Number(query.get("seed"));
    if (Number.isInteger(seed) && seed >= 0) state.seed = seed;
    if (query.get("show") in VARIANTS) state.show = query.get("show");
    return state;
  }

  function toQuery(state) {
    const joined = (x) => x.map((row) => row.join(",")).join(";");
    const query = new URLSearchParams();
    if (state.mode === "cost") query.set("cost", joined(state.cost));
    else {
      query.set("slots", joined(state.slots));
      query.set("inputs", joined(state.inputs));
    }
    for (const name of Object.keys(DEFAULTS)) if (state[name] !== DEFAULTS[name]) query.set(name, state[name]);
    return query;
  }

  class Tie extends HTMLElement {
    connectedCallback() {
      if (this.shadowRoot) return;
      this.attachShadow({ mode: "open" }).innerHTML = TIE_TEMPLATE;
      this.find = (selector) => this.shadowRoot.querySelector(selector);
      this.all = (selector) => [...this.shadowRoot.querySelectorAll(selector)];
      const query = new URLSearchParams(location.search);
      const mine = !this.hasAttribute("view") || query.get("view") === this.getAttribute("view");
      this.state = fromQuery(mine ? query : new URLSearchParams());
      this.build();
      this.rebuild();
      // The chart is as wide as its place, so that its words keep their size.
      new ResizeObserver(() => this.drawChart()).observe(this.find(".chart"));
    }

    // What never changes: sliders, buttons, cards.
    build() {
      const select = this.find("select");
      for (const name of ["Example", ...Object.keys(EXAMPLES)]) select.append(new Option(name === "Example" ? "Examples…" : name, name === "Example" ? "" : name));
      select.onchange = () => {
        if (!select.value) return;
        const example = copy(EXAMPLES[select.value]);
        Object.assign(this.state, example, { mode: example.cost ? "cost" : "points" });
        select.value = "";
        this.change(true);
      };
      for (const button of this.all("[data-mode]")) button.onclick = () => this.setMode(button.dataset.mode);
      for (const [key, group] of this.all("[data-count]").map((x) => [x.dataset.count, x])) {
        const [less, more] = group.querySelectorAll("button");
        less.onclick = () => this.resize(key, -1);
        more.onclick = () => this.resize(key, 1);
      }
      this.find(".again").onclick = () => { this.state.seed += 1; this.change(); };
      this.find(".reset").onclick = () => { Object.assign(this.state, DEFAULTS); this.change(true); };
      this.find(".link").onclick = () => this.copyLink();
      for (const [name, slider] of Object.entries(SLIDERS)) {
        const label = document.createElement("label");
        // Not an output: the label would be that of the first element which can have one.
        const words = Object.assign(document.createElement("span"), { className: "value" });
        words.setAttribute("aria-hidden", "true");
        label.append(Object.assign(document.createElement("span"), { textContent: slider.label }), words);
        const input = Object.assign(document.createElement("input"), { type: "range", min: slider.min, max: slider.max, step: slider.by, name });
        input.oninput = () => {
          this.state[name] = (slider.value || Number)(Number(input.value));
          this.change();
        };
        label.append(input);
        this.find(".sliders").append(label);
      }
      for (const name of Object.keys(VARIANTS)) {
        const card = document.createElement("section");
        card.className = `panel plan ${name}`;
        card.dataset.variant = name;
        card.innerHTML = `<button type="button">${name}</button><p></p><svg role="img"></svg><div class="entropy"></div>`;
        card.querySelector("button").onclick = () => { this.state.show = name; this.change(); };
        this.find(".plans").append(card);
      }
    }

    get m() { return this.state.mode === "cost" ? this.state.cost.length : this.state.slots.length; }
    get n() { return this.state.mode === "cost" ? this.state.cost[0].length : this.state.inputs.length; }

    cost() {
      const { mode, cost, slots, inputs } = this.state;
      return mode === "cost" ? cost : slotmesh.pairwiseCost(slots, inputs);
    }

    setMode(mode) {
      if (mode === this.state.mode) return;
      if (mode === "cost") this.state.cost = this.cost().map((row) => row.map((x) => Math.round(10 * x) / 10));
      this.state.mode = mode;
      this.change(true);
    }

    resize(key, by) {
      const { state } = this;
      const size = this[key] + by;
      if (size < 1 || size > (key === "m" ? MOST_SLOTS : MOST_INPUTS)) return;
      if (state.mode === "points") {
        const points = key === "m" ? state.slots : state.inputs;
        // Spread by the golden angle, so that new points do not coincide.
        const angle = 2.4 * size;
        if (by < 0) points.pop();
        else points.push([tenth(5 + 3.2 * Math.cos(angle)), tenth(5 + 3.2 * Math.sin(angle))]);
      } else if (key === "m") {
        if (by < 0) state.cost.pop();
        else state.cost.push(state.cost[0].map(() => 1));
      } else for (const row of state.cost) by < 0 ? row.pop() : row.push(1);
      this.change(true);
    }

    // After every change: draw once per frame, however many events a drag has.
    change(shape = false) {
      this.shape = this.shape || shape;
      if (this.pending) return;
      this.pending = requestAnimationFrame(() => {
        this.pending = null;
        if (this.shape) this.rebuild();
        else this.draw();
        this.shape = false;
        this.writeLink();
      });
    }

    writeLink() {
      const query = toQuery(this.state);
      const view = this.getAttribute("view");
      if (view) query.set("view", view);
      // Commas and semicolons need no escaping in a query.
      const text = query.toString().replaceAll("%2C", ",").replaceAll("%3B", ";");
      history.replaceState(history.state, "", `${location.pathname}?${text}`);
    }

    async copyLink() {
      this.writeLink();
      const button = this.find(".link");
      try {
        await navigator.clipboard.writeText(location.href);
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy link"), 2000);
      } catch {
        prompt("The link to this view", location.href);
      }
    }

    // What depends on the number of slots and inputs.
    rebuild() {
      const { mode } = this.state;
      for (const button of this.all("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === mode);
      for (const group of this.all("[data-count]")) group.querySelector("output").textContent = this[group.dataset.count];
      this.find(".scene").toggleAttribute("hidden", mode !== "points");
      this.find(".matrix").toggleAttribute("hidden", mode !== "cost");
      this.find(".hint").textContent = mode === "points"
        ? "Drag the slots (letters) and the inputs (numbers); the cost is their distance. Slots in the same place are tied."
        : "Rows are slots, columns are inputs. Equal rows are tied.";
      if (mode === "points") this.buildScene();
      else this.buildMatrix();
      this.draw();
    }

    buildMatrix() {
      const table = document.createElement("table");
      const head = table.insertRow();
      head.insertCell();
      this.state.cost[0].forEach((_, j) => head.append(Object.assign(document.createElement("th"), { textContent: j + 1, scope: "col" })));
      this.state.cost.forEach((row, i) => {
        const line = table.insertRow();
        const name = Object.assign(document.createElement("th"), { textContent: LETTERS[i], scope: "row" });
        line.append(name);
        row.forEach((value, j) => {
          const input = Object.assign(document.createElement("input"), { type: "number", step: "any", min: -100, max: 100, value });
          input.setAttribute("aria-label", `Cost of slot ${LETTERS[i]} and input ${j + 1}`);
          input.oninput = () => {
            const given = input.valueAsNumber;
            input.setAttribute("aria-invalid", !(given >= -100 && given <= 100));
            if (given >= -100 && given <= 100) { this.state.cost[i][j] = given; this.change(); }
          };
          line.insertCell().append(input);
        });
      });
      this.find(".matrix").replaceChildren(table);
    }

    buildScene() {
      const scene = this.find(".scene");
      this.lines = svg("g");
      this.dots = [];
      scene.replaceChildren(this.lines);
      for (const kind of ["inputs", "slots"]) {
        this.state[kind].forEach((_, k) => {
          const dot = svg("g", { class: `dot ${kind}`, tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": SIZE });
          dot.append(svg("circle", { r: 6, class: "ring" }), svg("circle", { r: 7, fill: "transparent" }), svg("g"));
          this.listen(dot, kind, k);
          scene.append(dot);
          this.dots.push({ dot, kind, k });
        });
      }
    }

    listen(dot, kind, k) {
      const move = (x, y) => {
        this.state[kind][k] = [tenth(x), tenth(y)];
        this.change();
      };
      dot.onpointerdown = (event) => {
        dot.setPointerCapture(event.pointerId);
        dot.focus({ preventScroll: true, focusVisible: false });
        const [x, y] = this.place(event);
        const [a, b] = this.state[kind][k];
        this.grip = [a - x, b - y];
        event.preventDefault();
      };
      dot.onpointermove = (event) => {
        if (!dot.hasPointerCapture(event.pointerId)) return;
        const [x, y] = this.place(event);
        move(x + this.grip[0], y + this.grip[1]);
      };
      dot.onkeydown = (event) => {
        const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
        if (!by) return;
        event.preventDefault();
        const far = event.shiftKey ? 1 : 0.2;
        const [x, y] = this.state[kind][k];
        move(x + far * by[0], y + far * by[1]);
      };
    }

    place(event) {
      const box = this.find(".scene").getBoundingClientRect();
      return [(SIZE * (event.clientX - box.left)) / box.width, (SIZE * (event.clientY - box.top)) / box.height];
    }

    // Everything else.
    draw() {
      const { state } = this;
      const cost = this.cost();
      const options = { temperature: state.temp, nIters: state.iters };
      const noise = slotmesh.gaussian(this.m, this.n, state.seed).map((row) => row.map((x) => state.noise * x));
      const adjusted = slotmesh.mesh(cost, { ...options, step: state.step, nSteps: state.steps, noise });
      this.plans = {
        SA: slotmesh.sinkhorn(cost, { ...options, nIters: 1 }),
        "SA-SH": slotmesh.sinkhorn(cost, options),
        "SA-EMD": slotmesh.emd(cost),
        "SA-MESH": adjusted.plan,
      };
      this.entropies = adjusted.plans.map(slotmesh.entropy);
      if (state.mode === "points") this.drawScene(this.plans[state.show]);
      this.drawSliders();
      this.all(".plan").forEach((card) => this.drawPlan(card));
      this.drawChart();
      this.drawCode(cost);
    }

    drawSliders() {
      for (const input of this.all(".sliders input")) {
        const slider = SLIDERS[input.name];
        const position = (slider.position || Number)(this.state[input.name]);
        if (Number(input.value) !== position) input.value = position;
        const words = slider.says ? slider.says({ ...this.state, m: this.m, n: this.n }) : String(this.state[input.name]);
        input.previousElementSibling.textContent = words;
        input.setAttribute("aria-valuetext", words);
      }
    }

    drawScene(plan) {
      const { slots, inputs } = this.state;
      // Slots in the same place are drawn as a stack.
      const at = slots.map(([x, y], i) => {
        const below = slots.slice(0, i).filter(([a, b]) => Math.hypot(a - x, b - y) < 0.3).length;
        return [10 * x + 2.2 * below, 10 * y - 2.2 * below];
      });
      const most = Math.min(1, this.m / this.n);
      this.lines.replaceChildren();
      plan.forEach((row, i) => row.forEach((mass, j) => {
        const share = mass / most;
        if (share < 0.02) return;
        const [x, y] = inputs[j];
        this.lines.append(svg("line", { x1: at[i][0], y1: at[i][1], x2: 10 * x, y2: 10 * y, stroke: FILLS[i], "stroke-width": 0.3 + 1.5 * share, "stroke-opacity": 0.2 + 0.7 * share, "stroke-linecap": "round" }));
      }));
      for (const { dot, kind, k } of this.dots) {
        const [x, y] = this.state[kind][k];
        const [px, py] = kind === "slots" ? at[k] : [10 * x, 10 * y];
        const name = kind === "slots" ? `Slot ${LETTERS[k]}` : `Input ${k + 1}`;
        dot.setAttribute("transform", `translate(${px} ${py})`);
        dot.setAttribute("aria-label", name);
        dot.setAttribute("aria-valuenow", x);
        dot.setAttribute("aria-valuetext", `x ${x}, y ${y}`);
        dot.lastChild.replaceChildren(...(kind === "slots" ? square(k) : pie(plan.map((row) => row[k]), k)));
      }
    }

    drawPlan(card) {
      const { variant } = card.dataset;
      const plan = this.plans[variant];
      const says = VARIANTS[variant];
      const shown = this.state.show === variant && this.state.mode === "points";
      card.toggleAttribute("data-shown", shown);
      const button = card.querySelector("button");
      button.setAttribute("aria-pressed", shown);
      button.disabled = this.state.mode !== "points";
      button.title = button.disabled ? "" : `Draw the plan of ${variant} between the points`;
      card.querySelector("p").textContent = typeof says === "string" ? says : says(this.state);
      const chart = card.querySelector("svg");
      const [cell, gap, left, top] = [20, 2, 16, 14];
      chart.setAttribute("viewBox", `0 0 ${left + this.n * (cell + gap)} ${top + this.m * (cell + gap)}`);
      chart.style.maxHeight = "210px";
      const value = slotmesh.entropy(plan);
      chart.setAttribute("aria-label", `Plan of ${variant}: ${plan.map((row, i) => `slot ${LETTERS[i]} takes ${row.map(short).join(", ")}`).join("; ")}`);
      const parts = [];
      const small = { "font-size": 9.5, "text-anchor": "middle", "font-weight": 650 };
      for (let j = 0; j < this.n; j++) parts.push(svg("text", { ...small, x: left + j * (cell + gap) + cell / 2, y: 9, fill: "var(--soft)" }, String(j + 1)));
      const most = Math.min(1, this.m / this.n);
      plan.forEach((row, i) => {
        const y = top + i * (cell + gap);
        parts.push(svg("text", { ...small, "font-size": 11, x: 7, y: y + cell / 2 + 4, fill: "var(--ink)" }, LETTERS[i]));
        row.forEach((mass, j) => {
          const box = { x: left + j * (cell + gap), y, width: cell, height: cell, rx: 3 };
          parts.push(svg("rect", { ...box, fill: "var(--well)", stroke: "var(--line)", "stroke-width": 0.6 }));
          const full = svg("rect", { ...box, fill: FILLS[i], "fill-opacity": clamp(mass / most, 0, 1) });
          full.append(svg("title", {}, `Slot ${LETTERS[i]}, input ${j + 1}: ${mass.toFixed(3)}`));
          parts.push(full);
        });
      });
      chart.replaceChildren(...parts);
      card.querySelector(".entropy").innerHTML = `entropy <b>${Math.abs(value).toFixed(2)}</b>`;
    }

    drawChart() {
      const chart = this.find(".chart");
      const width = clamp(chart.clientWidth, 280, 900);
      const [left, right, top, bottom] = [30, 76, 12, 196];
      const lines = Object.entries(this.plans).map(([name, plan]) => [name, slotmesh.entropy(plan)]).slice(0, 3);
      const most = Math.max(...this.entropies, ...lines.map(([, h]) => h), 0.1) * 1.06;
      const x = (k) => left + ((width - left - right) * k) / Math.max(1, this.entropies.length - 1);
      const y = (h) => bottom - ((bottom - top) * h) / most;
      const parts = [];
      const power = 10 ** Math.floor(Math.log10(most));
      const tick = power * (most > 4 * power ? 2 : most > 1.6 * power ? 1 : 0.5);
      for (let h = 0; h <= most; h += tick) {
        parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(h), y2: y(h) }));
        parts.push(svg("text", { x: left - 8, y: y(h) + 4, "text-anchor": "end" }, short(h)));
      }
      this.entropies.forEach((_, k) => parts.push(svg("text", { x: x(k), y: bottom + 18, "text-anchor": "middle" }, String(k))));
      parts.push(svg("text", { x: (left + width - right) / 2, y: bottom + 35, "text-anchor": "middle" }, "MESH steps"));
      // Names keep a distance from each other, in the order of their lines.
      const names = [...lines, ["SA-MESH", this.entropies.at(-1)]].sort((a, b) => b[1] - a[1]);
      const places = names.map(([, h]) => y(h) + 4);
      for (let k = 1; k < places.length; k++) places[k] = Math.max(places[k], places[k - 1] + 14);
      const over = Math.max(0, places.at(-1) - bottom - 6);
      for (let k = places.length - 1, limit = places.at(-1) - over; k >= 0; k--, limit -= 14) places[k] = Math.min(places[k], limit);
      names.forEach(([name, h], k) => {
        const group = svg("g", { class: name });
        if (name !== "SA-MESH") group.append(svg("line", { x1: left, x2: width - right, y1: y(h), y2: y(h), stroke: "currentColor", "stroke-width": 1.5, "stroke-dasharray": "5 4" }));
        group.append(svg("text", { class: "named", x: width - right + 10, y: places[k] }, name));
        parts.push(group);
      });
      const path = this.entropies.map((h, k) => `${k ? "L" : "M"}${x(k)} ${y(h)}`).join("");
      const own = svg("g", { class: "SA-MESH" });
      own.append(svg("path", { d: path, fill: "none", stroke: "currentColor", "stroke-width": 2.5, "stroke-linejoin": "round" }));
      this.entropies.forEach((h, k) => own.append(svg("circle", { cx: x(k), cy: y(h), r: 4, fill: "currentColor" })));
      parts.push(own);
      chart.setAttribute("viewBox", `0 0 ${width} ${bottom + 44}`);
      chart.replaceChildren(...parts);
      chart.setAttribute("aria-label", `Entropy after 0 to ${this.entropies.length - 1} MESH steps: ${this.entropies.map((h) => Math.abs(h).toFixed(2)).join(", ")}`);
    }

    drawCode(cost) {
      const { state } = this;
      const digits = (x) => String(Math.round(1000 * x) / 1000);
      const matrix = cost.map((row) => `    [${row.map(digits).map((x) => (x.includes(".") ? x : `${x}.`)).join(", ")}],`).join("\n");
      this.find("pre").textContent = `import torch\nfrom slotmesh import mesh\n\ncost = torch.tensor([\n${matrix}\n])\nmesh(\n    cost, step=${state.step}, n_steps=${state.steps}, n_iters=${state.iters},\n    temperature=${state.temp}, noise=${state.noise},\n).plan`;
    }
  }

  function square(k) {
    const side = 8.4;
    return [
      svg("rect", { x: -side / 2, y: -side / 2, width: side, height: side, rx: 2, fill: FILLS[k], stroke: "var(--panel)", "stroke-width": 0.8 }),
      svg("text", { "font-size": 5, fill: INKS[k], y: 0.3 }, LETTERS[k]),
    ];
  }

  // An input, divided among the slots by their mass.
  function pie(masses, k) {
    const radius = 3;
    const total = masses.reduce((a, b) => a + b, 0);
    const parts = [];
    let from = -Math.PI / 2;
    masses.forEach((mass, i) => {
      const share = total > 0 ? mass / total : 0;
      if (share < 0.002) return;
      if (share > 0.998) parts.push(svg("circle", { r: radius, fill: FILLS[i] }));
      const to = from + 2 * Math.PI * share;
      const point = (angle) => `${radius * Math.cos(angle)} ${radius * Math.sin(angle)}`;
      parts.push(svg("path", { d: `M0 0L${point(from)}A${radius} ${radius} 0 ${share > 0.5 ? 1 : 0} 1 ${point(to)}Z`, fill: FILLS[i] }));
      from = to;
    });
    parts.push(svg("circle", { r: radius, fill: "none", stroke: "var(--panel)", "stroke-width": 0.7 }));
    parts.push(svg("text", { class: "number", y: 5.6 }, String(k + 1)));
    return parts;
  }

  if (!customElements.get("slotmesh-tie")) customElements.define("slotmesh-tie", Tie);
})();
