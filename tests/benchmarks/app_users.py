"""How long visitors of the page wait: from a keystroke to the new headline in the browser.

python tests/benchmarks/app_users.py            # ten visitors
python tests/benchmarks/app_users.py 1 40       # one visitor, forty changes

Printed in milliseconds: with browsers, which draw on the same cores as the server unless there are many, the 100 ms of
silence that end a text included; and the answers alone, as the server's processes give them. Nothing here is asserted.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import numpy as np
from playwright.async_api import Page, async_playwright

from costmodel.app.answers import view, warnings
from costmodel.app.asked import Texts
from costmodel.app.limits import LIMITS
from costmodel.app.link import State
from costmodel.app.workers import Workers

JOBS = (
    {"model": "llama3-8b", "gpus": "8", "tp": "4", "global_batch": "64", "seq_len": "8k"},
    {
        "model": "llama3-70b",
        "gpus": "64",
        "tp": "4",
        "pp": "4",
        "vp": "5",
        "global_batch": "128",
        "seq_len": "8k",
    },
    {
        "model": "deepseek-v3-671b",
        "cluster": "h800-cx7",
        "gpus": "2048",
        "pp": "16",
        "ep": "64",
        "schedule": "dualpipe",
        "global_batch": "15360",
        "seq_len": "4k",
        "recipe": "hai-llm",
    },
)
THINK_S = 1.0

WAIT = """([name, text]) => new Promise((done) => {
  const head = document.querySelector(".app-head");
  const start = performance.now();
  const seen = new MutationObserver(() => { seen.disconnect(); done(performance.now() - start); });
  seen.observe(head, { childList: true, subtree: true, characterData: true });
  const input = document.querySelector(`input[data-field="${name}"]`);
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, text);
  input.dispatchEvent(new Event("input", { bubbles: true }));
  setTimeout(() => done(NaN), 20000);
})"""
"""Type a text and return the milliseconds until the headline is another."""


async def one_user(page: Page, address: str, number: int, changes: int) -> list[float]:
    """Return how long a visitor waits for each of several changes. [ms]."""
    job = JOBS[number % len(JOBS)]
    await page.goto(f"{address}?{urlencode(job)}")
    await page.wait_for_selector(".app-head h1", timeout=60_000)
    waited = []
    for index in range(changes):
        await asyncio.sleep(random.Random(100 * number + index).uniform(0.5, 1.5) * THINK_S)
        batch = int(job["global_batch"]) * (2 + index)
        waited.append(await page.evaluate(WAIT, ["global_batch", str(batch)]))
    return waited


async def measure(users: int, changes: int) -> None:
    """Let visitors type at the same time, and print what they waited."""
    server = subprocess.Popen(
        [sys.executable, "-m", "costmodel", "app", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    address = server.stderr.readline().strip()
    try:
        async with async_playwright() as engine:
            path = os.environ.get("COSTMODEL_CHROMIUM") or shutil.which("chromium")
            browser = await engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
            pages = [await (await browser.new_context()).new_page() for _ in range(users)]
            waits = await asyncio.gather(
                *(one_user(page, address, number, changes) for number, page in enumerate(pages))
            )
            await browser.close()
    finally:
        server.terminate()
    tell(f"{users} visitors with browsers", np.concatenate([np.asarray(each) for each in waits]))


def answers_alone(users: int, changes: int) -> None:
    """Let as many ask the server's processes at the same pace, and print what they waited."""
    workers = Workers(LIMITS.answers_at_once, queue=64, busy="busy")
    workers.warm()

    def one(number: int) -> list[float]:
        job, waited = JOBS[number % len(JOBS)], []
        for index in range(changes):
            time.sleep(random.Random(100 * number + index).uniform(0.5, 1.5) * THINK_S)
            texts = Texts({**job, "global_batch": str(int(job["global_batch"]) * (2 + index))})
            start = time.perf_counter()
            workers.submit(view, State((texts, Texts())), most_s=60).result()
            waited.append(1e3 * (time.perf_counter() - start))
            workers.submit(warnings, texts, most_s=60).result()
        return waited

    with ThreadPoolExecutor(users) as threads:
        waits = list(threads.map(one, range(users)))
    workers.close()
    tell(f"{users} visitors, answers alone", np.concatenate([np.asarray(each) for each in waits]))


def tell(who: str, every: np.ndarray) -> None:
    """Print percentiles. [ms]."""
    told = ", ".join(f"p{share} {np.nanpercentile(every, share):.0f}" for share in (50, 90, 95, 99))
    print(f"{who}, {every.size} changes: {told} ms, {int(np.isnan(every).sum())} lost")


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    count = (*given, 10, 20)[:2] if len(given) != 1 else (given[0], 20)
    answers_alone(*count)
    asyncio.run(measure(*count))
