"""Make thumbnails of images that somebody drops into a queue.

penstock worker thumbnails:app --processes 2 (in examples/)        works on two cores
python examples/thumbnails.py photo.jpg                            sends a photo and waits for its thumbnail
"""

import io
import sys
from pathlib import Path

from PIL import Image

import penstock

app = penstock.App()


@app.task(queue="thumbnails", payload="msgpack", timeout=30, max_attempts=3)
def shrink(photo: bytes, size: int = 128) -> str:
    """Returns the thumbnail as hexadecimal PNG: results are JSON."""
    image = Image.open(io.BytesIO(photo))
    image.thumbnail((size, size))
    made = io.BytesIO()
    image.save(made, "PNG")
    return made.getvalue().hex()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    thumbnail = bytes.fromhex(shrink.send(path.read_bytes()).result(timeout=30))
    target = path.with_suffix(".thumbnail.png")
    target.write_bytes(thumbnail)
    print(f"{target}: {len(thumbnail)} bytes")
