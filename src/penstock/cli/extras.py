"""Names the extra that installs a missing library."""

from __future__ import annotations

_EXTRAS = {
    "cryptography": "penstock[tls]",
    "deltalake": "penstock[spark]",
    "duckdb": "penstock[spark]",
    "matplotlib": "matplotlib",
    "pandas": "penstock[spark]",
    "pyarrow": "penstock[arrow]",
    "psycopg": "penstock[postgresql]",
    "py4j": "penstock[spark]",
    "pyspark": "penstock[spark]",
}


def how_to_install(error: ImportError) -> str:
    """A message with the command that installs the missing library, empty if no extra contains it."""
    library = (error.name or "").partition(".")[0]
    wanted = _EXTRAS.get(library)
    return f"{library} is not installed; run: pip install '{wanted}'" if wanted else ""
