#include "millrace/engine/ops/cuda/emulator/emulator.h"

#include <cuda_runtime_api.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/engine/ops/cuda/emulator/stack.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace millrace::engine::cuda::emulator {
namespace {

constexpr unsigned kMaxThreads = 1024, kMaxRows = 65'535, kWarp = 32, kAllLanes = ~0U;

Gpu current_gpu;

enum class State { kRuns, kWaitsForBlock, kWaitsForWarp, kEnded };

/// Returns the memory of all __shared__ arrays: what this program has in sections of memory that nobody initializes.
std::vector<std::span<unsigned char>> SharedMemory() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto read = [&](std::uint64_t from, auto* to, std::size_t count) {
    file.seekg(static_cast<std::streamoff>(from));
    file.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(count * sizeof(*to)));
    if (!file) throw std::runtime_error("cannot read this program's sections");
  };
  Elf64_Ehdr header{};
  read(0, &header, 1);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  read(header.e_shoff, sections.data(), sections.size());
  const Elf64_Shdr& of_names = sections.at(header.e_shstrndx);
  std::string names(of_names.sh_size, '\0');
  read(of_names.sh_offset, names.data(), names.size());
  std::uint64_t base = 0;  // where the program lies, which is the first of the objects
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) {
        *static_cast<std::uint64_t*>(to) = object->dlpi_addr;
        return 1;
      },
      &base);
  std::vector<std::span<unsigned char>> memory;
  for (const Elf64_Shdr& section : sections) {
    if (!std::string_view(names.c_str() + section.sh_name).starts_with(".noinit")) continue;
    memory.emplace_back(reinterpret_cast<unsigned char*>(base + section.sh_addr), section.sh_size);
  }
  return memory;
}

/// A thread of the GPU: a stack of its own, which the CPU runs until the thread waits. Later blocks use it again.
struct Thread {
  explicit Thread(void (*run)()) : stack(run) {}
  Stack stack;
  State state = State::kEnded;
  WaitPoint place;
  unsigned lanes = 0;  ///< of its warp that it waits for
  int turn = 0;        ///< which of the two slots its next exchange uses
  std::uint64_t slots[2] = {};
  int barriers = 0, warp_barriers = 0;  ///< that it has passed in this block
};

/// Runs the blocks of a kernel, one after the other.
class Runner {
 public:
  void Run(dim3 grid, dim3 block, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    gridDim = grid;
    blockDim = block;
    count_ = block.x * block.y * block.z;
    while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>(RunThread));
    for (const std::uint64_t number : InOrder(std::uint64_t{grid.x} * grid.y * grid.z)) {
      blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                  static_cast<unsigned>(number / grid.x / grid.y)};
      FillSharedMemory();
      between_blocks_.LeaveFor();
      RunBlock();
      between_blocks_.ArriveFrom();
    }
  }

  void WaitForBlock(WaitPoint place) {
    // A thread that is ahead leaves for the next barrier while others still arrive from this one.
    Moment& barrier = barriers_[threads_[running_]->barriers++ % 2];
    barrier.LeaveFor();
    Wait(State::kWaitsForBlock, place);
    barrier.ArriveFrom();
  }

  void WaitForWarp(WaitPoint place) {
    Thread& thread = *threads_[running_];
    Moment& barrier = warp_barriers_[running_ / kWarp][thread.warp_barriers++ % 2];
    barrier.LeaveFor();
    Wait(State::kWaitsForWarp, place, kAllLanes);
    barrier.ArriveFrom();
  }

  std::uint64_t Exchange(unsigned lanes, std::uint64_t bits, int lane_mask, WaitPoint place) {
    const unsigned number = running_, first = number / kWarp * kWarp;
    Thread& thread = *threads_[number];
    const int turn = thread.turn;
    thread.turn ^= 1;  // whoever is still to read this exchange's slots has not begun the next one but one
    thread.slots[turn] = bits;
    Wait(State::kWaitsForWarp, place, lanes);
    return threads_[first + (number % kWarp ^ static_cast<unsigned>(lane_mask))]->slots[turn];
  }

 private:
  void Wait(State state, WaitPoint place, unsigned lanes = 0) {
    Thread& thread = *threads_[running_];
    thread.state = state;
    thread.place = place;
    thread.lanes = lanes;
    thread.stack.SwitchTo(outside_);
  }

  std::vector<std::uint64_t> InOrder(std::uint64_t count) {
    std::vector<std::uint64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    if (current_gpu.order == Order::kBackward) std::reverse(order.begin(), order.end());
    if (current_gpu.order == Order::kShuffled) std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  /// What a thread's stack runs: one block after the other.
  static void RunThread() {
    Runner& runner = instance();
    while (true) {
      runner.between_blocks_.ArriveFrom();
      (*runner.kernel_)();
      runner.between_blocks_.LeaveFor();
      runner.Wait(State::kEnded, {});
    }
  }

  /// Makes each number in shared memory NaN, or -1: a kernel must not read what its block did not write.
  static void FillSharedMemory() {
    static const auto all = SharedMemory();
    for (const std::span<unsigned char> memory : all) std::memset(memory.data(), 0xff, memory.size());
  }

  void RunBlock() {
    for (unsigned i = 0; i < count_; ++i) {
      threads_[i]->state = State::kRuns;
      threads_[i]->turn = 0;
      threads_[i]->barriers = threads_[i]->warp_barriers = 0;
    }
    const unsigned warps = (count_ + kWarp - 1) / kWarp;
    while (true) {
      while (RunFirst(InOrder(warps))) {
      }
      if (ReleaseBlock()) continue;
      if (AllEnded()) return;
      const std::string text = WhatWaits();
      threads_.clear();  // their stacks are in the middle of the kernel
      throw std::runtime_error("threads of a block wait for others forever: " + text);
    }
  }

  /// Runs the first warp that can go on, until its threads wait. So warps get as far ahead of others as barriers allow.
  /// Returns whether there was one.
  bool RunFirst(const std::vector<std::uint64_t>& warps) {
    for (const std::uint64_t warp : warps) {
      const auto first = static_cast<unsigned>(warp * kWarp);
      bool ran = false;
      for (const std::uint64_t lane : InOrder(std::min(kWarp, count_ - first))) {
        const unsigned number = first + static_cast<unsigned>(lane);
        if (threads_[number]->state != State::kRuns) continue;
        Enter(number);
        ran = true;
      }
      if (ran) {
        ReleaseWarp(first);
        return true;
      }
    }
    return false;
  }

  bool AllEnded() const {
    for (unsigned i = 0; i < count_; ++i) {
      if (threads_[i]->state != State::kEnded) return false;
    }
    return true;
  }

  /// Lets a warp go on if its lanes all wait at the same place.
  void ReleaseWarp(unsigned first) {
    if (first + kWarp > count_) return;
    const WaitPoint place = threads_[first]->place;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const Thread& thread = *threads_[first + lane];
      if (thread.state != State::kWaitsForWarp || thread.place != place || thread.lanes != kAllLanes) return;
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) threads_[first + lane]->state = State::kRuns;
  }

  bool ReleaseBlock() {
    const Thread* one = nullptr;
    for (unsigned i = 0; i < count_; ++i) {
      const Thread& thread = *threads_[i];
      if (thread.state == State::kEnded) continue;
      if (thread.state != State::kWaitsForBlock) return false;
      if (one != nullptr && thread.place != one->place) return false;
      one = &thread;
    }
    if (one == nullptr) return false;
    for (unsigned i = 0; i < count_; ++i) {
      if (threads_[i]->state == State::kWaitsForBlock) threads_[i]->state = State::kRuns;
    }
    return true;
  }

  std::string WhatWaits() const {
    std::string text;
    for (unsigned i = 0; i < count_; ++i) {
      const Thread& thread = *threads_[i];
      const bool same = i > 0 && thread.state == threads_[i - 1]->state && thread.place == threads_[i - 1]->place;
      if (same) continue;
      text += (text.empty() ? "from thread " : ", from thread ") + std::to_string(i) +
              (thread.state == State::kEnded           ? " ended"
               : thread.state == State::kWaitsForBlock ? " block"
                                                       : " warp");
      if (thread.state != State::kEnded) {
        text += std::string(" at ") + thread.place.file + ":" + std::to_string(thread.place.line);
      }
    }
    return text;
  }

  void Enter(unsigned number) {
    running_ = number;
    threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
    outside_.SwitchTo(threads_[number]->stack);
  }

 public:
  static Runner& instance() {
    static Runner runner;
    return runner;
  }

 private:
  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;  // reused by later kernels
  unsigned count_ = 0, running_ = 0;
  Stack outside_;
  Moment between_blocks_, barriers_[2], warp_barriers_[kMaxThreads / kWarp][2];
  std::mt19937_64 random_{1};
};

}  // namespace

void Use(const Gpu& gpu) { current_gpu = gpu; }

void WaitForBlock(WaitPoint place) { Runner::instance().WaitForBlock(place); }

void WaitForWarp(WaitPoint place) { Runner::instance().WaitForWarp(place); }

std::uint64_t ExchangeInWarp(unsigned lanes, std::uint64_t bits, int lane_mask, WaitPoint place) {
  return Runner::instance().Exchange(lanes, bits, lane_mask, place);
}

bool Run(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  const auto product = [](const dim3& sizes) { return std::uint64_t{sizes.x} * sizes.y * sizes.z; };
  if (product(grid) == 0 || grid.x > 0x7fffffff || grid.y > kMaxRows || grid.z > kMaxRows) return false;
  if (product(block) == 0 || product(block) > kMaxThreads) return false;
  Runner::instance().Run(grid, block, kernel);
  return true;
}

}  // namespace millrace::engine::cuda::emulator

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  using millrace::engine::cuda::emulator::current_gpu;
  *value = attribute == cudaDevAttrMultiProcessorCount ? current_gpu.multiprocessors : current_gpu.compute_capability;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}
