// An allocator that counts, for tests of what is held.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace millrace::engine {

/// Counts the bytes of live CPU tensors. The size of a block lies before it. Overrides what any version of libtorch
/// declares, so some functions cannot say `override`.
#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const {  // overrides libtorch's before 2.3
    auto* const base = static_cast<std::byte*>(std::aligned_alloc(kHeader, kHeader * (2 + bytes / kHeader)));
    std::memcpy(base, &bytes, sizeof bytes);
    const std::int64_t now = live += static_cast<std::int64_t>(bytes);
    for (std::int64_t most = peak; most < now && !peak.compare_exchange_weak(most, now);) {
    }
    std::byte* const block = base + kHeader;
    return {block, block, Free, c10::Device(c10::kCPU)};
  }
  c10::DataPtr allocate(std::size_t bytes) { return std::as_const(*this).allocate(bytes); }  // of 2.3 and later
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }  // of 2.3, too
  c10::DeleterFnPtr raw_deleter() const override { return Free; }
  static inline std::atomic<std::int64_t> live = 0;
  static inline std::atomic<std::int64_t> peak = 0;  ///< the most that was live since somebody set it to 0

 private:
  static constexpr std::size_t kHeader = 64;  // keeps blocks aligned
  static void Free(void* block) {
    if (block == nullptr) return;
    std::byte* const base = static_cast<std::byte*>(block) - kHeader;
    std::size_t bytes = 0;
    std::memcpy(&bytes, base, sizeof bytes);
    live -= static_cast<std::int64_t>(bytes);
    std::free(base);
  }
};

}  // namespace millrace::engine
