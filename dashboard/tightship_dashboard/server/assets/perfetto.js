// "Open in Perfetto": its page is opened in a new tab, and when it says that it listens it is handed the file, which
// this tab has fetched from here. See https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
(function () {
  "use strict";
  var ORIGIN = "https://ui.perfetto.dev";
  var PATIENCE_MS = 60000;

  function hand(button, opened, buffer) {
    var title = button.getAttribute("data-title") || "trace";
    var listening = false;
    var began = Date.now();
    function onMessage(event) {
      if (event.origin !== ORIGIN || event.source !== opened || event.data !== "PONG" || listening) return;
      listening = true;
      window.removeEventListener("message", onMessage);
      opened.postMessage({ perfetto: { buffer: buffer, title: title, fileName: "trace.json.gz" } }, ORIGIN);
      button.textContent = "Opened in Perfetto";
    }
    window.addEventListener("message", onMessage);
    (function knock() {
      if (listening) return;
      if (opened.closed || Date.now() - began > PATIENCE_MS) {
        window.removeEventListener("message", onMessage);
        button.textContent = "Perfetto did not answer: download the file instead";
        return;
      }
      opened.postMessage("PING", ORIGIN);
      setTimeout(knock, 100);
    })();
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-perfetto]");
    if (!button) return;
    // Opened at the click itself: a browser lets no page open a tab later.
    var opened = window.open(ORIGIN);
    if (!opened) {
      button.textContent = "The browser allows no new tab: download the file instead";
      return;
    }
    button.textContent = "Opening…";
    fetch(button.getAttribute("data-perfetto"), { credentials: "same-origin" })
      .then(function (answer) {
        if (!answer.ok) throw new Error(String(answer.status));
        return answer.arrayBuffer();
      })
      .then(function (buffer) { hand(button, opened, buffer); })
      .catch(function () {
        opened.close();
        button.textContent = "The file could not be fetched";
      });
  });
})();
