"""A pod's program for many_volumes_test: writes, reads and removes files in volumes, and compares.

    volume_worker.py FOLDER...

Ends with the first thing that is wrong, named on standard output; else when its standard input is closed. Then it
prints the number of files that it wrote.
"""
import os
import random
import select
import sys
import threading

folders = sys.argv[1:]
wrong = []
written = [0]
stop = threading.Event()


def use(folder, seed):
    rng = random.Random(seed)
    files = {}
    try:
        while not stop.is_set() and not wrong:
            name = os.path.join(folder, f"f{rng.randrange(6)}")
            if name in files and rng.random() < 0.2:
                os.unlink(name)
                del files[name]
            else:
                content = rng.randbytes(rng.randrange(1, 60_000))
                with open(name, "wb") as file:
                    file.write(content)
                files[name] = content
                written[0] += 1
            for each, content in files.items():
                with open(each, "rb") as file:
                    if file.read() != content:
                        raise ValueError(f"{each} has other bytes")
            names = {os.path.join(folder, each) for each in os.listdir(folder)}
            if names != set(files):
                raise ValueError(f"{folder} lists {sorted(names ^ set(files))} wrongly")
            stop.wait(rng.random() * 0.2)  # hundreds of volumes share the machine
    except (OSError, ValueError) as error:
        wrong.append(f"{folder}: {error}")


threads = [threading.Thread(target=use, args=(folder, seed)) for seed, folder in enumerate(folders)]
for thread in threads:
    thread.start()
while not wrong:
    if select.select([sys.stdin], [], [], 0.2)[0]:
        break
stop.set()
for thread in threads:
    thread.join()
print(wrong[0] if wrong else written[0], flush=True)
sys.exit(1 if wrong else 0)
