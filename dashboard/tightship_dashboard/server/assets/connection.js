// Trouble with the server is one line above the page, not a broken page: what happened, and what was not lost.
(function () {
  "use strict";
  var plainFetch = window.fetch.bind(window);
  var since = null;

  function show(text) {
    var line = document.getElementById("trouble");
    if (!line) return;
    line.textContent = text;
    line.hidden = !text;
  }

  function nothing() {
    return new Response(null, { status: 204 }); // to Dash: nothing changes on the page
  }

  window.fetch = function (resource, options) {
    var url = typeof resource === "string" ? resource : resource.url || "";
    if (url.indexOf("_dash-update-component") < 0) return plainFetch(resource, options);
    return plainFetch(resource, options).then(
      function (response) {
        if (response.ok) {
          if (since) { since = null; show(""); }
          return response;
        }
        since = since || new Date();
        if (response.status === 401) {
          window.location.assign("/login?next=" + encodeURIComponent(window.location.pathname + window.location.search));
          return nothing();
        }
        return response.json().catch(function () { return {}; }).then(function (body) {
          show((body.error || "The server answered " + response.status) + ". What you see is from before; nothing recorded is lost.");
          return nothing();
        });
      },
      function () {
        since = since || new Date();
        show("The server has not answered since " + since.toLocaleTimeString() +
          ". What you see is from before; jobs and their records are not affected. Trying again.");
        return nothing();
      }
    );
  };
})();
