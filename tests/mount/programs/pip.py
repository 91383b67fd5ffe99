"""pip installs a wheel with many files into the mount; it is imported, upgraded, and run in a virtual environment."""
# needs: python:pip, python:venv
import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

SCRATCH = pathlib.Path(os.environ["SCRATCH"])


def make_wheel(version):
    files = {f"parcel/part{i}.py": f"VALUE = {i}\n" for i in range(60)}
    files["parcel/__init__.py"] = f"VERSION = '{version}'\n"
    files["parcel/__main__.py"] = "def main(): print('parcel runs')\nif __name__ == '__main__': main()\n"
    files["parcel/data/blob.bin"] = os.urandom(2_000_000)
    info = f"parcel-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: parcel\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "[console_scripts]\nparcel = parcel.__main__:main\n"
    records = []
    path = SCRATCH / f"parcel-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            content = content if isinstance(content, bytes) else content.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(content)}")
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", "\n".join([*records, f"{info}/RECORD,,"]) + "\n")
    return path


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check",
                    "--no-cache-dir", *arguments], check=True)


def version(folder):
    code = "import parcel, parcel.part59 as p; assert p.VALUE == 59; print(parcel.VERSION)"
    return subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": folder}, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


if sys.argv[1] == "work":
    old, new = make_wheel("1.0"), make_wheel("2.0")
    pip("--target", "site", str(old))
    assert version("site") == "1.0"
    pip("--target", "site", "--upgrade", str(new))
    assert version("site") == "2.0"
    subprocess.run([sys.executable, "-m", "compileall", "-q", "site"], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "venv"], check=True)
    assert subprocess.run(["venv/bin/python", "-c", "import sys; print(sys.prefix)"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip() == os.path.abspath("venv")
    pip("--prefix", "prefix", str(new))
    # Debian's pip writes to prefix/local/bin, others to prefix/bin.
    [script] = pathlib.Path("prefix").glob("**/bin/parcel")
    assert os.access(script, os.X_OK), f"mode {script.stat().st_mode:o}"
else:
    assert version("site") == "2.0"
