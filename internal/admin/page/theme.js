// Before anything is drawn: the theme that was chosen here last.
"use strict";
try { document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto"; } catch { /* storage is off: auto */ }
