// Helpers that tests of kernels share.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "millrace/engine/ops/cuda/emulator/emulator.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda::emulator {

using Numbers = std::vector<float>;

inline constexpr Element kElements[] = {Element::kFloat, Element::kBfloat16, Element::kHalf};

/// Elements in memory of exactly their size, so that AddressSanitizer sees what a kernel touches beside them.
class Memory {
 public:
  /// `misaligned`: it begins one element behind a vector of 16 bytes.
  Memory(Element element, const Numbers& values, bool misaligned = false);
  Memory(Element element, std::size_t count, bool misaligned = false) : Memory(element, Numbers(count), misaligned) {}
  void* data() { return bytes_.get() + offset_; }
  Numbers values() const;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  Element element_;
  std::size_t count_, offset_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

/// Returns numbers of a normal distribution.
Numbers Random(std::size_t count, double scale, unsigned seed);
/// Returns the numbers as they are in memory.
Numbers Rounded(Element element, const Numbers& numbers);
/// Returns what rounding to this type and a few operations in float32 change at most, of the largest number.
double ToleranceOf(Element element);
void ExpectNear(const Numbers& got, const Numbers& want, double tolerance);

/// Orders beside the first one. Sanitizers take ten times as long, and see the same memory and races in all of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::array<Order, 0> kOtherOrders{};
#else
inline constexpr std::array kOtherOrders{Order::kBackward, Order::kShuffled};
#endif

/// Runs kernels with threads and blocks in three orders and returns the results, which have the same bits each time: so
/// no thread reads what another one writes at any time.
template <class Work>
Numbers InEveryOrder(Work&& work, Gpu gpu = {}) {
  Use(gpu);
  const Numbers first = work();
  for (const Order order : kOtherOrders) {
    gpu.order = order;
    Use(gpu);
    const Numbers again = work();
    EXPECT_EQ(first.size(), again.size());
    for (std::size_t i = 0; i < first.size() && i < again.size(); ++i) {
      const bool same = first[i] == again[i] || (first[i] != first[i] && again[i] != again[i]);
      EXPECT_TRUE(same) << "number " << i << ": " << first[i] << " and " << again[i];
      if (!same) break;
    }
  }
  Use({});
  return first;
}

/// Puts numbers end to end.
template <class... More>
Numbers Join(Numbers first, const More&... more) {
  (first.insert(first.end(), more.begin(), more.end()), ...);
  return first;
}
/// Returns `count` of the numbers and takes them away from the front.
Numbers Take(Numbers& numbers, std::size_t count);

}  // namespace millrace::engine::cuda::emulator
