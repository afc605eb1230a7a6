"""Runs side by side: ladders, studies, the form."""
