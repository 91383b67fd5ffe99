"""Installs the libraries for C++ programs to a prefix, moves the prefix, and builds programs against it as users do.

    cpp_package.py CMAKE BUILD_FOLDER SOURCE_FOLDER MILLRACE

Checks that each public header compiles alone and pulls in nothing but the prefix and the compiler's own headers, that
the libraries show no names but ours, that `find_package` and pkg-config work, and that examples/cpp streams batches
from a bucket of the embedded endpoint. MILLRACE is the program that serves the endpoint.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

CMAKE, BUILD, SOURCE, MILLRACE = (sys.argv.pop(1) for _ in range(4))
COMPONENTS = ("storage", "checkpoint", "data")
BATCHES = 5


def run(*command, ok=True, **more) -> subprocess.CompletedProcess:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if ok and ran.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit status {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    return ran


def included(source: pathlib.Path, text: str, *options: str) -> set[pathlib.Path]:
    """Compiles a text. Returns the files that it includes."""
    source.write_text(text)
    listed = source.with_suffix(".d")
    run("g++", "-std=c++23", "-fsyntax-only", "-MD", "-MF", listed, *options, source)
    return {pathlib.Path(word).resolve() for word in listed.read_text().replace("\\\n", " ").split()[2:]}


class Installed(unittest.TestCase):
    """One prefix for all tests. It was moved after the installation."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-cpp-")
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name)
        for component in ("libraries", "development"):
            run(CMAKE, "--install", BUILD, "--prefix", root / "first", "--component", component)
        cls.root, cls.prefix = root, root / "moved"
        (root / "first").rename(cls.prefix)
        cls.library_folder = next(cls.prefix.rglob("libmillrace_storage.so")).parent
        cls.headers = sorted((cls.prefix / "include").rglob("*.h"))

    def configure(self, name: str, lists: str, ok=True) -> subprocess.CompletedProcess:
        """Configures a project with one program of two lines."""
        source = self.root / name
        source.mkdir()
        (source / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject({name} LANGUAGES CXX)\n{lists}\n")
        return run(CMAKE, "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}", ok=ok)

    def test_headers_stand_alone(self):
        outside = {name for header in self.headers for name in re.findall(r"#include <(.+?)>", header.read_text())}
        for name in outside:
            self.assertRegex(name, r"^[a-z_0-9]+$", "as <vector> and <cstdint>")
        standard = included(self.root / "standard.cc", "".join(f"#include <{name}>\n" for name in sorted(outside)))

        def alone(header: pathlib.Path) -> set[pathlib.Path]:
            name = header.relative_to(self.prefix / "include").as_posix()
            return included(self.root / f"{name.replace('/', '_')}.cc", f"#include <{name}>\n", "-Wall", "-Wextra", "-Wpedantic",
                            "-Werror", f"-I{self.prefix / 'include'}")

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for header, files in zip(self.headers, pool.map(alone, self.headers)):
                self.assertIn(header.resolve(), files)
                foreign = [file for file in files - standard if not file.is_relative_to(self.prefix.resolve())]
                self.assertEqual(foreign, [], f"{header.name} pulls them in")

    def test_surface(self):
        """The headers that are installed are those that the modules name, and all of them are of one folder."""
        names = [header.relative_to(self.prefix / "include").as_posix() for header in self.headers]
        self.assertTrue(all(name.startswith("millrace/") for name in names), names)
        for name in ("object/store.h", "object/open/open.h", "transfer/copy/copy.h", "vfs/file_tree.h", "tokenizer/tokenizer.h",
                     "data/loader.h", "checkpoint/read/reader.h", "checkpoint/save/writer.h"):
            self.assertIn(f"millrace/{name}", names)
        self.assertLess(len(names), 60, "a small surface is easier to keep")

    def test_libraries_show_our_names_only(self):
        for component in COMPONENTS:
            shown = run("nm", "-D", "--defined-only", "--format=posix", self.library_folder / f"libmillrace_{component}.so").stdout
            foreign = [line for line in shown.splitlines() if not re.match(r"_Z\w*8millrace", line)]
            self.assertEqual(foreign, [])
            self.assertGreater(len(shown.splitlines()), 50)

    def test_a_component_that_does_not_exist(self):
        failed = self.configure("absent", "find_package(Millrace REQUIRED COMPONENTS storage engine)", ok=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertIn('Millrace has no component "engine". It has storage, checkpoint, data.', " ".join(failed.stderr.split()))
        found = self.configure("optional", "find_package(Millrace REQUIRED COMPONENTS storage OPTIONAL_COMPONENTS engine)\n"
                               "message(STATUS \"engine: ${Millrace_engine_FOUND}, storage: ${Millrace_storage_FOUND}\")")
        self.assertRegex(found.stdout, "engine: (FALSE|0)?, storage: (TRUE|1)")

    def test_a_version_that_does_not_fit(self):
        major, minor, _ = re.search(r"project\(millrace VERSION (\d+)\.(\d+)\.(\d+)",
                                    pathlib.Path(SOURCE, "CMakeLists.txt").read_text()).groups()
        self.configure("same", f"find_package(Millrace {major}.{minor} REQUIRED)")
        failed = self.configure("later", f"find_package(Millrace {major}.{int(minor) + 1} REQUIRED)", ok=False)
        self.assertNotEqual(failed.returncode, 0)

    def test_pkg_config(self):
        where = {**os.environ, "PKG_CONFIG_PATH": str(self.library_folder / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "millrace-data", env=where).stdout.split()
        source = self.root / "size.cc"
        source.write_text("#include <millrace/data/options/sequence_mode.h>\n#include <millrace/object/url.h>\n"
                          "int main() { return millrace::data::ParseSequenceMode(\"pad\") && "
                          "millrace::object::ParseUrl(\"s3://bucket/key\") ? 0 : 1; }\n")
        run("g++", "-std=c++23", source, *flags, f"-Wl,-rpath,{self.library_folder}", "-o", self.root / "size")
        run(self.root / "size")

    def test_example(self):
        build = self.root / "example"
        run(CMAKE, "-S", pathlib.Path(SOURCE, "examples/cpp"), "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-Wall -Werror")
        run(CMAKE, "--build", build)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MILLRACE_"))}
        env |= {"MILLRACE_S3D_ACCESS_KEY": "cpp", "MILLRACE_S3D_SECRET_KEY": "cpp-secret", "AWS_ACCESS_KEY_ID": "cpp",
                "AWS_SECRET_ACCESS_KEY": "cpp-secret", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                "HOME": str(self.root)}
        port_file = self.root / "port"
        endpoint = subprocess.Popen([MILLRACE, "s3d", "--root", self.root / "buckets", "--listen", "127.0.0.1:0", "--port-file",
                                     port_file], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not port_file.exists() or not port_file.read_text():
                self.assertIsNone(endpoint.poll(), "the endpoint has ended")
                time.sleep(0.01)
            env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port_file.read_text().strip()}"
            run(MILLRACE, "mb", "s3://corpus", "s3://runs", env=env)
            texts = run(sys.executable, pathlib.Path(SOURCE, "examples/first/texts.py"), pathlib.Path(SOURCE, "docs/guide")).stdout
            run(MILLRACE, "pipe", "s3://corpus/texts/docs.jsonl", env=env, input=texts)
            run(MILLRACE, "tokenizer", "train", "--input", "s3://corpus/texts/*.jsonl", "--vocab-size", "512", "--output",
                "s3://corpus/tokenizer.model", env=env)

            def stream(*arguments, ok=True):
                return run(build / "stream", *arguments, env=env, ok=ok)

            arguments = ("s3://corpus/texts/*.jsonl", "s3://corpus/tokenizer.model", "s3://runs/counts", BATCHES)
            first = stream(*arguments).stdout.splitlines()
            self.assertRegex(first[0], r"^\d+ documents, \d+ samples per epoch$")
            self.assertRegex(first[1], rf'^s3://runs/counts/step-0*{BATCHES}: token \d+ ".+" occurs \d+ times$')
            second = stream(*arguments).stdout.splitlines()
            self.assertRegex(second[0], rf"^resumed at step {BATCHES}, sample {BATCHES * 8} of epoch 0$")
            self.assertRegex(second[2], rf'^s3://runs/counts/step-0*{2 * BATCHES}: token \d+ ".+" occurs \d+ times$')
            occurs = [int(re.search(r"occurs (\d+)", lines[-1])[1]) for lines in (first, second)]
            self.assertGreater(occurs[1], occurs[0])
            shown = run(MILLRACE, "ckpt", "verify", "s3://runs/counts", env=env).stdout
            self.assertTrue(shown)
            failed = stream("s3://absent/*.jsonl", *arguments[1:], ok=False)
            self.assertEqual(failed.returncode, 4)
            self.assertIn("absent", failed.stderr)
        finally:
            endpoint.terminate()
            endpoint.wait()


unittest.main()
