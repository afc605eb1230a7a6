"""The static site: `__main__` gathers its pages and builds them with Sphinx, whose settings are in `conf`."""
