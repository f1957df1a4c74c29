"""Count the words of the messages in one queue and write the counts to another: python examples/word_count.py"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

BROKER = os.environ.get("PENSTOCK_URL", "http://localhost:7843")
CHECKPOINT = os.environ.get("CHECKPOINT", "word-count-checkpoint")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.appName("word count").getOrCreate()

texts = spark.readStream.format("penstock").options(url=BROKER, read="queue", queue="texts").load()


def count(batch: DataFrame, number: int) -> None:
    words = batch.selectExpr("explode(split(lower(cast(body as string)), '[^a-z]+')) as word").where("word <> ''")
    counts = words.groupBy("word").count().selectExpr("to_json(struct(word, count)) as body", "word as key")
    writer = counts.write.format("penstock").options(url=BROKER, queue="counts", query="word-count", batch=number)
    writer.mode("append").save()  # A repeated batch is not written again.


query = texts.writeStream.foreachBatch(count).option("checkpointLocation", CHECKPOINT)
query.trigger(availableNow=True).start().awaitTermination()
