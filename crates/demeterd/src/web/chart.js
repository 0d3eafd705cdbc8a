// SPDX-License-Identifier: Apache-2.0 OR MIT
// Curves over the last minutes as SVG. Texts are set as texts, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 130;
const LEFT = 62;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
// Distances of marks on the axis of time.
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const SPAN_LEAST_MS = 10_000;

function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// "40 s", "5 min", "2 h"
export function span(ms) {
  const s = Math.round(ms / 1000);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${Math.round(s / 360) / 10} h`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024;
    at += 1;
  }
  return `${count >= 100 || Number.isInteger(count) ? Math.round(count) : count.toFixed(1)} ${units[at]}`;
}

// Pieces of a curve without the times of which nothing is known. Values hold until
// the next one.
function pieces(points, value, gapMs) {
  const all = [];
  let piece = null;
  let last = null;
  for (const point of points) {
    const y = value(point);
    if (y === null || y === undefined) {
      piece = null;
    } else {
      if (piece === null || point.at_ms - last > gapMs) all.push((piece = []));
      piece.push([point.at_ms, y]);
    }
    last = point.at_ms;
  }
  return all;
}

// A figure that is drawn anew with `update(points, nowMs, gapMs, top)`. `curves` have name,
// kind (a class), value (of a point), words (of a value); the first one may be `filled`.
export function chart(title, curves) {
  const svg = element("svg", { role: "img" });
  const words = document.createElement("figcaption");
  const figure = document.createElement("figure");
  figure.append(svg, words);
  let drawn = null;
  let pointed = null;

  const tell = () => {
    if (!drawn || drawn.points.length === 0) {
      words.textContent = `${title}: nothing known yet`;
      return;
    }
    const { points, nowMs } = drawn;
    let point = points[points.length - 1];
    let when = "now";
    if (pointed !== null) {
      const at = drawn.timeOf(pointed);
      point = points.reduce((best, other) =>
        Math.abs(other.at_ms - at) < Math.abs(best.at_ms - at) ? other : best,
      );
      when = `${span(nowMs - point.at_ms)} ago`;
    }
    const parts = curves.map((curve) => {
      const value = curve.value(point);
      return `${curve.name} ${value === null || value === undefined ? "–" : curve.words(value)}`;
    });
    words.textContent = `${title}, ${when}: ${parts.join(", ")}`;
    svg.setAttribute("aria-label", words.textContent);
  };

  const draw = () => {
    if (!drawn) return;
    const { points, nowMs, gapMs, top } = drawn;
    const width = Math.max(figure.clientWidth, 200);
    const spanMs = Math.max(points.length ? nowMs - points[0].at_ms : 0, SPAN_LEAST_MS);
    const x = (atMs) => LEFT + (1 - (nowMs - atMs) / spanMs) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
    drawn.timeOf = (pixels) => nowMs - (1 - (pixels - LEFT) / (width - LEFT - RIGHT)) * spanMs;
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      parts.push(element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      const mark = element("text", { x: LEFT - 5, y: at + 4, "text-anchor": "end" });
      mark.textContent = curves[0].words(top * share);
      parts.push(mark);
    }
    const step = STEPS_S.find((s) => (s * 1000 * (width - LEFT)) / spanMs >= 70) ?? STEPS_S.at(-1);
    for (let age = 0; age * 1000 <= spanMs; age += step) {
      const at = x(nowMs - age * 1000);
      const anchor = age === 0 ? "end" : "middle";
      const mark = element("text", { x: age === 0 ? width : at, y: HEIGHT - 4, "text-anchor": anchor });
      mark.textContent = age === 0 ? "now" : `-${span(age * 1000)}`;
      if (at > LEFT - 10) parts.push(mark);
    }
    curves.forEach((curve, index) => {
      for (const piece of pieces(points, curve.value, gapMs)) {
        const end = Math.min(piece.at(-1)[0] + gapMs / 2, nowMs);
        let path = `M${x(piece[0][0]).toFixed(1)} ${y(piece[0][1]).toFixed(1)}`;
        for (const [atMs, value] of piece.slice(1)) {
          path += `H${x(atMs).toFixed(1)}V${y(value).toFixed(1)}`;
        }
        path += `H${x(end).toFixed(1)}`;
        if (index === 0 && curve.filled) {
          const closed = `${path}V${y(0)}H${x(piece[0][0]).toFixed(1)}Z`;
          parts.push(element("path", { class: "area", d: closed }));
        }
        parts.push(element("path", { class: `curve ${curve.kind}`, d: path }));
      }
    });
    if (pointed !== null) {
      parts.push(element("line", { class: "pointer", x1: pointed, x2: pointed, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren(...parts);
    tell();
  };

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    pointed = Math.min(Math.max(event.clientX - box.left, LEFT), box.width - RIGHT);
    draw();
  });
  svg.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });
  new ResizeObserver(draw).observe(figure);
  return {
    figure,
    update(points, nowMs, gapMs, top) {
      drawn = { points, nowMs, gapMs, top: Math.max(top, 1), timeOf: () => nowMs };
      draw();
    },
  };
}
