#include "millrace/engine/quantized/code_maps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "millrace/engine/quantized/fp8_numbers.h"

namespace millrace::engine {

const std::array<float, 16> kNf4Map = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

const std::array<float, 256>& E4m3Map() {
  static const std::array<float, 256> map = [] {
    std::array<float, 256> values{};
    for (std::size_t code = 0; code < values.size(); ++code) {
      values[code] = FromFp8(Fp8Format::kE4m3, static_cast<std::uint8_t>(code));
    }
    constexpr float kNext = 480;
    values[kFp8Nan] = kNext;
    values[kFp8Nan | 0x80] = -kNext;
    return values;
  }();
  return map;
}

const std::array<float, 256>& DynamicMap() {
  static const std::array<float, 256> map = [] {
    constexpr int kDecades = 7;
    std::array<float, 256> values{};
    std::size_t count = 0;
    const auto add = [&](float value) { values[count++] = value; };
    add(0);
    add(1);
    for (int decade = 0; decade < kDecades; ++decade) {
      const int items = 1 << decade;
      // torch.linspace(0.1, 1, items + 1): from both ends to the middle, with fused multiplications.
      const float step = (1.0F - 0.1F) / static_cast<float>(items);
      const auto bound = [&](int i) {
        if (i < (items + 1) / 2) return std::fma(step, static_cast<float>(i), 0.1F);
        return std::fma(-step, static_cast<float>(items - i), 1.0F);
      };
      const auto scale = static_cast<float>(std::pow(10.0, decade - kDecades + 1));
      for (int i = 0; i < items; ++i) {
        const float value = scale * ((bound(i) + bound(i + 1)) / 2);
        add(value);
        add(-value);
      }
    }
    std::ranges::sort(values);
    return values;
  }();
  return map;
}

}  // namespace millrace::engine
