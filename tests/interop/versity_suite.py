#!/usr/bin/env python3
"""Runs the cases of the Versity S3 Gateway's own test suite that apply to `millrace s3d` (versity_cases.txt), each against
a fresh endpoint.

    versity_suite.py --millrace PROGRAM [CASE...]

Exit status: 0 all right, 77 versitygw is neither in MILLRACE_PEERS/bin nor on PATH, 1 when a case fails.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ACCESS, SECRET = "user", "password-" + os.urandom(8).hex()


def run_case(millrace, versitygw, case):
    """None when the case passes, else what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = pathlib.Path(folder) / "port"
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("AWS_") and name not in ("HTTP_PROXY", "http_proxy")}
        environment |= {"MILLRACE_S3D_ACCESS_KEY": ACCESS, "MILLRACE_S3D_SECRET_KEY": SECRET,
                        "AWS_EC2_METADATA_DISABLED": "true", "HOME": folder}
        endpoint = subprocess.Popen([millrace, "s3d", "--root", folder + "/root", "--port-file", str(port_file)],
                                    env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 30
            while not port_file.exists():
                if endpoint.poll() is not None or time.monotonic() > deadline:
                    return "millrace s3d did not start"
                time.sleep(0.01)
            url = "http://127.0.0.1:" + port_file.read_text().strip()
            done = subprocess.run([versitygw, "test", "--access", ACCESS, "--secret", SECRET, "--endpoint", url, case],
                                  env=environment, cwd=folder, text=True, timeout=60, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
            passed = done.returncode == 0 and re.search(r"^PASS", output, re.M) and not re.search(r"^FAIL", output, re.M)
            return None if passed else output
        finally:
            endpoint.terminate()
            endpoint.wait(timeout=30)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    path = os.pathsep.join([os.path.join(os.environ.get("MILLRACE_PEERS", ""), "bin"), os.environ.get("PATH", "")])
    versitygw = shutil.which("versitygw", path=path)
    if not versitygw:
        print("skipped: versitygw is neither under MILLRACE_PEERS nor on PATH")
        return 77
    table = pathlib.Path(__file__).with_name("versity_cases.txt").read_text().splitlines()
    cases = arguments.cases or [line for line in table if line and not line.startswith("#")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for case, output in zip(cases, pool.map(lambda case: run_case(arguments.millrace, versitygw, case), cases)):
            if output is not None:
                failed += 1
                print(f"--- {case}\n{output[-1500:]}")
    print(f"{len(cases) - failed} of {len(cases)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
