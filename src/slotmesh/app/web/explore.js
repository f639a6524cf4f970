// The address of the page holds what its view shows: every view writes it when it changes.
"use strict";

// Until the page is as the address says, the address stays as it is.
let slotmeshOpened = false;

function slotmeshReady() {
  slotmeshOpened = true;
  for (const id of ["objects", "properties"]) slotmeshShow(id);
}

// A view that Python made says what it shows.
function slotmeshLink(element) {
  const view = element.querySelector("[data-query]");
  if (!slotmeshOpened || !view || !element.offsetParent) return;
  history.replaceState(history.state, "", `${location.pathname}?${view.dataset.query}`);
}

// Another tab was chosen.
function slotmeshShow(id) {
  const element = document.getElementById(`slotmesh-${id}`);
  const tie = element && element.querySelector("slotmesh-tie");
  if (tie && slotmeshOpened) tie.writeLink();
  else if (element) slotmeshLink(element);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest && event.target.closest(".slotmesh-copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy link"), 2000);
  } catch {
    prompt("The link to this view", location.href);
  }
});
