// Before the page is painted: the theme that the reader chose, if any.
"use strict";

(() => {
  const theme = localStorage.getItem("lowkiq-theme");
  if (theme) document.documentElement.dataset.theme = theme;
})();
