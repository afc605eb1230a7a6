// What unfolds may be wider than the page: the keyboard must reach it to scroll it. The theme looks at what is open only.
document.addEventListener("toggle", event => {
  for (const code of event.target.querySelectorAll("pre"))
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
}, true);

// The words of a search. Chinese has no spaces: a word is the longest that stands in the index, on a page that has those
// before it. The last one may overlap the one before it, so that no character is left over. Words that only ask, such as
// "how", are not looked for.
const ASKING = /怎么|怎样|如何|为什么|什么|是否|[吗呢]/gu;

function splitQuery(text) {
  const query = text.replace(ASKING, " ").trim() || text;
  const { terms, titleterms } = Search._index;
  return query.match(/\p{Script=Han}+|(?:(?!\p{Script=Han})[\p{Letter}\p{Number}_])+/gu)?.flatMap(run => {
    if (!/\p{Script=Han}/u.test(run)) return [run];
    const words = [];
    let pages;
    for (let start = 0; start < run.length - 1; start++) {
      for (let end = run.length; end > start + 1; end--) {
        const word = run.slice(start, end);
        const having = [terms[word] ?? [], titleterms[word] ?? []].flat().filter(page => !pages || pages.includes(page));
        if (!having.length) continue;
        pages = having;
        words.push(word);
        start = end - (end === run.length - 1 ? 2 : 1);
        break;
      }
    }
    return words.length ? words : [run];
  }) ?? [];
}

// A button that copies a block of code.
document.addEventListener("DOMContentLoaded", () => {
  const [copy, done] = document.documentElement.lang.startsWith("zh") ? ["复制", "已复制"] : ["Copy", "Copied"];
  for (const block of document.querySelectorAll(".bd-article .highlight:not(.cell_output *)")) {
    const button = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: copy });
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").textContent);
      button.textContent = done;
      setTimeout(() => button.textContent = copy, 1500);
    });
    block.append(button);
  }
});
