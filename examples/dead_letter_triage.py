"""Sort dead letters with your own function: some are retried, others go to a person.

python examples/dead_letter_triage.py
"""

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

BROKER = os.environ.get("PENSTOCK_URL", "http://localhost:7843")
CHECKPOINT = os.environ.get("CHECKPOINT", "triage-checkpoint")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.appName("dead-letter triage").getOrCreate()


@udf("string")
def next_queue(body):
    """Orders that can be parsed are retried."""
    try:
        return "orders" if "amount" in json.loads(body) else "for-people"
    except ValueError:
        return "for-people"


dead = spark.readStream.format("penstock").options(url=BROKER, read="queue", queue="dead").load()
sorted_out = dead.select("body", "content_type", next_queue("body").alias("queue"))
query = sorted_out.writeStream.format("penstock").option("url", BROKER).option("checkpointLocation", CHECKPOINT)
query.trigger(availableNow=True).start().awaitTermination()
