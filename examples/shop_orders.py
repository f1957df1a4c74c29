r"""A web shop that takes orders over HTTP and charges them in the background.

uvicorn shop_orders:web --app-dir examples            takes orders
penstock worker shop_orders:app (in examples/)        charges them and sends receipts

curl -H 'Content-Type: application/json' localhost:8000/orders \
     -d '{"item": "apple", "cents": 120, "email": "ann@example.com"}'
"""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import penstock

app = penstock.App()
web = FastAPI()


class Order(BaseModel):
    item: str
    cents: int
    email: str


@app.task(
    queue="shop-payments",
    max_attempts=6,
    retry_delay=1,
    dead_letter_queue="shop-payments-failed",
    no_retry=[ValueError],
)
def charge(item: str, cents: int) -> str:
    if cents <= 0:
        raise ValueError("nothing to pay")  # Another attempt would not help.
    return f"{item}: {cents / 100:.2f} paid"


@app.task(queue="shop-mail")
def send_receipt(text: str, email: str) -> str:
    return f"to {email}: {text}"


@web.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, str]:
    """The order is on disk when this answers, whatever happens to this process then."""
    job = await charge.then(send_receipt, order.email).a.send(order.item, order.cents)
    return {"id": job.id}


@web.get("/orders/{job_id}")
async def status(job_id: str) -> dict[str, str]:
    try:
        return {"status": await charge.a.job(job_id).status()}
    except penstock.client.errors.MessageNotFound:
        raise HTTPException(404, "no such order") from None
