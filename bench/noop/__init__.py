"""The same task, which does nothing, for Penstock, Celery and RQ. Run as a module, each sends so many jobs."""
