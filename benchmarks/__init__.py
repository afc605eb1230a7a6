"""Paired measurements that report ratios; run by `make bench`, never as tests."""
