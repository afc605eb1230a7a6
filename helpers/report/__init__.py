"""Everything that was recorded, as sentences, tables and one page."""
