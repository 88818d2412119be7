"""The verdict as one page that needs nothing else: no network, no script, both themes, any width.

    Path("report.html").write_text(page(analyze_paths(["traces/"], wanted=Wanted(gaps=3))), encoding="utf-8")

Every text from a trace goes through `markup.text`, which escapes it; nothing else may put text into the page.
"""
