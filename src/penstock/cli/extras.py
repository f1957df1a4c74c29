"""Libraries that are installed only with an extra, and what to say when one is missing."""

from __future__ import annotations

_EXTRAS = {
    "deltalake": "penstock[spark]",
    "duckdb": "penstock[spark]",
    "matplotlib": "matplotlib",
    "pandas": "penstock[spark]",
    "py4j": "penstock[spark]",
    "pyspark": "penstock[spark]",
}


def how_to_install(error: ImportError) -> str:
    """What is missing and which command installs it; nothing if it is not a library of an extra."""
    library = (error.name or "").partition(".")[0]
    wanted = _EXTRAS.get(library)
    return f"{library} is not installed; run: pip install '{wanted}'" if wanted else ""
