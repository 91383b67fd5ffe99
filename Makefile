# The commands of a developer. `make demo` and `make test` set a new machine up by themselves.
SHELL := /bin/bash
.PHONY: all setup build gpu wheel demo test bench fmt lint asan tsan package nightly clean

all: build

setup:            ## install missing packages of the distribution (root or sudo)
	@tools/setup build

build: setup      ## programs in build/release/bin
	@tools/build release

PYTHON ?= python3
gpu: setup        ## programs for NVIDIA GPUs in build/gpu/bin, with the PyTorch of PYTHON
	@tools/gpu '$(PYTHON)'

wheel:            ## dist/millrace-….whl, the Python package of build/release
	@tools/setup build test
	@tools/build release millrace_python
	@python3 tools/python_backend.py dist

demo: setup       ## the whole data path on real text, with its figures; ends non-zero if a claim fails
	@tools/build release programs
	@tools/with-cleanup demo python3 examples/demo/demo.py

test:             ## all tests, real mounts included; TESTS=regex runs some; WITHIN=seconds begins no long one later
	@tools/setup build test
	@tools/build release
	@tools/with-cleanup test tools/run-tests release $(if $(TESTS),--tests-regex '$(TESTS)',$(if $(WITHIN),--within $(WITHIN)))

# Tests under AddressSanitizer and UBSan, or ThreadSanitizer, of all modules but the libtorch ones.
# With SINCE, WITHIN=seconds begins no test program later than that.
asan tsan:        ## the tests under a sanitizer; SINCE=commit runs those of the targets that changed since then
	@tools/setup build test
	@tools/with-cleanup $@ tools/sanitize $@ $(SINCE) $(if $(SINCE),$(WITHIN))

package:          ## Debian packages in build/packages: millrace, millrace-engine, python3-millrace, their debug symbols
	@tools/setup build package
	@tools/package

nightly:          ## everything that is too long for each change; about three hours on two cores
	@tools/setup build test lint package machine image
	@tools/nightly

bench:            ## the benchmarks behind docs/benchmarks.md; peers in $MILLRACE_PEERS
	@tools/setup build test
	@mkdir -p build && cmake --preset release -DMILLRACE_BENCHMARKS=ON >build/bench.log
	@tools/build release
	@tools/with-cleanup bench benchmarks/run

fmt:
	@tools/setup lint
	@git ls-files '*.cc' '*.h' | xargs clang-format-19 -i

# With SINCE, clang-tidy begins no file later than WITHIN=seconds.
lint:             ## format, order of modules, clang-tidy, static analyzer; SINCE=commit: of files that changes can reach
	@tools/setup build test lint
	@tools/lint $(SINCE) $(if $(SINCE),$(WITHIN))

clean:
	rm -rf build
