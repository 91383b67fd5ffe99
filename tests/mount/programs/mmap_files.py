"""Programs that write and read through mappings: mmap itself, and NumPy's memory maps where there is NumPy."""
import mmap
import os
import random
import subprocess
import sys

SIZE = 3 * 1024 * 1024 + 123


def content(seed):
    return random.Random(seed).randbytes(SIZE)


def numpy():
    try:
        import numpy
        return numpy
    except ImportError:
        return None


if sys.argv[1] == "work":
    with open("shared", "w+b") as file:
        file.truncate(SIZE)
        with mmap.mmap(file.fileno(), SIZE) as view:
            view[:] = content(1)
            view.flush()
            file.seek(SIZE - 10)
            assert file.read() == content(1)[-10:], "the file shows what the mapping has"
            view[5:10] = b"after"
            other = subprocess.run([sys.executable, "-c", "print(open('shared', 'rb').read(10)[5:].decode())"], text=True,
                                   stdout=subprocess.PIPE)
            assert other.stdout == "after\n", other
    # The descriptor goes first, as mmap(2) allows.
    fd = os.open("late", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, SIZE)
    view = mmap.mmap(fd, SIZE)
    os.close(fd)
    view[:] = content(2)
    view.close()
    with open("shared", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view.find(b"after") == 5
    if np := numpy():
        array = np.lib.format.open_memmap("array.npy", mode="w+", dtype="float32", shape=(1000, 300))
        array[:] = np.arange(300_000, dtype="float32").reshape(1000, 300)
        array.flush()
        del array
        grown = np.memmap("raw.bin", dtype="int64", mode="w+", shape=(10_000,))
        grown[::7] = 7
        del grown
        np.savez_compressed("many.npz", a=np.ones(1000), b=np.zeros((3, 3)))
        assert np.load("array.npy", mmap_mode="r")[999, 299] == 299_999
else:
    expected = bytearray(content(1))
    expected[5:10] = b"after"
    assert open("shared", "rb").read() == expected
    assert open("late", "rb").read() == content(2), "what is stored after the last close is published, too"
    if np := numpy():
        array = np.load("array.npy", mmap_mode="r+")
        assert (array == np.arange(300_000, dtype="float32").reshape(1000, 300)).all()
        array[3] = 0
        array.flush()
        assert (np.load("array.npy")[3] == 0).all() and np.load("array.npy")[4, 0] == 1200
        assert np.memmap("raw.bin", dtype="int64")[::7].sum() == 7 * len(range(0, 10_000, 7))
        assert np.load("many.npz")["a"].sum() == 1000
