"use strict";
(() => {
  // Lines of the bill are buttons in tables that the server writes; what they open is put below their row, so that
  // nothing else is drawn again and the focus stays where it is.
  const button = (name) => [...document.querySelectorAll("[data-line]")].find((each) => each.dataset.line === name);

  function shut(line) {
    line.setAttribute("aria-expanded", "false");
    const below = line.closest("tr").nextElementSibling;
    if (below && below.classList.contains("opened")) below.remove();
  }

  window.costmodelOpen = (name, html) => {
    const line = button(name);
    if (!line) return;
    document.querySelectorAll('[data-line][aria-expanded="true"]').forEach(shut);
    const row = line.closest("tr");
    const below = document.createElement("tr");
    below.className = "opened";
    const cell = document.createElement("td");
    cell.colSpan = row.cells.length;
    cell.setHTML(html);
    below.append(cell);
    row.after(below);
    line.setAttribute("aria-expanded", "true");
  };

  // The library passes this attribute on one drawing late.
  window.costmodelBlame = (name) => {
    for (const input of document.querySelectorAll("[data-field]")) {
      input.setAttribute("aria-invalid", String(input.dataset.field === name));
    }
  };

  let resized;
  window.addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(async () => {
      const drawn = [...document.querySelectorAll(".app-figure")].filter((figure) => figure.offsetParent);
      if (!drawn.length) return;
      const { Plotly } = await import("nicegui-plotly");
      drawn.forEach((figure) => Plotly.Plots.resize(figure));
    }, 100);
  });

  document.addEventListener("click", (event) => {
    const line = event.target.closest("[data-line]");
    if (line && line.getAttribute("aria-expanded") === "true") {
      shut(line);
      emitEvent("costmodel_line", "");
    } else if (line) {
      emitEvent("costmodel_line", line.dataset.line);
    }
    const layout = event.target.closest("[data-use]");
    if (layout) emitEvent("costmodel_use", layout.dataset.use);
  });
})();
