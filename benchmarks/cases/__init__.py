"""What benchmarks run in processes of their own: contenders, cases, planted faults."""
