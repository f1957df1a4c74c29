"""A small web shop, so that console and tables have something to show: orders, failures, retries, dead letters."""
