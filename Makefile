# The commands of a developer. `make demo` and `make test` set a new machine up by themselves.
SHELL := /bin/bash
.PHONY: all setup setup-dev build gpu wheel demo test test-all bench fmt lint reference docs asan tsan package release nightly clean

all: build

setup:            ## install missing packages of the distribution (root or sudo)
	@tools/setup build

setup-dev:        ## for editors and commit hooks: packages, compile_commands.json for clangd, pre-commit's hooks
	@tools/setup build test lint
	@tools/build clangd millrace_generated
	@ln -sf build/clangd/compile_commands.json compile_commands.json
	@! command -v pre-commit >/dev/null || pre-commit install
	@echo 'to build and test one module: cmake --preset dev && ninja -C build/dev vfs_test && build/dev/tests/vfs_test'

build: setup      ## programs in build/release/bin
	@tools/build release

PYTHON ?= python3
gpu: setup        ## programs for NVIDIA GPUs in build/gpu/bin, with the PyTorch of PYTHON
	@tools/gpu '$(PYTHON)'

wheel:            ## dist/millrace-….whl for each Python here: the package with the program `millrace`, for any Linux with glibc
	@tools/setup build test release
	@tools/release/build wheels

demo:             ## the whole data path on real text, with its figures; ends non-zero if a claim fails
	@tools/setup build demo
	@tools/build release millrace millrace-train millrace-serve
	@tools/with-cleanup demo python3 examples/demo/demo.py

test:             ## the tests that find nearly everything, real mounts included; TESTS=regex runs some of all tests
	@tools/setup build test
	@tools/build release
	@tools/with-cleanup test tools/run-tests release $(if $(STRICT),--strict) $(if $(TESTS),--tests-regex '$(TESTS)')

export MILLRACE_PEERS ?= $(CURDIR)/build/peers
test-all:         ## every test; installs the peers that interop tests talk to in MILLRACE_PEERS (build/peers)
	@tools/setup build test machine
	@tests/install-peers "$$MILLRACE_PEERS" all
	@tools/build release
	@tools/with-cleanup test tools/run-tests release --all

asan tsan:        ## tests under a sanitizer, tsan without libtorch's modules; SINCE=commit: ranks' exchange and what changed
	@tools/setup build test
	@tools/with-cleanup $@ tools/sanitize $@ $(SINCE)

package:          ## Debian packages in build/packages: millrace, millrace-engine, libmillrace, millrace-dev, …, debug symbols
	@tools/setup build package
	@tools/package

release:          ## dist/: programs, wheels, Debian packages, image, chart, hashes, SBOM, licences: docs/releasing.md
	@tools/setup build test release package machine
	@tools/release/build

nightly:          ## everything that is too long for each change; hours on two cores
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

lint:             ## format, modules, clang's warnings, clang-tidy; SINCE=commit: clang-tidy of what changed since
	@tools/setup build test lint
	@tools/lint $(SINCE)

reference:        ## pages about the C++ libraries in build/reference, made of their headers
	@tools/setup reference
	@tools/reference

docs:             ## the site of the documents, with search, in build/site
	@tools/setup build docs
	@tools/build release millrace
	@tools/site

clean:
	rm -rf build
