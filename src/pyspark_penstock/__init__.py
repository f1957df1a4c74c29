"""Spark looks for packages of this kind and registers what they call `DefaultSource`: `format("penstock")`."""

from penstock.pipeline.format import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
