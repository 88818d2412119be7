// Runs before anything is painted: the theme, so that nothing flashes, and the zone, in which the server writes times.
(function () {
  "use strict";
  var scheme = "auto";
  try {
    scheme = localStorage.getItem("mantine-color-scheme-value") || "auto";
  } catch (error) {
    scheme = "auto"; // storage may be forbidden; the system's scheme holds then
  }
  if (scheme === "auto") {
    scheme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.setAttribute("data-mantine-color-scheme", scheme);
  var zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  document.cookie = "tightship_zone=" + encodeURIComponent(zone) + "; path=/; max-age=31536000; samesite=lax";
})();
