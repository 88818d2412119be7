"""Screenshots of a running dashboard: every page in both themes, for a phone and for a desktop.

    python tests/support/screenshots.py http://127.0.0.1:8050 some/folder [path …]

It logs in by the home that TIGHTSHIP_HOME names, which has to be the server's. Without paths: the four pages, with the
newest run and its first finding. Prints for each page whether something went wrong in the browser's console.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright
from processes import own

from tightship_platform.processes.login_codes import login_link
from tightship_platform.settings import load_settings

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LOOKS = [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)]


def pages(base: str) -> list[str]:
    """The four pages."""
    with httpx.Client(base_url=base + "/api/v1", auth=own(os.environ), trust_env=False) as api:
        runs = _rows(api.get("/runs", params={"limit": 1}).json())
        findings = _rows(api.get("/findings").json())
    found = ["/", "/runs", *[f"/runs/{(findings or runs)[0]['run']}" for _ in runs[:1]]]
    return [*found, *[f"/findings/{f['finding']}" for f in findings[:1]]]


def _rows(answer: Any) -> list[dict[str, Any]]:
    return answer if isinstance(answer, list) else next(iter(answer.values()))


def main(argv: list[str]) -> int:
    """Take them; 1 when a page had an error."""
    if len(argv) < 3:
        sys.stderr.write(__doc__ or "")
        return 2
    base, folder, paths = argv[1].rstrip("/"), Path(argv[2]), argv[3:] or pages(argv[1].rstrip("/"))
    folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    trouble = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        for scheme, width in LOOKS:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            context.new_page().goto(login_link(base, load_settings().home))
            for path in paths:
                page = context.new_page()
                wrong: list[str] = []
                page.on("console", lambda m, w=wrong: w.append(m.text) if m.type == "error" else None)
                page.on("pageerror", lambda error, w=wrong: w.append(str(error)))
                page.goto(base + path)
                page.wait_for_selector("#page > *")
                page.wait_for_timeout(2000)
                name = path.strip("/").partition("?")[0].replace("/", "-") or "fleet"
                page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
                sys.stdout.write(f"{path} {scheme} {width}: {'; '.join(wrong) or 'well'}\n")
                trouble += bool(wrong)
                page.close()
            context.close()
        browser.close()
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
