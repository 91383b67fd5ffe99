"""Makes the reference pages of the C++ libraries. A public name without a description fails.

    reference.py SOURCE_FOLDER

Exit status 77: Doxygen is not installed.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

if shutil.which("doxygen") is None:
    print("doxygen is not installed: tools/setup reference")
    sys.exit(77)
with tempfile.TemporaryDirectory(prefix="millrace-reference-") as folder:
    made = subprocess.run([pathlib.Path(sys.argv[1], "tools/reference"), folder])
    pages = {page.name: page.read_text() for page in pathlib.Path(folder).glob("*.html")}
    missing = [name for name in ("classmillrace_1_1object_1_1Store.html", "classmillrace_1_1data_1_1Loader.html",
                                 "classmillrace_1_1checkpoint_1_1Reader.html") if name not in pages]
    if made.returncode == 0 and missing:
        print("no pages", *missing)
    sys.exit(1 if made.returncode != 0 or missing or "millrace" not in pages["index.html"] else 0)
