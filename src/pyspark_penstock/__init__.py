"""Spark looks for packages of this kind and registers what they call `DefaultSource`: `format("penstock")`."""

from penstock.pipeline.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
