"""The page for people in headless Chromium, light and dark; it has no script.

Usage: page.py PROGRAM DIR; leaves a picture of each in DIR.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

from server import TOKEN, Server

DATA = pathlib.Path(__file__).parents[2] / "examples/data"


def ask(server, path, body=None, key=None):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if key:
        headers["Idempotency-Key"] = key
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers)) as answer:
        return json.load(answer)


def show(server, out, name, *more):
    """What the page holds once it is laid out, and its picture."""
    url = server.url.replace("http://", f"http://x:{TOKEN.replace(':', '%3A')}@") + "/?key=nightly-1"
    common = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
              f"--user-data-dir={server.home / name}", *more]
    subprocess.run([*common, "--window-size=1280,1400", f"--screenshot={out / name}.png", url],
                   check=True, timeout=120, stderr=subprocess.DEVNULL)
    return subprocess.run([*common, "--dump-dom", url], check=True, timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


with Server(sys.argv[1]) as server:
    out = pathlib.Path(sys.argv[2]).absolute()
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / "airports.parquet", server.root)
    (server.root / "broken.jsonl").write_text('{"id": 1}\n{"id": \n')
    rows = "".join(f"{row},n{row}\n" for row in range(2_000_000))
    (server.root / "large.csv").write_text("id,name\n" + rows)
    asked = [("airports", "airports.parquet", "nightly-1"), ("airports", "airports.parquet", "nightly-2"),
             ("orders", "broken.jsonl", "orders-7")]
    jobs = [ask(server, "/v1/jobs", {"collection": of, "files": [file]}, key)["job_id"]
            for of, file, key in asked]
    while any(ask(server, f"/v1/jobs/{job}")["over_at"] is None for job in jobs):
        time.sleep(0.1)
    ask(server, "/v1/jobs", {"collection": "events", "files": ["large.csv"]}, "events-1")
    for name, more in [("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])]:
        dom = show(server, out, name, *more)
        for text in ["Completed", "Failed", "3,376", "broken.jsonl", "airports_v0", "<b>done</b>"]:
            assert text in dom, (name, text, dom[:2000])
        assert "<script" not in dom
        assert (out / f"{name}.png").stat().st_size > 10_000
print(f"the page: light and dark, in {out}")
