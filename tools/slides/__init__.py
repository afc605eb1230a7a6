"""Slides of the notebooks: `__main__` makes them, `reveal/` holds reveal.js 4.6.0 as released (MIT licence)."""
