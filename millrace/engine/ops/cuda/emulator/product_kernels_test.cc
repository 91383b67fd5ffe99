// Products of few rows, and the numbers of quantized weights.
#include <algorithm>
#include <cmath>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"
#include "millrace/engine/ops/cuda/kernels/few_rows.h"
#include "millrace/engine/ops/cuda/kernels/quantized_kernels.h"

namespace millrace::engine::cuda::emulator {
namespace {

class ProductKernels : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Elements, ProductKernels, testing::ValuesIn(kElements));

TEST_P(ProductKernels, FewRowsTimesAWeight) {
  const Element element = GetParam();
  for (const auto& [inputs, outputs, stride] :
       {std::tuple{8, 1, 8}, std::tuple{64, 40, 64}, std::tuple{1032, 37, 1040}, std::tuple{4096, 20, 4096}}) {
    for (std::int64_t rows = 1; rows <= kMostFewRows; ++rows) {
      for (const bool has_bias : {false, true}) {
        const Numbers x = Rounded(element, Random(static_cast<std::size_t>(rows * stride), 1, 1));
        const Numbers weight = Rounded(element, Random(static_cast<std::size_t>(inputs * outputs), 1, 2));
        const Numbers bias = Rounded(element, Random(static_cast<std::size_t>(outputs), 1, 3));
        const Numbers got = InEveryOrder([&] {
          Memory of_x(element, x), of_weight(element, weight), of_bias(element, bias);
          Memory out(element, static_cast<std::size_t>(rows * outputs));
          const FewRowsArgs args{.x = of_x.data(),
                                 .weight = of_weight.data(),
                                 .bias = has_bias ? of_bias.data() : nullptr,
                                 .out = out.data(),
                                 .rows = rows,
                                 .inputs = inputs,
                                 .outputs = outputs,
                                 .x_stride = stride};
          EXPECT_TRUE(FitsFewRows(element, args));
          MultiplyFewRows(element, args, nullptr);
          return out.values();
        });
        Numbers want;
        for (std::int64_t row = 0; row < rows; ++row) {
          for (int output = 0; output < outputs; ++output) {
            double sum = has_bias ? bias[static_cast<std::size_t>(output)] : 0;
            for (int i = 0; i < inputs; ++i) {
              sum += static_cast<double>(x[static_cast<std::size_t>(row * stride + i)]) *
                     weight[static_cast<std::size_t>(output * inputs + i)];
            }
            want.push_back(static_cast<float>(sum));
          }
        }
        ExpectNear(got, want, ToleranceOf(element) / 2);
      }
    }
  }
}

/// A matrix of codes, and the boxes of it that are computed.
constexpr std::int64_t kRows = 12, kColumns = 64;
constexpr CodedBox kBoxes[] = {{0, kRows, kColumns, kColumns},
                               {3 * kColumns, 5, kColumns, kColumns},
                               {2 * kColumns + 16, 6, 24, kColumns},
                               {kColumns + 3, 4, 7, kColumns}};

TEST_P(ProductKernels, Nf4CodesAreLookedUp) {
  const Element element = GetParam();
  std::vector<std::uint8_t> codes(kRows * kColumns / 2), nested(kRows * kColumns / 16);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % 256);
  for (std::size_t i = 0; i < nested.size(); ++i) nested[i] = static_cast<std::uint8_t>(i * 91 % 256);
  const Numbers map = Random(16, 1, 1), plain = Random(nested.size(), 1, 2), scale_map = Random(256, 1, 3);
  const Numbers scale_scales = Random(nested.size() / 4, 1, 4);
  for (const bool nests : {false, true}) {
    const Nf4Codes of{.codes = codes.data(),
                      .map = map.data(),
                      .block = 16,
                      .scales = nests ? nested.data() : nullptr,
                      .plain_scales = nests ? nullptr : plain.data(),
                      .scale_map = scale_map.data(),
                      .scale_scales = scale_scales.data(),
                      .scale_block = 4,
                      .scale_offset = 0.3F};
    for (const CodedBox& box : kBoxes) {
      for (const bool misaligned : {false, true}) {
        const Numbers got = InEveryOrder([&] {
          Memory out(element, static_cast<std::size_t>(box.rows * box.columns), misaligned);
          DequantizeNf4(of, box, element, out.data(), nullptr);
          return out.values();
        });
        Numbers want;
        for (std::int64_t row = 0; row < box.rows; ++row) {
          for (std::int64_t column = 0; column < box.columns; ++column) {
            const auto i = static_cast<std::size_t>(box.first + row * box.row_stride + column);
            const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
            const float scale = nests ? scale_map[nested[i / 16]] * scale_scales[i / 64] + 0.3F : plain[i / 16];
            want.push_back(map[static_cast<std::size_t>(code)] * scale);
          }
        }
        ExpectNear(got, Rounded(element, want), 1e-6);
      }
    }
  }
}

TEST_P(ProductKernels, Int8CodesAreScaled) {
  const Element element = GetParam();
  std::vector<std::int8_t> codes(kRows * kColumns);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 255) - 127);
  const Numbers scales = Random(kRows, 1, 5);
  for (const CodedBox& box : kBoxes) {
    const Numbers got = InEveryOrder([&] {
      Memory out(element, static_cast<std::size_t>(box.rows * box.columns));
      DequantizeInt8(codes.data(), scales.data(), box, element, out.data(), nullptr);
      return out.values();
    });
    Numbers want;
    for (std::int64_t row = 0; row < box.rows; ++row) {
      for (std::int64_t column = 0; column < box.columns; ++column) {
        const std::int64_t i = box.first + row * box.row_stride + column;
        const float scale = scales[static_cast<std::size_t>(i / kColumns)] * (1.0F / 127);
        want.push_back(static_cast<float>(codes[static_cast<std::size_t>(i)]) * scale);
      }
    }
    EXPECT_EQ(got, Rounded(element, want));
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
