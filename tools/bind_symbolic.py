"""Copies a shared library (ELF64, little-endian) with DF_SYMBOLIC set: the copy looks its own symbols up in itself first.

    python3 tools/bind_symbolic.py IN OUT

For a library that carries a private copy of another one and exports it: see cmake/MillraceTorch.cmake.
"""
import pathlib
import struct
import sys

PT_DYNAMIC, DT_NULL, DT_FLAGS, DF_SYMBOLIC = 2, 0, 30, 2


def set_symbolic(elf: bytearray) -> None:
    if elf[:6] != b"\x7fELF\x02\x01":
        raise SystemExit(f"{sys.argv[1]}: not a little-endian ELF64 file")
    headers, = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for i in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", elf, headers + i * size)
        if kind != PT_DYNAMIC:
            continue
        for entry in range(offset, offset + length, 16):
            tag, value = struct.unpack_from("<QQ", elf, entry)
            if tag == DT_FLAGS:
                struct.pack_into("<Q", elf, entry + 8, value | DF_SYMBOLIC)
                return
            if tag == DT_NULL:
                break
    raise SystemExit(f"{sys.argv[1]}: has no DT_FLAGS entry to set DF_SYMBOLIC in")


content = bytearray(pathlib.Path(sys.argv[1]).read_bytes())
set_symbolic(content)
out = pathlib.Path(sys.argv[2])
if not out.exists() or out.read_bytes() != content:
    # Never in place: running programs have the old one mapped, and would lose their relocated pages.
    new = out.with_name(out.name + ".new")
    new.write_bytes(content)
    new.replace(out)
