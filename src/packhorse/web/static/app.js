// SPDX-License-Identifier: MIT
// What pages do beyond plain HTML: ask before acting, follow changes, and obey the keyboard.
// Every page works without it.
"use strict";

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

// A page is not renewed under the hands of its reader.
function isBusy() {
  const chosen = window.getSelection();
  const field = document.activeElement;
  return (
    document.hidden ||
    (chosen && !chosen.isCollapsed) ||
    (field && ["INPUT", "SELECT", "TEXTAREA", "BUTTON", "SUMMARY"].includes(field.tagName)) ||
    document.querySelector("details[open], input:checked") !== null
  );
}

// Says since when the page could not be renewed, or that it is up to date again.
function tellStale(isStale) {
  const note = document.getElementById("stale");
  if (isStale && note.hidden) note.textContent = `No answer since ${new Date().toLocaleTimeString()}`;
  note.hidden = !isStale;
}

async function renew() {
  if (isBusy()) return;
  const answer = await fetch(window.location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  if (answer && answer.redirected) return window.location.assign(answer.url); // signed out
  tellStale(!answer || !answer.ok);
  if (!answer || !answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  if (!fresh || isBusy()) return;
  const link = document.activeElement.closest("main a");
  document.getElementById("main").replaceWith(fresh);
  // The focus stays where its reader put it.
  const same = link && [...fresh.querySelectorAll("a")].find((one) => one.href === link.href);
  if (same) same.focus({ preventScroll: true });
}

const place = document.body.dataset.events;
let stream = null;
let waiting = null;

function follow() {
  if (!place || document.hidden || stream) return;
  stream = new EventSource(place);
  stream.addEventListener("fleet", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => renew().catch(() => {}), 250);
  });
}

// Also where no events come: to who may not have them, and while the store or the server is away.
const RENEW_S = 30;
setInterval(() => renew().catch(() => {}), 1000 * RENEW_S);

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return follow();
  if (stream) stream.close();
  stream = null;
});
follow();

// What is done elsewhere is followed by asking again, while the page says so.
const every = document.querySelector("[data-renew]");
if (every) {
  const asking = setInterval(() => {
    if (document.querySelector("[data-renew]")) renew().catch(() => {});
    else clearInterval(asking);
  }, 1000 * Number(every.dataset.renew));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  if (event.key === "/") {
    const field = document.querySelector("form[role=search] input");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("[data-row]")].map((row) => row.querySelector("a, summary, button"));
    const rows = links.filter(Boolean);
    const at = rows.indexOf(document.activeElement);
    const next = rows[Math.min(rows.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))];
    if (next) next.focus();
  }
});
