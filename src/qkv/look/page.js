// The attention page: choose a layer and a head, point at a cell or a token. The averages stand in the page without it.
"use strict";
document.documentElement.classList.add("js");

const LEVELS = 64; // as in colour.py
const level = (weight) => Math.round(Math.sqrt(weight) * (LEVELS - 1));
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// Weights travel as 16-bit fractions of one, little-endian, in base64: rows of columns.
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, place) => view.getUint16(2 * place, true) / 65535);
}

// As `written` in table.py: 0, .43, 1.
function written(weight) {
  const text = weight.toFixed(2);
  return text === "0.00" ? "0" : text === "1.00" ? "1" : text.slice(1);
}

function ramp() {
  const style = getComputedStyle(document.documentElement);
  return Array.from({ length: LEVELS }, (_, step) => {
    const number = parseInt(style.getPropertyValue(`--c${step}`).trim().slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  });
}

class Input {
  constructor(section) {
    this.section = section;
    this.kinds = JSON.parse(section.querySelector("script").textContent).kinds;
    this.strips = section.querySelector(".strips");
    this.table = section.querySelector("table");
    this.frame = section.querySelector(".scroll");
    this.caption = section.querySelector("figcaption");
    this.note = section.querySelector(".note");
    this.readout = section.querySelector(".readout");
    this.thumbs = [];
    this.cell = null;
    this.addChoice();
    this.frame.addEventListener("pointerover", (event) => this.follow(event));
    this.strips.addEventListener("pointerover", (event) => this.follow(event));
    section.querySelector(".view").addEventListener("pointerleave", () => this.point(null, null));
    this.frame.tabIndex = 0;
    this.frame.addEventListener("keydown", (event) => this.step(event));
    this.show(0, 0, 0);
  }

  addChoice() {
    const choice = make("aside", { className: "choice", ariaLabel: "Layers and heads" });
    const tabs = make("div", { className: "kinds" });
    if (this.kinds.length > 1) choice.append(tabs);
    this.panels = this.kinds.map((kind, k) => {
      const tab = make("button", { type: "button", textContent: kind.heading });
      tab.addEventListener("click", () => this.show(k, 0, 0));
      tabs.append(tab);
      const layers = make("div", { className: kind.layers.at(-1).heads.length > 5 ? "layers small" : "layers" });
      kind.layers.forEach((layer, l) => layers.append(make("p", { textContent: layer.label }), this.row(kind, k, layer, l)));
      choice.append(layers);
      return { tab, layers };
    });
    if (this.thumbs.length > 1) this.section.querySelector(".stage").append(choice);
  }

  row(kind, k, layer, l) {
    const buttons = layer.heads.map((head, h) => {
      const canvas = make("canvas", { width: kind.keys.length, height: kind.queries.length });
      const name = `${kind.heading}, ${layer.label}, ${head.label}`;
      const button = make("button", { type: "button", title: name, ariaLabel: name }, canvas);
      button.addEventListener("click", () => this.show(k, l, h));
      this.thumbs.push({ button, canvas, head, at: `${k} ${l} ${h}` });
      return button;
    });
    return make("div", { className: "heads" }, ...buttons);
  }

  weights(head) {
    head.values ??= unpack(head.weights);
    return head.values;
  }

  drawThumbs() {
    const colours = ramp();
    for (const { canvas, head } of this.thumbs) {
      const brush = canvas.getContext("2d");
      const image = brush.createImageData(canvas.width, canvas.height);
      this.weights(head).forEach((weight, place) => image.data.set([...colours[level(weight)], 255], 4 * place));
      brush.putImageData(image, 0, 0);
    }
  }

  show(k, l, h) {
    const kind = this.kinds[k], layer = kind.layers[l], head = layer.heads[h];
    if (kind !== this.kind) this.rebuild(kind);
    this.values = this.weights(head);
    this.eachCell((cell, row, column) => {
      const weight = this.values[row * kind.keys.length + column];
      cell.className = `c${level(weight)}`;
      cell.textContent = written(weight);
    });
    const which = layer.heads.length > 1 ? `${layer.label}, ${head.label}` : layer.label;
    this.caption.replaceChildren(make("b", { textContent: kind.heading }), ` · ${which} `,
      make("code", { textContent: layer.name }));
    this.table.caption.textContent = `${kind.heading}, ${which}`;
    this.panels.forEach(({ tab, layers }, place) => {
      tab.ariaPressed = String(place === k);
      layers.hidden = place !== k;
    });
    for (const { button, at } of this.thumbs) button.ariaPressed = String(at === `${k} ${l} ${h}`);
    this.point(null, null);
  }

  rebuild(kind) {
    if (this.kind) {
      const heading = (label, scope) => make("th", { scope }, make("bdi", { textContent: label }));
      const corner = make("tr", {}, make("td"), ...kind.keys.map((key) => heading(key, "col")));
      const rows = kind.queries.map((query) =>
        make("tr", {}, heading(query, "row"), ...kind.keys.map(() => make("td"))));
      this.table.tHead.replaceChildren(corner);
      this.table.tBodies[0].replaceChildren(...rows);
      this.table.className = kind.look;
      this.table.style.setProperty("--cell", `${kind.cell}px`);
    }
    this.kind = kind;
    this.note.textContent = kind.note;
    const strip = (name, labels, side) => {
      const chips = labels.map((label, place) => {
        const chip = make("span", { textContent: label, dir: "auto" });
        chip.dataset[side] = place;
        return chip;
      });
      return make("div", { className: "strip" }, make("em", { textContent: name }), make("div", {}, ...chips));
    };
    this.strips.replaceChildren(strip(kind.rows, kind.queries, "row"), strip(kind.columns, kind.keys, "column"));
  }

  eachCell(visit) {
    [...this.table.tBodies[0].rows].forEach((line, row) =>
      [...line.cells].slice(1).forEach((cell, column) => visit(cell, row, column)));
  }

  // Where a pointer is: on a cell (row and column), on a token of either side (one of them), or elsewhere.
  follow(event) {
    const chip = event.target.closest(".strip span");
    if (chip) return this.point(chip.dataset.row ?? null, chip.dataset.column ?? null);
    const cell = event.target.closest(".map th, .map td");
    if (!cell) return this.point(null, null);
    const row = cell.parentElement.rowIndex - 1, column = cell.cellIndex - 1;
    return this.point(row < 0 ? null : row, column < 0 ? null : column);
  }

  step(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") return this.point(null, null);
    if (!move) return undefined;
    event.preventDefault();
    const [row, column] = this.cell ?? [0, 0];
    const within = (value, size) => Math.min(Math.max(value, 0), size - 1);
    return this.point(within(row + (this.cell ? move[0] : 0), this.kind.queries.length),
      within(column + (this.cell ? move[1] : 0), this.kind.keys.length));
  }

  point(row, column) {
    row = row === null ? null : Number(row);
    column = column === null ? null : Number(column);
    this.cell = row !== null && column !== null ? [row, column] : null;
    const { keys, queries } = this.kind, width = keys.length;
    this.table.classList.toggle("pointing", row !== null || column !== null);
    this.eachCell((cell, r, c) => {
      cell.classList.toggle("lit", r === row || c === column);
      cell.classList.toggle("here", r === row && c === column);
    });
    [...this.table.tHead.rows[0].cells].forEach((cell, place) => cell.classList.toggle("lit", place - 1 === column));
    [...this.table.tBodies[0].rows].forEach((line, place) => line.cells[0].classList.toggle("lit", place === row));

    // Pointing at a row shades what it looks at; pointing at a column alone shades what looks at it.
    const along = row !== null ? keys.map((_, c) => this.values[row * width + c]) : null;
    const upon = row === null && column !== null ? queries.map((_, r) => this.values[r * width + column]) : null;
    const [rowStrip, columnStrip] = this.strips.children;
    const shade = (strip, weights, chosen) => [...strip.querySelectorAll("span")].forEach((chip, place) => {
      if (place === chosen) chip.className = "chosen";
      else if (weights) chip.className = `c${level(weights[place])} shown`;
      else chip.removeAttribute("class");
    });
    shade(rowStrip, upon, row);
    shade(columnStrip, along, row === null ? column : null);
    this.readout.replaceChildren(...this.say(row, column, along, upon));
  }

  say(row, column, along, upon) {
    const { keys, queries } = this.kind;
    const bold = (label) => make("b", { textContent: label, dir: "auto" });
    if (row === null && column === null) return ["Point at a cell or a token, or move through the map with the arrow keys."];
    const largest = (weights, labels) => weights.map((weight, place) => [weight, place]).sort((a, b) => b[0] - a[0])
      .slice(0, 5).filter(([weight]) => weight >= .005)
      .flatMap(([weight, place], count) => [count ? ", " : " ", bold(labels[place]), ` ${written(weight)}`]);
    if (row === null) return [bold(keys[column]), " is looked at most by", ...largest(upon, queries), "."];
    const whole = [bold(queries[row]), " looks at", ...largest(along, keys), "."];
    if (column === null) return whole;
    const weight = this.values[row * keys.length + column].toFixed(4);
    return [bold(queries[row]), " looks at ", bold(keys[column]), " with weight ", bold(weight), make("br"), ...whole];
  }
}

// The first input is made at once, the others when they come near: a page may hold many.
const inputs = new Map();
function bring(section) {
  if (inputs.has(section)) return;
  inputs.set(section, new Input(section));
  inputs.get(section).drawThumbs();
}
const arrival = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => bring(entry.target)),
  { rootMargin: "800px" },
);
const [first, ...others] = document.querySelectorAll(".input");
bring(first);
others.forEach((section) => arrival.observe(section));

const redraw = () => inputs.forEach((input) => input.drawThumbs());
const dark = matchMedia("(prefers-color-scheme: dark)");
const scheme = document.querySelector(".scheme");
const isDark = () => (document.documentElement.dataset.scheme ?? (dark.matches ? "dark" : "light")) === "dark";
const nameScheme = () => { scheme.textContent = isDark() ? "Light" : "Dark"; };
scheme.hidden = false;
nameScheme();
scheme.addEventListener("click", () => {
  document.documentElement.dataset.scheme = isDark() ? "light" : "dark";
  nameScheme();
  redraw();
});
dark.addEventListener("change", () => { nameScheme(); redraw(); });
