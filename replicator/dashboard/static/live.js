// Keeps a page live: the worker sends the parts of its view that changed, as HTML, and they are morphed in place, so that
// focus, selection and what is opened stay as they are. While the page is hidden nothing is asked for.
"use strict";
(() => {
  const main = document.querySelector("[data-view]");
  if (!main || !window.EventSource) return;
  const AGAIN_MS = 5000;
  const status = document.getElementById("live");
  let source = null;
  let again = null;

  const say = (text, state) => {
    if (status.textContent !== text) status.textContent = text;
    status.dataset.state = state;
  };

  const morph = (element, html) =>
    Idiomorph.morph(element, html, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      callbacks: {
        // What somebody opened stays open, and what they typed stays typed.
        beforeAttributeUpdated: (name, node) => !(name === "open" || (name === "value" && node.tagName === "INPUT" && node.type !== "hidden")),
      },
    });

  const close = () => {
    if (source) source.close();
    source = null;
    clearTimeout(again);
  };

  const open = () => {
    close();
    source = new EventSource("/dashboard/events?view=" + encodeURIComponent(main.dataset.view));
    source.onopen = () => say("Live", "good");
    source.onerror = () => {
      say("Not connected: trying again", "bad");
      if (source && source.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS);
    };
    source.onmessage = (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) {
        const element = document.getElementById(id);
        if (element) morph(element, html);
      }
      document.dispatchEvent(new CustomEvent("dashboard:changed"));
    };
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      say("Paused while hidden", "warn");
    } else {
      open();
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
})();
