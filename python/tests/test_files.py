import io
import os
import pickle
import random
import signal
import threading
import time

import pytest

import millrace


def blob(size, seed=0):
    return random.Random(seed).randbytes(size)


def test_reads_what_was_written_at_every_size(endpoint):
    for size in (0, 1, 1000, (1 << 20) - 1, 1 << 20, (8 << 20) + 1, 20 << 20):
        data = blob(size, size)
        with millrace.open(f"s3://corpus/files/{size}", "wb") as file:
            for at in range(0, size, 700_001):
                assert file.write(data[at : at + 700_001]) == len(data[at : at + 700_001])
            assert file.tell() == size
        with millrace.open(f"s3://corpus/files/{size}") as file:
            assert file.read() == data
        with millrace.open(f"s3://corpus/files/{size}") as file:
            assert b"".join(iter(lambda: file.read(333_333), b"")) == data


def test_random_reads_agree_with_a_file_in_memory(endpoint):
    data, random_ = blob(3 << 20), random.Random(7)
    with millrace.open("s3://corpus/files/random", "wb") as file:
        file.write(data)
    with millrace.open("s3://corpus/files/random") as file, io.BytesIO(data) as model:
        for _ in range(300):
            offset, whence = random_.choice(
                [(random_.randrange(4 << 20), 0), (-random_.randrange(3 << 20), 2), (random_.randrange(5000), 1)]
            )
            size = random_.choice([0, 1, 100, 5000, 2 << 20])
            assert file.seek(offset, whence) == model.seek(offset, whence)
            assert file.read(size) == model.read(size)
            assert file.tell() == model.tell()


def test_text_and_lines(endpoint):
    with millrace.open("s3://corpus/files/text", "w") as file:
        print("first", file=file)
        file.write("zweite\u4e8c\n")
        file.writelines(["a\n", "b"])
    assert list(millrace.lines("s3://corpus/files/text")) == ["first", "zweite\u4e8c", "a", "b"]
    with millrace.open("s3://corpus/files/text", "r") as file:
        assert file.readline() == "first\n"


def test_an_exception_publishes_nothing(endpoint):
    for mode in ("wb", "w"):
        with pytest.raises(RuntimeError):
            with millrace.open("s3://corpus/files/given-up", mode) as file:
                file.write(b"half" if mode == "wb" else "half")
                raise RuntimeError
        with pytest.raises(FileNotFoundError):
            millrace.open("s3://corpus/files/given-up")
    file = millrace.open("s3://corpus/files/lost", "wb")
    file.write(b"half")
    del file
    with pytest.raises(millrace.Error) as raised:
        millrace.open("s3://corpus/files/lost")
    assert raised.value.code == "not_found" and "s3://corpus/files/lost" in str(raised.value)


def test_create_does_not_replace(endpoint):
    with millrace.open("s3://corpus/files/new", "xb") as file:
        file.write(b"mine")
    for mode in ("xb", "x", "xt"):
        with pytest.raises(FileExistsError, match="s3://corpus/files/new exists already"):
            millrace.open("s3://corpus/files/new", mode)
    first = millrace.open("s3://corpus/files/raced", "x")
    second = millrace.open("s3://corpus/files/raced", "x")
    first.write("mine")
    first.close()
    second.write("theirs")
    with pytest.raises(FileExistsError) as raised:
        second.close()
    assert raised.value.code == "already_exists"
    with millrace.open("s3://corpus/files/new") as file:
        assert file.read() == b"mine"
    with millrace.open("s3://corpus/files/raced") as file:
        assert file.read() == b"mine"


def texts():
    """Yields encodings, error handlers and newlines, with texts on which they differ."""
    for encoding in (None, "utf-8", "utf-8-sig", "utf-16", "utf-32-le", "latin-1", "ascii", "shift_jis", "cp1252"):
        for errors in (None, "strict", "ignore", "replace", "backslashreplace", "surrogateescape", "xmlcharrefreplace"):
            for newline in (None, "", "\n", "\r", "\r\n"):
                yield {"encoding": encoding, "errors": errors, "newline": newline}


def outcome(action):
    try:
        return action()
    except Exception as error:
        return type(error)


def test_text_is_as_pythons_own_open_has_it(endpoint, tmp_path):
    """Compares with Python's open, for every option: the bytes, the texts and the errors."""
    random_ = random.Random(11)
    pieces = ["a\nb", "\r", "\r\n", "\n\n", "ä€", "水", "\udcff", "\x85\u2028", "", "tail"]

    def write(opener, target, options, texts_):
        with opener(target, "w", **options) as file:
            return [file.write(text) for text in texts_], file.encoding, file.errors

    def read(opener, target, options):
        with opener(target, "r", **options) as file:
            return file.readline(), file.read(3), list(file), file.newlines, file.mode

    for number, options in enumerate(random_.sample(list(texts()), 60)):
        chosen = random_.choices(pieces, k=6)
        options["encoding"] = options["encoding"] or "utf-8"
        local, url = str(tmp_path / str(number)), f"s3://corpus/files/text-{number}"
        ours = outcome(lambda: write(millrace.open, url, options, chosen))
        assert outcome(lambda: write(open, local, options, chosen)) == ours, (options, chosen)
        if isinstance(ours, tuple):
            with open(local, "rb") as file, millrace.open(url, "rb") as object_:
                assert file.read() == object_.read(), (options, chosen)
        content = b"".join(random_.choices([b"\xff\xfe", b"a\r\nb\rc\n", "ä水".encode(), b"\n", b"x" * 5], k=8))
        with open(local, "wb") as file, millrace.open(url, "wb") as object_:
            file.write(content)
            object_.write(content)
        assert outcome(lambda: read(open, local, options)) == outcome(lambda: read(millrace.open, url, options)), options


def test_text_that_cannot_be_written_publishes_nothing(endpoint):
    with pytest.raises(UnicodeEncodeError):
        with millrace.open("s3://corpus/files/bad", "w", encoding="ascii") as file:
            file.write("good\n")
            file.write("ä")
    file = millrace.open("s3://corpus/files/bad", "w")
    file.write("half")
    del file
    with pytest.raises(TypeError):
        with millrace.open("s3://corpus/files/bad", "w") as file:
            file.write(b"bytes")
    for options in ({"encoding": "no-such"}, {"newline": "x"}):
        with pytest.raises((LookupError, ValueError)):
            millrace.open("s3://corpus/files/bad", "w", **options)
    with pytest.raises(FileNotFoundError):
        millrace.open("s3://corpus/files/bad")
    with millrace.open("s3://corpus/files/boms", "w", encoding="utf-16") as file:
        file.write("a")
        file.flush()
        file.write("b")
    with millrace.open("s3://corpus/files/boms") as file:
        assert file.read() == "ab".encode("utf-16")


def test_an_object_replaced_while_it_is_read_is_never_mixed(endpoint):
    old, new = b"o" * (4 << 20), b"n" * (4 << 20)
    with millrace.open("s3://corpus/files/replaced", "wb") as file:
        file.write(old)
    reader = millrace.open("s3://corpus/files/replaced")
    assert reader.read(10) == b"o" * 10
    with millrace.open("s3://corpus/files/replaced", "wb") as file:
        file.write(new)
    with pytest.raises(millrace.Error) as raised:
        reader.seek(3 << 20)
        reader.read()
    assert raised.value.code == "stale"


def test_bad_modes_and_names_are_named(endpoint):
    for mode in ("ab", "r+b", "rbt", "q"):
        with pytest.raises(ValueError, match="mode"):
            millrace.open("s3://corpus/files/x", mode)
    with pytest.raises(ValueError, match="encoding"):
        millrace.open("s3://corpus/files/x", "rb", encoding="utf-8")
    with pytest.raises(ValueError, match="names no object"):
        millrace.open("s3://corpus/")


def test_paths_are_files_too(tmp_path):
    path = tmp_path / "local.bin"
    with millrace.open(path, "wb") as file:
        file.write(b"local")
    assert path.read_bytes() == b"local"
    with millrace.open(path) as file:
        assert file.read() == b"local"


def test_a_forked_child_opens_its_own(endpoint):
    with millrace.open("s3://corpus/files/fork", "wb") as file:
        file.write(b"before the fork")
    with millrace.open("s3://corpus/files/fork") as mine:
        assert mine.read(6) == b"before"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with millrace.open("s3://corpus/files/fork") as its_own:
                    status = 0 if its_own.read() == b"before the fork" else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mine.read() == b" the fork"


def test_an_interrupt_ends_a_wait():
    # A server that accepts connections and never answers.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        options = millrace.Options(endpoint_url=f"http://127.0.0.1:{server.getsockname()[1]}", anonymous=True)

        def interrupt():
            connection, _ = server.accept()
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait()
            connection.close()

        stop = threading.Event()
        helper = threading.Thread(target=interrupt)
        helper.start()
        try:
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                millrace.open("s3://corpus/never", connection=options)
            assert time.monotonic() - began < 10
        finally:
            stop.set()
            helper.join()


def test_sizes_are_read_as_everywhere():
    from millrace.session import parse_bytes

    assert [parse_bytes(size) for size in (5, "5", "1KiB", "2 MiB", "3G", "1.5MB")] == [
        5, 5, 1024, 2 << 20, 3 << 30, 3 << 19
    ]  # fmt: skip
    with pytest.raises(ValueError, match="GiB"):
        parse_bytes("much")


def test_options_can_be_pickled():
    options = millrace.Options(endpoint_url="http://x", memory="2GiB")
    assert pickle.loads(pickle.dumps(options)) == options
