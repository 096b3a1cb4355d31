// What scrolls sideways can be reached by keyboard, and copy buttons of one page have names of their own.
document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code actions ${at + 1}`));
});
