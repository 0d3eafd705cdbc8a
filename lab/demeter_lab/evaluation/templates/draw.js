// SPDX-License-Identifier: Apache-2.0 OR MIT
// Draws every figure of the page. document.drawn says when all of them are there.
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const actions = { export: true, source: false, compiled: false, editor: false };
document.drawn = Promise.all(
  Array.from(document.querySelectorAll("figure"), (figure) =>
    vegaEmbed(
      figure.querySelector(".drawing"),
      JSON.parse(figure.querySelector("script").textContent),
      { renderer: "svg", actions, tooltip: { theme: dark ? "dark" : "light" } },
    ),
  ),
);
