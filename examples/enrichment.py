"""Join orders with a table of customers, and write them to a queue: python examples/enrichment.py customers.csv"""

import os
import sys

from pyspark.sql import SparkSession

BROKER = os.environ.get("PENSTOCK_URL", "http://localhost:7843")
CHECKPOINT = os.environ.get("CHECKPOINT", "enrichment-checkpoint")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.appName("enrichment").getOrCreate()

customers = spark.read.csv(sys.argv[1], header=True)  # customer,name,city
orders = spark.readStream.format("penstock").options(url=BROKER, read="queue", queue="orders").load()

read = orders.selectExpr("from_json(cast(body as string), 'customer string, amount double') as said").select("said.*")
enriched = read.join(customers, "customer", "left").selectExpr(
    "to_json(struct(customer, name, city, amount)) as body", "customer as key", "'application/json' as content_type"
)
query = enriched.writeStream.format("penstock").options(url=BROKER, queue="enriched")
query.option("checkpointLocation", CHECKPOINT).trigger(availableNow=True).start().awaitTermination()
