// A file that is larger than what is taken is not sent at all, and the component that would send it says nothing: this does.
(function () {
  "use strict";
  function look(event) {
    const place = event.target.closest && event.target.closest("[data-most]");
    const files = event.type === "drop" ? event.dataTransfer && event.dataTransfer.files : event.target.files;
    const most = place && Number(place.dataset.most);
    const large = place && [...(files || [])].find((file) => file.size > most);
    if (large) {
      const size = most < 1 << 20 ? (most >> 10) + " KiB" : (most >> 20) + " MiB";
      window.dash_clientside.set_props(place.dataset.said, { children: large.name + ": more than " + size + "; " + place.dataset.instead });
    }
  }
  document.addEventListener("change", look, true);
  document.addEventListener("drop", look, true);
})();
