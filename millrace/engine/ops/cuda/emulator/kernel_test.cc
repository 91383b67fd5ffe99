#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

namespace millrace::engine::cuda::emulator {
namespace {

constexpr std::align_val_t kVector{16};

std::size_t BytesOf(Element element) { return element == Element::kFloat ? 4 : 2; }

}  // namespace

void Memory::Free::operator()(std::byte* bytes) const { ::operator delete[](bytes, kVector); }

Memory::Memory(Element element, const Numbers& values, bool misaligned)
    : element_(element),
      count_(values.size()),
      offset_(misaligned ? BytesOf(element) : 0),
      bytes_(static_cast<std::byte*>(::operator new[](offset_ + count_ * BytesOf(element), kVector))) {
  std::byte* at = bytes_.get() + offset_;
  for (const float value : values) {
    if (element == Element::kFloat) {
      std::memcpy(at, &value, sizeof(value));
    } else {
      const std::uint16_t bits =
          element == Element::kBfloat16 ? __float2bfloat16_rn(value).bits : __float2half_rn(value).bits;
      std::memcpy(at, &bits, sizeof(bits));
    }
    at += BytesOf(element);
  }
}

Numbers Memory::values() const {
  Numbers values(count_);
  const std::byte* at = bytes_.get() + offset_;
  for (float& value : values) {
    if (element_ == Element::kFloat) {
      std::memcpy(&value, at, sizeof(value));
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, at, sizeof(bits));
      value = element_ == Element::kBfloat16 ? __bfloat162float({bits}) : __half2float({bits});
    }
    at += BytesOf(element_);
  }
  return values;
}

Numbers Random(std::size_t count, double scale, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> distribution(0, scale);
  Numbers numbers(count);
  for (float& number : numbers) number = static_cast<float>(distribution(engine));
  return numbers;
}

Numbers Rounded(Element element, const Numbers& numbers) { return Memory(element, numbers).values(); }

double ToleranceOf(Element element) {
  return element == Element::kFloat ? 1e-5 : element == Element::kHalf ? 3e-3 : 2e-2;
}

void ExpectNear(const Numbers& got, const Numbers& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1e-30;
  for (const float number : want) largest = std::max(largest, std::abs(static_cast<double>(number)));
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << "number " << i << " of " << want.size();
  }
}

Numbers Take(Numbers& numbers, std::size_t count) {
  const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(count);
  Numbers taken(numbers.begin(), end);
  numbers.erase(numbers.begin(), end);
  return taken;
}

}  // namespace millrace::engine::cuda::emulator
