(() => {
  "use strict";
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  document.documentElement.classList.add("js");

  // Pictures: a checkbox enlarges them, without scripts too.
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const box of all(".zoom input:checked")) box.checked = false;
    if (event.key === "Enter" && event.target.matches(".zoom input")) event.target.click();
  });

  // Runs: checkboxes hide them by CSS; these change all at once.
  for (const bar of all(".all-none")) {
    bar.hidden = false;
    bar.addEventListener("click", (event) => {
      const on = event.target.value;
      if (on) for (const box of all("input", bar.parentElement)) box.checked = on === "all";
    });
  }

  // Tables: a click on a heading sorts the first group of rows.
  for (const table of all("table.sorts")) {
    const body = table.tBodies[0];
    if (!body || body.rows.length < 2) continue;
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const key = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.v ?? cell.textContent.trim();
        const number = text === "" ? NaN : Number(text);
        return Number.isNaN(number) ? (cell.dataset.v === undefined ? text : "") : number;
      };
      button.addEventListener("click", () => {
        const rows = [...body.rows];
        const numeric = rows.some((row) => typeof key(row) === "number");
        const now = head.getAttribute("aria-sort");
        const down = now ? now === "ascending" : numeric;
        for (const other of all("th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const compare = (a, b) => {
          const x = key(a), y = key(b);
          if (numeric && typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
          const sign = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
          return down ? -sign : sign;
        };
        body.append(...rows.sort(compare));
      });
    });
  }

  // Curves: values under the pointer, or by the arrow keys.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const most = 8;
  const shown = (value) => Number(value.toPrecision(4)).toLocaleString("en", {
    maximumSignificantDigits: 6,
  });
  const svgNode = (name, values) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) node.setAttribute(key, value);
    return node;
  };

  for (const svg of all("svg.chart")) {
    const [x0, x1] = svg.dataset.x.split(" ").map(Number);
    const [y0, y1] = svg.dataset.y.split(" ").map(Number);
    const log = svg.dataset.log === "1";
    const left = 46, right = 410, top = 10, bottom = 204;
    const step = (x) => x0 + ((x - left) / (right - left)) * (x1 - x0);
    const value = (y) => {
      const share = (bottom - y) / (bottom - top);
      return log ? y0 * (y1 / y0) ** share : y0 + share * (y1 - y0);
    };
    let lines = null, layer = null, at = null;
    const read = () => {
      lines = all(".run", svg).map((node) => {
        node.querySelector("title")?.remove();
        const numbers = node.querySelector("path").getAttribute("d").match(/-?[\d.]+/g).map(Number);
        const points = [];
        for (let i = 0; i + 1 < numbers.length; i += 2) points.push([numbers[i], numbers[i + 1]]);
        return { node, points };
      });
    };
    const hide = () => {
      tip.hidden = true;
      layer?.remove();
      layer = null;
    };
    const show = (x, y) => {
      if (!lines) read();
      const box = svg.getBoundingClientRect();
      const scale = box.width / 420;
      const visible = lines.filter(({ node }) => getComputedStyle(node).display !== "none");
      let near = visible.map(({ node, points }) => {
        let best = points[0];
        for (const point of points) if (Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
        return { node, place: best };
      });
      if (!near.length) return hide();
      const nearest = near.reduce((a, b) => (Math.abs(b.place[0] - x) < Math.abs(a.place[0] - x) ? b : a));
      at = nearest.place[0];
      near = near.filter(({ place }) => Math.abs(place[0] - at) <= 12);
      const rest = near.length - most;
      near.sort((a, b) => Math.abs(a.place[1] - y) - Math.abs(b.place[1] - y));
      near = near.slice(0, most).sort((a, b) => a.place[1] - b.place[1]);
      layer?.remove();
      layer = svgNode("g", { "aria-hidden": "true" });
      layer.append(svgNode("path", { class: "cursor", d: `M${at} ${top}V${bottom}` }));
      const head = document.createElement("p");
      head.textContent = `step ${shown(Math.round(step(at)))}`;
      tip.replaceChildren(head);
      for (const { node, place } of near) {
        const dot = svgNode("circle", { cx: place[0], cy: place[1], r: 3.5 });
        dot.setAttribute("style", node.getAttribute("style"));
        layer.append(dot);
        const row = document.createElement("div");
        const sign = svgNode("svg", { class: "swatch", viewBox: "0 0 26 8", width: 26, height: 8 });
        sign.setAttribute("style", node.getAttribute("style"));
        sign.append(svgNode("path", { d: "M0 4H26" }));
        const name = document.createElement("span");
        name.textContent = node.dataset.name;
        const number = document.createElement("b");
        number.textContent = shown(value(place[1])) + svg.dataset.unit;
        row.append(sign, name, number);
        tip.append(row);
      }
      if (rest > 0) {
        const more = document.createElement("p");
        more.textContent = `and ${rest} more`;
        tip.append(more);
      }
      svg.append(layer);
      tip.hidden = false;
      const px = box.left + at * scale, size = tip.getBoundingClientRect();
      const beside = px + 14 + size.width > innerWidth ? px - 14 - size.width : px + 14;
      tip.style.left = `${Math.max(4, Math.min(beside, innerWidth - size.width - 4))}px`;
      const above = box.top + y * scale - size.height / 2;
      tip.style.top = `${Math.max(4, Math.min(above, innerHeight - size.height - 4))}px`;
    };
    const move = (event) => {
      const box = svg.getBoundingClientRect();
      const scale = 420 / box.width;
      show((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    };
    svg.tabIndex = 0;
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!way) return;
      event.preventDefault();
      if (!lines) read();
      const places = [...new Set(lines.flatMap(({ points }) => points.map(([x]) => x)))];
      places.sort((a, b) => a - b);
      let next = places.length - 1;
      if (at !== null) {
        const now = places.findIndex((x) => x >= at);
        next = Math.max(0, Math.min(places.length - 1, now + way));
      }
      show(places[next], (top + bottom) / 2);
    });
  }
})();
