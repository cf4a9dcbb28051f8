"""At most two downloads at a time, whatever the number of threads and machines."""

import threading
import time

import leasehold

with leasehold.connect() as locks:
    semaphore = locks.semaphore("example/downloads", 2)

    def download(number: int) -> None:
        with semaphore:
            print(f"download {number}")
            time.sleep(0.1)

    threads = [threading.Thread(target=download, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
