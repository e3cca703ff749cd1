// @ts-check
// Before anything is drawn: which theme the reader chose, and that scripts run at all. Not a module: those run too late.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const chosen = localStorage.getItem("holdfast-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing shows the system's theme.
  }
})();
