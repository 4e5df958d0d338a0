# Thin wrappers over the CMake presets (cmake --list-presets).
#   make           build the program, build/rlk
#   make setup     install the Debian packages that are missing (needs root or sudo)
#   make demo      setup, build, the main job on the CPU by both routes, and the report
#   make test      setup, build, all tests but the long ones
#   make test-long the long ones: exhaustive sweeps, more random cases
#   make fuzz      the parsers under libFuzzer, each for SECONDS (default 60)
#   make asan      the tests under the address and undefined-behaviour sanitizers
#   make cuda      the CUDA backend and its tests, in build-cuda/ (needs nvcc)
#   make hip       the HIP backend in build-hip/ and the checks of its code objects (needs a clang
#                  for AMD GPUs: ROCm's, or Debian's); TARGETS="gfx942" for some GPUs only
#   make hip-kernels-doc  docs/rocm-kernels.md: what its kernels occupy
#   make gpu-bundle  what runs on a GPU machine without packages, in build-cuda/bundle/
#   make install   install under PREFIX (default /usr/local)

JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local
DEMO   ?= runs/demo

.PHONY: all setup configure build demo test test-long fuzz asan cuda hip hip-kernels-doc gpu-bundle \
  install clean

all: build

setup:
	@tools/setup_debian

build: configure
	@cmake --build --preset cpu -j $(JOBS) --target rlk

configure:
	@test -f build/build.ninja || cmake --preset cpu

demo: setup build
	@tools/demo $(DEMO)

test: setup configure
	@cmake --build --preset cpu -j $(JOBS)
	@ctest --preset cpu -j $(JOBS)

test-long: setup configure
	@cmake --build --preset cpu -j $(JOBS)
	@ctest --test-dir build --output-on-failure -L long

fuzz: setup
	@test -f build-fuzz/build.ninja || cmake --preset fuzz
	@cmake --build --preset fuzz -j $(JOBS)
	@tools/fuzz build-fuzz $(or $(SECONDS),60)

asan: setup
	@cmake --preset asan
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS)

cuda:
	@test -f build-cuda/build.ninja || cmake --preset cuda
	@cmake --build --preset cuda -j $(JOBS)
	@ctest --test-dir build-cuda -R '^ptx$$' --output-on-failure

hip:
	@tools/setup_debian hip
	@cmake --preset hip $(if $(TARGETS),-DGPU_TARGETS="$(TARGETS)")
	@cmake --build --preset hip -j $(JOBS)
	@ctest --preset hip -j $(JOBS)

hip-kernels-doc:
	@cmake --preset hip
	@cmake --build --preset hip -j $(JOBS) --target rlk_hip_kernels_doc

gpu-bundle: cuda
	@tools/gpu_bundle

install: build
	@cmake --build --preset cpu -j $(JOBS) --target rlk_c
	@cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-asan build-clang build-cuda build-fuzz build-hip
