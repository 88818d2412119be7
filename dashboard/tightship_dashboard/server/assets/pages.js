// What pages do in the browser without asking the server: theme, title, search, copying, the keyboard.
(function () {
  "use strict";
  var ns = (window.dash_clientside = window.dash_clientside || {});
  var tightship = (ns.tightship = ns.tightship || {});

  tightship.go = function (href) {
    var url = new URL(href, window.location.href);
    if (url.origin !== window.location.origin) return;
    window.history.pushState({}, "", url.pathname + url.search + url.hash);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  };

  tightship.title = function (title) {
    if (title) document.title = title + " · tightship";
    return ns.no_update;
  };

  tightship.scheme = function (scheme) {
    try {
      // Mantine reads this at its start, before any callback runs.
      localStorage.setItem("mantine-color-scheme-value", scheme || "auto");
    } catch (error) {
      // storage is forbidden: the choice then lasts as long as the page
    }
    if (scheme === "light" || scheme === "dark") return scheme;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    if ((localStorage.getItem("mantine-color-scheme-value") || "auto") === "auto") {
      ns.set_props("theme", { forceColorScheme: tightship.scheme("auto") });
    }
  });

  tightship.follow = function (href) {
    if (!href) return ns.no_update;
    tightship.go(href);
    return null;
  };

  // What can be found is asked for when somebody begins to search, so that a run started just now is among it.
  document.addEventListener("focusin", function (event) {
    if (event.target.id === "search") ns.set_props("search-asked", { data: Date.now() });
  });

  // The form of "Will it fit?" lives in the address; a field that is left empty is not in it.
  tightship.planFor = function (workflow, gpu, memory, host, cores) {
    var query = new URLSearchParams();
    [["workflow", workflow], ["gpu", gpu], ["memory", memory], ["host", host], ["cores", cores]].forEach(function (pair) {
      if (pair[1] && String(pair[1]).trim()) query.set(pair[0], String(pair[1]).trim());
    });
    var text = query.toString();
    var shown = new URLSearchParams(window.location.search).toString();
    if (window.location.pathname === "/will-it-fit" && text !== shown) {
      tightship.go("/will-it-fit" + (text ? "?" + text : ""));
    }
    return ns.no_update;
  };

  // Filters of lists live in the address; what is not among these fields stays as it is.
  function filterBy(path, pairs) {
    var query = new URLSearchParams(window.location.search);
    pairs.forEach(function (pair) {
      if (pair[1]) query.set(pair[0], pair[1]);
      else query.delete(pair[0]);
    });
    var text = query.toString();
    if (window.location.pathname === path && text !== new URLSearchParams(window.location.search).toString()) {
      tightship.go(path + (text ? "?" + text : ""));
    }
    return ns.no_update;
  }
  tightship.filterAudit = function (action, actor) {
    return filterBy("/audit", [["action", action], ["actor", actor]]);
  };
  tightship.filterActions = function (workflow, team) {
    return filterBy("/did-it-work", [["workflow", workflow], ["team", team]]);
  };

  tightship.openHelp = function (clicks) {
    return clicks ? true : ns.no_update;
  };

  tightship.here = function (path) {
    document.querySelectorAll("header nav.pages a").forEach(function (a) {
      var target = a.getAttribute("href");
      var here = target === "/" ? path === "/" : (path || "").indexOf(target) === 0;
      if (here) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    });
    return ns.no_update;
  };

  // Copy buttons. The clipboard API exists on https and localhost only; the old way works elsewhere too.
  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("copying is not allowed"));
  }
  document.addEventListener("click", function (event) {
    var button = event.target.closest("[data-copy]");
    if (!button) return;
    var said = function (word) {
      button.textContent = word;
      setTimeout(function () { button.textContent = "copy"; }, 1500);
    };
    copy(button.getAttribute("data-copy")).then(
      function () { said("copied"); },
      function () { said("select and copy by hand"); }
    );
  });

  // Keyboard: "/" search, "g" then a letter for a page, "?" help. Not while somebody types.
  var PAGES = { f: "/", r: "/runs", w: "/will-it-fit", d: "/did-it-work", c: "/collection", a: "/audit" };
  var waiting = null;
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    var into = event.target;
    if (into.closest("input, textarea, select, [contenteditable=true]")) {
      if (event.key === "Escape") into.blur();
      return;
    }
    if (waiting) {
      clearTimeout(waiting);
      waiting = null;
      if (PAGES[event.key]) {
        event.preventDefault();
        tightship.go(PAGES[event.key]);
        return;
      }
    }
    if (event.key === "g") {
      waiting = setTimeout(function () { waiting = null; }, 1200);
    } else if (event.key === "/") {
      var search = document.getElementById("search");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    } else if (event.key === "?") {
      event.preventDefault();
      ns.set_props("help", { opened: true });
    }
  });
})();
