"""Pieces of a page that opens offline: one file, no script, nothing asked for outside itself."""

import base64
from html import escape

from ..plots import style

CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #555; --line: #d4d4d4; --back: #fff; --link: #0b5394 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #aaa; --line: #444; --back: #16181c;
  --link: #8ab4f8 } }
body { margin: 2rem auto; padding: 0 1rem; max-width: 64rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--back) }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: .25rem }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
a { color: var(--link) }
p.soft, small, code { color: var(--soft) }
small { font-size: .8rem; overflow-wrap: anywhere }
li { margin: .35rem 0 }
figure { margin: 1rem 0; padding: .75rem; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; overflow-x: auto }
img { display: block; width: 100%; min-width: 38rem; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top }
td { white-space: nowrap }
th:first-child { text-align: left }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom }
tbody th { font-weight: 600 }
tr:target { outline: 2px solid var(--link) }
table.plain :is(th, td) { text-align: left; white-space: normal; overflow-wrap: anywhere }
"""


def page(title, how, body) -> str:
    """A whole page; `body` is HTML, `title` and `how` are text."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">{escape(how)}</p>
{body}
</body>
</html>
"""


def figure(drawn, alt, kind="svg") -> str:
    """A figure as a part of the page; as "png" it is a third of the size, as "svg" sharp at any."""
    data = style.png(drawn) if kind == "png" else style.svg(drawn, alt).encode()
    mime = "image/png" if kind == "png" else "image/svg+xml"
    picture = base64.b64encode(data).decode()
    return f'<figure><img src="data:{mime};base64,{picture}" alt="{escape(alt)}"></figure>'


def table(caption, head, rows, kind="", ids=None) -> str:
    """A table whose first column names its rows; every cell is escaped.

    Args:
        ids: what the rows are called in links, one each.
    """
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for place, (first, *cells) in enumerate(rows):
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        anchor = f' id="{escape(ids[place])}"' if ids else ""
        body.append(f'<tr{anchor}><th scope="row">{escape(first)}</th>{data}</tr>')
    body = "\n".join(body)
    place = f'role="region" aria-label="{escape(caption)}" tabindex="0"'
    return (
        f'<div class="wide" {place}><table class="{kind}">\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
