// Products of few rows.
#include "millrace/engine/ops/cuda/emulator/kernel_test.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda::emulator {
namespace {

class FewRowsKernels : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Elements, FewRowsKernels, testing::ValuesIn(kElements));

TEST_P(FewRowsKernels, AreProducts) {
  const Element element = GetParam();
  for (const auto& [inputs, outputs, stride] :
       {std::tuple{8, 1, 8}, std::tuple{64, 40, 64}, std::tuple{1032, 37, 1040}, std::tuple{4096, 20, 4096}}) {
    for (std::int64_t rows = 1; rows <= kMaxFewRows; ++rows) {
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

}  // namespace
}  // namespace millrace::engine::cuda::emulator
