# SPDX-License-Identifier: MIT
"""Every page of the dashboard in a real Chromium: errors, policy, axe, phones, the keyboard.

    python -m scripts.browser [--pictures] [path ...]

Chromium is this machine's, or Debian's package with what it needs, fetched into `.cache/chromium`;
axe comes by npm. Nothing is installed. The dashboard is `packhorse dashboard` on a day of the
example shop, with a worker. Pages are those of the table of routes, in light and in dark, as wide
as a desk and as a phone; or those whose paths are given. `--pictures` renews those of docs/images.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packhorse.web.page_table import PAGES
from scripts.browser_shop import APP, begun, filled, process, served
from scripts.debian import libraries, unpack
from scripts.pytest_runs import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

CACHE: Final = ROOT / ".cache" / "chromium"
AXE: Final = "axe-core@4.14.0"
PICTURES: Final = ROOT / "docs" / "images"
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
WIDTHS: Final = {"desk": 1_280, "phone": 390}
HEIGHT: Final = 844
_REFUSED: Final = 400
#: Of its picture: down to the first two charts.
OVERVIEW_HEIGHT: Final = 690
#: Regions of a page that scroll, which Tab comes to as well.
PLACES_MAX: Final = 12
#: Before any script of a page: note what the policy refused.
WATCH: Final = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.refused.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
#: So that a page is not renewed while it is looked at, and all of it is seen.
HOLD: Final = """() => {
  window.getSelection = () => ({ isCollapsed: false });
  for (const one of document.querySelectorAll("details")) one.open = true;
}"""
JUDGE: Final = """async (tags) => {
  const found = await axe.run(document, { runOnly: { type: "tag", values: tags } });
  const places = (one) => one.nodes.map((node) => node.target.join(" ")).slice(0, 4).join("; ");
  return found.violations.map((one) => `${one.id}: ${one.help}: ${places(one)}`);
}"""
OVERFLOW: Final = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const out = [...document.querySelectorAll("body *")].filter((one) =>
    one.getBoundingClientRect().right > wide + 1 && !one.parentElement.closest(".wide"));
  const shown = out.slice(0, 4).map((one) => one.outerHTML.slice(0, 60));
  return [`wider than ${wide}: ${shown.join("; ")}`];
}"""
#: All that can be acted on, in the order of the page, and what the focus comes to.
REACH: Final = """() => {
  const all = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  const reach = [...document.querySelectorAll(all)].filter((one) => one.checkVisibility());
  window.came = [];
  window.watching?.abort();
  window.watching = new AbortController();
  document.addEventListener("focusin", (event) => {
    const look = getComputedStyle(event.target);
    const seen = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2;
    window.came.push([reach.indexOf(event.target), seen, event.target.outerHTML.slice(0, 80)]);
  }, { signal: window.watching.signal });
  document.activeElement.blur();
  return reach.length;
}"""


@dataclass
class Walk:
    """One page of a browser at one dashboard, and what was found wrong."""

    page: Page
    url: str
    axe: str
    wrong: list[str] = field(default_factory=list)
    asked: str = ""  #: the page itself, which may be one that is not there

    def __post_init__(self) -> None:
        self.page.add_init_script(WATCH)
        self.page.on("console", self._said)
        self.page.on("response", self._answered)
        self.page.on("pageerror", lambda error: self.blame(str(error)))

    def _said(self, said: Any) -> None:
        expected = said.location.get("url") == self.asked and "status of 404" in said.text
        if said.type in ("error", "warning") and not expected:
            self.blame(f"console: {said.text} {said.location.get('url')}")

    def _answered(self, answer: Any) -> None:
        """What a page loads is there: scripts, styles, pictures, parts of it, streams."""
        if answer.status >= _REFUSED and answer.url != self.asked:
            self.blame(f"{answer.status} {answer.url}")

    def blame(self, what: str) -> None:
        """Note something that is wrong with the page."""
        self.wrong.append(f"{self.page.url.removeprefix(self.url)}: {what}")

    def open(self, path: str, *, scheme: str = "light", width: int = WIDTHS["desk"]) -> None:
        self.dress(scheme, width)
        self.asked = f"{self.url}{path}"
        self.page.goto(self.asked)

    def dress(self, scheme: str, width: int) -> None:
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        self.page.set_viewport_size({"width": width, "height": HEIGHT})

    def look(self, path: str) -> None:
        """At one page, in both lights and both widths."""
        self.open(path)
        self.page.evaluate(HOLD)
        self.page.evaluate(self.axe)
        for name, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                self.dress(scheme, width)
                self.page.evaluate("document.activeElement.blur()")
                for found in (*self.page.evaluate(JUDGE, TAGS), *self.page.evaluate(OVERFLOW)):
                    self.blame(f"({name}, {scheme}) {found}")
            self._reach(name)
        for each in self.page.evaluate("window.refused"):
            self.blame(f"refused by the policy: {each}")

    def _reach(self, name: str) -> None:
        """Tab comes to all that can be acted on, in order, and it is seen where one is."""
        number = self.page.evaluate(REACH)
        for _ in range(number + PLACES_MAX):
            self.page.keyboard.press("Tab")
        came = [each for each in self.page.evaluate("window.came") if each[0] >= 0]
        for shown in {shown for _, seen, shown in came if not seen}:
            self.blame(f"({name}) the focus is not seen on {shown}")
        order = list(dict.fromkeys(at for at, _, _ in came))
        if sorted(order) != list(range(number)):
            self.blame(f"({name}) Tab misses {sorted({*range(number)} - {*order})} of {number}")
        first = order.index(0) if 0 in order else 0  # Tab begins where the focus was last
        if order[first:] + order[:first] != sorted(order):
            self.blame(f"({name}) Tab goes to and fro: {order}")

    def step(self, name: str, take: Callable[[], None]) -> None:
        """Take a step, and say whether anything was wrong."""
        before = len(self.wrong)
        take()
        print(f"{'ok  ' if len(self.wrong) == before else 'FAIL'} {name}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Note it unless it holds."""
        if not holds:
            self.blame(f"not so: {what}")


def main(arguments: Sequence[str]) -> int:
    """Walk; 0 if nothing is wrong."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not in every environment

    program, axe = _chromium(), _axe()
    with tempfile.TemporaryDirectory(prefix="packhorse-browser-") as place:
        url = f"sqlite:///{place}/jobs.db"
        logging.disable(logging.CRITICAL)  # of the past of the shop
        ids = filled(url)
        with (
            served(APP, url=url, folder=Path(place)) as address,
            process("worker", APP, url=url, log=Path(place) / "worker.log"),
            begun(url, ids) as ids["workers"],
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(
                executable_path=str(program),
                args=["--no-sandbox"] if os.geteuid() == 0 else [],  # which root cannot have
                env={**os.environ, **libraries(CACHE)},
            )
            walk = Walk(browser.new_page(), address, axe)
            chosen = [each for each in arguments if each.startswith("/")]
            for path in chosen or _paths(ids):
                walk.step(path, partial(walk.look, path))
            walk.step("by keyboard alone", partial(_acted, walk))
            walk.step("lines of a job", partial(_lined, walk, ids["failed"]))
            if "--pictures" in arguments:
                _pictures(walk, ids)
            print(f"Chromium {browser.version}, {AXE}: {len(walk.wrong)} things are wrong")
            browser.close()
    for each in walk.wrong:
        print(each)
    return 1 if walk.wrong else 0


def _paths(ids: dict[str, str]) -> list[str]:
    """Every page of the table, and those that no table has."""
    found = []
    for page in PAGES:
        path = page.path.replace(":path}", "}").replace(
            "{id}", ids.get(page.path.split("/")[1], "{")
        )
        if "{" in path:
            raise SystemExit(f"there is nothing to look at on {page.path}: add it to browser_shop")
        found.append(path)
    more = (f"/jobs/{ids[word]}" for word in ("processing", "timeout", "failed", "cancelled"))
    return [*found, *more, "/jobs?status=dead", "/?range=24h", "/login", "/jobs/none"]


def _acted(walk: Walk) -> None:
    """By keyboard alone: a change is asked about first, done on Enter, and leads back."""
    page = walk.page
    walk.open("/queues?range=1h")
    pause = page.locator('form[action="/do/queues/mail/pause"] button')
    asked: list[str] = []

    def decline(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", decline)
    pause.press("Enter")
    walk.check("it is asked first", holds=asked == ["Pause this queue?"])
    walk.check("who declines changes nothing", holds="done=" not in page.url and pause.count() == 1)
    page.once("dialog", lambda dialog: dialog.accept())
    pause.press("Enter")
    resume = page.locator('form[action="/do/queues/mail/resume"] button')
    resume.wait_for()
    walk.check("the form leads back", holds="/queues?range=1h&done=" in page.url)
    resume.press("Enter")
    pause.wait_for()
    walk.open("/jobs")
    page.keyboard.press("/")
    walk.check(
        "/ goes to the filter", holds=page.evaluate("document.activeElement.name") == "queue"
    )
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")


def _lined(walk: Walk, job_id: str) -> None:
    """Or the walk would have looked at no table of them."""
    walk.open(f"/jobs/{job_id}")
    walk.check("they are shown", holds=walk.page.locator("td.line").count() > 0)


def _pictures(walk: Walk, ids: dict[str, str]) -> None:
    taken = (
        ("dashboard", "/?range=24h", "light", 1_280),
        ("dashboard-dark", "/?range=24h", "dark", 1_280),
        ("dashboard-job", f"/jobs/{ids['jobs']}", "light", 1_280),
        ("dashboard-phone", "/?range=24h", "light", 390),
    )
    for name, path, scheme, width in taken:
        walk.open(path, scheme=scheme, width=width)
        height = OVERVIEW_HEIGHT if width == WIDTHS["desk"] and "range" in path else HEIGHT
        walk.page.set_viewport_size({"width": width, "height": height})
        walk.page.screenshot(path=PICTURES / f"{name}.png")


# --------------------------------------------------------------------------------- what it needs


def _chromium() -> Path:
    """Chromium itself, without the script around it."""
    if installed := shutil.which("chromium"):
        return Path(installed)
    program = CACHE / "usr" / "lib" / "chromium" / "chromium"
    if not program.exists():
        if shutil.which("apt-get") is None:
            raise SystemExit("there is no chromium here, and no apt-get to fetch it; install it")
        print("fetching chromium ...", flush=True)
        command = ["apt-get", "--simulate", "--no-install-recommends", "install", "chromium"]
        run = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        lines = [line.split() for line in run.stdout.splitlines() if line.startswith("Inst ")]
        if run.returncode or not lines:
            raise SystemExit(f"apt-get knows no chromium; try 'apt-get update'\n{run.stderr}")
        unpack(sorted((line[1] for line in lines), key=lambda name: name != "chromium"), CACHE)
    return program


def _axe() -> str:
    """The source of axe."""
    folder = ROOT / ".cache" / AXE
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["npm", "pack", AXE], cwd=place, check=True, capture_output=True)  # noqa: S603, S607
            [archive] = Path(place).glob("*.tgz")
            with tarfile.open(archive) as packed:
                packed.extract("package/axe.min.js", folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
