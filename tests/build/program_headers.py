#!/usr/bin/env python3
"""Checks the program headers of all ELF files below a folder: what is read-only after relocation lies in a loaded segment.

    program_headers.py BUILD_FOLDER

The dynamic loader protects whole pages. If a linker puts the beginning of GNU_RELRO in front of the segment that it belongs to, and
that begins a page, the program does not start ("cannot apply additional memory protection after relocation").
"""
import pathlib
import struct
import sys

PT_LOAD, PT_GNU_RELRO = 1, 0x6474E552


def misplaced(file: pathlib.Path) -> str | None:
    """What is wrong with a file; None if nothing is, or if it is no 64-bit ELF file that is linked."""
    with file.open("rb") as opened:
        header = opened.read(64)
        if header[:5] != b"\x7fELF\x02":
            return None
        kind, = struct.unpack_from("<H", header, 16)
        offset, = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if kind not in (2, 3):  # programs and shared libraries
            return None
        opened.seek(offset)
        table = opened.read(size * count)
    segments = [struct.unpack_from("<IIQQQQQQ", table, i * size) for i in range(count)]
    loaded = [(address, address + memory) for kind, _, _, address, _, _, memory, _ in segments if kind == PT_LOAD]
    for kind, _, _, address, *_ in segments:
        if kind == PT_GNU_RELRO and not any(begin <= address < end for begin, end in loaded):
            return f"GNU_RELRO begins at {address:#x}, outside of every loaded segment"
    return None


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    files = [file for folder in ("bin", "tests", "lib", "python", "fuzz") for file in sorted((root / folder).rglob("*"))
             if file.is_file() and not file.is_symlink()]
    wrong = [(file, why) for file in files if (why := misplaced(file))]
    for file, why in wrong:
        print(f"{file}: {why}")
    print(f"{len(files)} files, {len(wrong)} wrong")
    return 1 if wrong or not files else 0


sys.exit(main())
