// Tables. Cells are text: nothing that comes from a job or its name is ever read as HTML.
(function () {
  "use strict";
  var ns = (window.dash_clientside = window.dash_clientside || {});
  var tightship = (ns.tightship = ns.tightship || {});
  var functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  var cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  var NARROW = 720; // pixels; below, columns marked `wide` are left out

  function beside(params, suffix) {
    var field = params.colDef && params.colDef.field;
    return params.data && field ? params.data[field + suffix] : undefined;
  }

  functions.shownText = function (params) {
    var text = beside(params, "_text");
    if (text !== undefined && text !== null) return text;
    return params.value === undefined || params.value === null || params.value === "" ? "–" : String(params.value);
  };

  functions.hoverText = function (params) {
    return beside(params, "_why") || functions.shownText(params);
  };

  cells.LinkCell = function (props) {
    var href = props.data && props.data[props.colDef.field + "_href"];
    if (!href) return functions.shownText(props);
    return React.createElement(
      "a",
      {
        href: href,
        onClick: function (event) {
          if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
          event.preventDefault();
          tightship.go(href);
        },
      },
      functions.shownText(props)
    );
  };

  cells.StateCell = function (props) {
    return React.createElement(
      "span",
      { className: "state" },
      React.createElement("span", { className: "dot", style: { background: beside(props, "_colour") } }),
      functions.shownText(props)
    );
  };

  function gridApi(id) {
    try {
      return window.dash_ag_grid && window.dash_ag_grid.getApi(id);
    } catch (error) {
      return null; // not on this page
    }
  }

  // Enter on a cell follows its link, as a click does.
  document.addEventListener("keydown", function (event) {
    if (event.key !== "Enter" || !event.target.classList || !event.target.classList.contains("ag-cell")) return;
    var link = event.target.querySelector("a[href]");
    if (link) link.click();
  });

  function fitColumns() {
    document.querySelectorAll(".grid-body").forEach(function (element) {
      var api = gridApi(element.id);
      if (!api || !api.getColumnDefs) return;
      var narrow = window.innerWidth < NARROW;
      var ids = api
        .getColumns()
        .filter(function (c) { return (c.getColDef().context || {}).wide; })
        .map(function (c) { return c.getColId(); });
      if (ids.length && api.getColumn(ids[0]).isVisible() === narrow) {
        api.setColumnsVisible(ids, !narrow);
      }
    });
  }
  window.addEventListener("resize", fitColumns);
  new MutationObserver(fitColumns).observe(document.documentElement, { childList: true, subtree: true });

  // Live rows. While somebody reads (has scrolled, or stands in a cell), rows change in place and none is moved;
  // new ones wait behind a button.
  var waitingRows = [];
  function isRead(api, element) {
    return api.getFirstDisplayedRowIndex() > 0 || Boolean(api.getFocusedCell()) || element.matches(":hover");
  }
  tightship.mergeRows = function (fresh) {
    var api = gridApi("runs");
    if (!fresh || !api) return ns.no_update;
    var element = document.getElementById("runs");
    var reading = isRead(api, element);
    var added = [];
    var updated = [];
    fresh.rows.forEach(function (row) {
      var node = api.getRowNode(row.id);
      if (!node) added.push(row);
      else if (reading) node.setData(row);
      else updated.push(row);
    });
    waitingRows = waitingRows.concat(added);
    if (reading) return newRows();
    api.applyTransaction({
      add: waitingRows,
      addIndex: 0,
      update: updated,
      remove: fresh.gone.map(function (id) { return { id: id }; }).filter(function (r) { return api.getRowNode(r.id); }),
    });
    waitingRows = [];
    return "";
  };
  function newRows() {
    if (!waitingRows.length) return "";
    return waitingRows.length + (waitingRows.length === 1 ? " new run" : " new runs") + ", show";
  }
  document.addEventListener("click", function (event) {
    var show = event.target.closest("[data-show-new]");
    if (show) {
      var api = gridApi(show.getAttribute("data-show-new"));
      if (!api) return;
      api.clearFocusedCell();
      api.applyTransaction({ add: waitingRows, addIndex: 0 });
      api.ensureIndexVisible(0, "top");
      waitingRows = [];
      show.textContent = "";
      return;
    }
    var button = event.target.closest("[data-export]");
    if (button) exportCsv(button.getAttribute("data-export"), button.getAttribute("data-file"));
  });

  // Plain values with their unit in the head. A text that a spreadsheet would take for a formula is quoted.
  function exportCsv(id, file) {
    var api = gridApi(id);
    if (!api) return;
    api.exportDataAsCsv({
      fileName: file,
      allColumns: true,
      processHeaderCallback: function (params) {
        var definition = params.column.getColDef();
        var unit = (definition.context || {}).unit;
        return definition.headerName + (unit ? ", " + unit : "");
      },
      processCellCallback: function (params) {
        var definition = params.column.getColDef();
        var instead = (definition.context || {}).exported;
        var value = instead ? params.node.data[definition.field + "_" + instead] : params.value;
        if (value === null || value === undefined) return "";
        return typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
      },
    });
  }

  tightship.filterRuns = function (workflow, by, terms, search) {
    var query = new URLSearchParams(search || "");
    [["workflow", workflow], ["by", by], ["search", (terms || "").trim()]].forEach(function (pair) {
      if (pair[1]) query.set(pair[0], pair[1]);
      else query.delete(pair[0]);
    });
    var text = query.toString();
    var next = text ? "?" + text : "";
    if (next === (search || "")) return ns.no_update;
    tightship.go("/runs" + next);
    return ns.no_update;
  };

  // What a point of a chart stands for: a capture's mark leads to the capture, a change to its page.
  document.addEventListener("click", function (event) {
    var chart = event.target.closest("#run-over-time .js-plotly-plot, #actions-chart .js-plotly-plot");
    if (!chart || !chart._hoverdata || !chart._hoverdata.length) return;
    var point = chart._hoverdata[0];
    var data = point.customdata;
    if (point.data.meta === "capture" && data) {
      var element = document.getElementById("capture-" + data[0]);
      if (element) element.scrollIntoView({ block: "center" });
    }
    if (point.data.meta === "action" && data) tightship.go("/did-it-work/" + data[0]);
  });
})();
