// What unfolds may be wider than the page: the keyboard must reach it to scroll it. The theme looks at what is open only.
document.addEventListener("toggle", event => {
  for (const code of event.target.querySelectorAll("pre"))
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
}, true);
