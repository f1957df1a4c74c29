"""Queries of the lake in Spark's SQL."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import SparkError
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.views import register, view


def ask(spark: SparkSession, lake: Lake, query: str, rows_max: int) -> pa.Table:
    """The first `rows_max` rows of the result, and one more if there are more. Raises `SparkError` if the query is
    wrong."""
    register(spark, lake)
    try:
        return spark.sql(query).limit(rows_max + 1).toArrow()
    except PySparkException as error:
        raise SparkError(_first_lines(error)) from None


def replay(spark: SparkSession, lake: Lake, where: str, queue: str, sink: dict[str, str]) -> int:
    """Publish messages of the lake to a queue again, as new ones. Returns how many."""
    try:
        chosen = view(spark, lake, "messages").where(where).where("message is not null")
        rows = chosen.selectExpr("message as body", "content_type", "object", "key", "priority")
        rows = rows.fillna({"content_type": "", "object": "", "key": ""})
        rows = rows.persist()  # So that exactly the counted rows are sent.
        try:
            count = rows.count()
            rows.write.format("penstock").options(**sink, queue=queue).mode("append").save()
        finally:
            rows.unpersist()
    except PySparkException as error:
        raise SparkError(_first_lines(error)) from None
    return count


def _first_lines(error: PySparkException) -> str:
    """What is wrong, and where, without the plan that Spark adds."""
    text = str(error)
    return text.partition(";\n")[0].partition("\n\nJVM stacktrace")[0].strip()
