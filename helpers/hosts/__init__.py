"""Runs on several machines: commands to paste, torchrun that says who came, two hosts on one machine."""
