"""What runs jobs: `worker.py` starts and stops it all, `jobs.py` has the jobs in hand, `execution.py` runs one."""
