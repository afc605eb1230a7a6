"""Checks of the notebooks' "your turn" cells: `from exercises import check`."""
