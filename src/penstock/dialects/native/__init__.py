"""The native API, `/v1`: everything the broker can do, over HTTP and JSON."""
