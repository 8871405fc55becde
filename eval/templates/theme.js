// -- light and dark: the button with the id "theme" sets data-theme of the page, which is the reader's own until then

  const toggle = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const named = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; named(); });
  system.addEventListener("change", named);
  named();
