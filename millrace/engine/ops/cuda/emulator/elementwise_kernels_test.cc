// Kernels that compute each element by itself, against the CPU's.
#include <algorithm>
#include <cmath>

#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/cuda/emulator/kernel_test.h"
#include "millrace/engine/ops/cuda/kernels/kernels.h"

namespace millrace::engine::cuda::emulator {
namespace {

class ElementwiseKernels : public testing::TestWithParam<Element> {
 protected:
  static Element element() { return GetParam(); }
  static Numbers Values(std::size_t count, unsigned seed, double scale = 2) {
    return Rounded(element(), Random(count, scale, seed));
  }
  /// Runs work(inputs…, output) and returns the output.
  template <class Work, class... Inputs>
  static Numbers Run(std::size_t outputs, bool misaligned, Work&& work, const Inputs&... inputs) {
    return InEveryOrder([&] {
      Memory out(element(), outputs);
      work(Memory(element(), inputs, misaligned).data()..., out.data());
      return out.values();
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Elements, ElementwiseKernels, testing::ValuesIn(kElements));

template <class F>
void ActivateOnCpu(const Numbers& x, const Numbers& dout, Numbers& out, Numbers& dx) {
  const auto count = static_cast<std::int64_t>(x.size());
  cpu::ActivateForward<F>(x.data(), out.data(), 0, count);
  cpu::ActivateBackward<F>(dout.data(), x.data(), dx.data(), 0, count);
}

TEST_P(ElementwiseKernels, Activations) {
  for (const std::size_t count : {1U, 31U, 1024U, 5000U, 20'001U}) {
    for (const bool misaligned : {false, true}) {
      for (const Function function : {Function::kGeluErf, Function::kGeluTanh, Function::kSilu, Function::kRelu}) {
        const Numbers x = Values(count, 1), dout = Values(count, 2);
        const auto size = static_cast<std::int64_t>(count);
        const Numbers out = Run(
            count, misaligned, [&](void* in, void* to) { ActivateForward(element(), function, in, to, size, nullptr); },
            x);
        const Numbers dx = Run(
            count, misaligned,
            [&](void* in, void* d, void* to) { ActivateBackward(element(), function, d, in, to, size, nullptr); }, x,
            dout);
        Numbers want_out(count), want_dx(count);
        switch (function) {
          case Function::kGeluErf:
            ActivateOnCpu<cpu::GeluErf>(x, dout, want_out, want_dx);
            break;
          case Function::kGeluTanh:
            ActivateOnCpu<cpu::GeluTanh>(x, dout, want_out, want_dx);
            break;
          case Function::kSilu:
            ActivateOnCpu<cpu::Silu>(x, dout, want_out, want_dx);
            break;
          case Function::kRelu:
            std::ranges::transform(x, want_out.begin(), [](float v) { return std::max(v, 0.0F); });
            std::ranges::transform(x, dout, want_dx.begin(), [](float v, float d) { return v > 0 ? d : 0; });
        }
        ExpectNear(out, want_out, ToleranceOf(element()));
        ExpectNear(dx, want_dx, ToleranceOf(element()));
      }
    }
  }
}

TEST_P(ElementwiseKernels, Swiglu) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, std::pair{3, 17}, std::pair{5, 64}, std::pair{67, 136}}) {
    for (const bool misaligned : {false, true}) {
      const auto count = static_cast<std::size_t>(rows * columns);
      const Numbers gate_up = Values(2 * count, 3), dout = Values(count, 4);
      const Numbers out = Run(
          count, misaligned, [&](void* in, void* to) { SwigluForward(element(), in, to, rows, columns, nullptr); },
          gate_up);
      const Numbers dgate_up = Run(
          2 * count, misaligned,
          [&](void* in, void* d, void* to) { SwigluBackward(element(), d, in, to, rows, columns, nullptr); }, gate_up,
          dout);
      Numbers want_out(count), want_dgate_up(2 * count);
      cpu::SwigluForward<float>{gate_up.data(), want_out.data(), columns}.Run({0, rows});
      cpu::SwigluBackward<float>{dout.data(), gate_up.data(), want_dgate_up.data(), columns}.Run({0, rows});
      ExpectNear(out, want_out, ToleranceOf(element()));
      ExpectNear(dgate_up, want_dgate_up, ToleranceOf(element()));
    }
  }
}

TEST_P(ElementwiseKernels, SumsAndFactors) {
  for (const std::size_t count : {1U, 1000U, 20'001U}) {
    const Numbers a = Values(count, 5), b = Values(count, 6);
    const auto size = static_cast<std::int64_t>(count);
    Numbers sums(count), scaled(count);
    std::ranges::transform(a, b, sums.begin(), std::plus());
    std::ranges::transform(a, scaled.begin(), [](float v) { return 3 * v; });
    for (const bool misaligned : {false, true}) {
      EXPECT_EQ(Run(
                    count, misaligned,
                    [&](void* left, void* right, void* out) { Add(element(), left, right, out, size, nullptr); }, a, b),
                Rounded(element(), sums));
      for (const float factor : {1.0F, 3.0F}) {
        const Numbers got = InEveryOrder([&] {
          Memory x(element(), a, misaligned);
          Scale(element(), x.data(), size, &factor, nullptr);
          return x.values();
        });
        EXPECT_EQ(got, factor == 1 ? a : Rounded(element(), scaled));
      }
    }
  }
}

TEST_P(ElementwiseKernels, RotaryPositions) {
  struct Shape {
    std::int64_t rows, heads, head_dim, dim, columns;
  };
  constexpr std::int64_t kPositions = 11;
  for (const Shape& shape :
       {Shape{1, 1, 2, 2, 2}, Shape{5, 3, 16, 16, 64}, Shape{9, 2, 64, 16, 200}, Shape{3, 4, 32, 10, 129}}) {
    const auto count = static_cast<std::size_t>(shape.rows * shape.columns);
    const Numbers x = Values(count, 7);
    Numbers cosine(static_cast<std::size_t>(kPositions * shape.dim / 2)), sine(cosine.size());
    for (std::size_t i = 0; i < cosine.size(); ++i) {
      cosine[i] = std::cos(static_cast<float>(i));
      sine[i] = std::sin(static_cast<float>(i));
    }
    std::vector<std::int32_t> positions(static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i * 7 % kPositions);
    for (const bool neighbours : {false, true}) {
      for (const float sign : {1.0F, -1.0F}) {
        for (const bool misaligned : {false, true}) {
          const Numbers got = Run(
              count, misaligned,
              [&](void* in, void* out) {
                Rotate(element(),
                       {.x = in,
                        .out = out,
                        .cosine = cosine.data(),
                        .sine = sine.data(),
                        .positions = positions.data(),
                        .rows = shape.rows,
                        .heads = shape.heads,
                        .head_dim = shape.head_dim,
                        .dim = shape.dim,
                        .columns = shape.columns,
                        .neighbours = neighbours,
                        .sign = sign},
                       nullptr);
              },
              x);
          Numbers want(count);
          cpu::Rotate<float>{x.data(),    want.data(),    cosine.data(), sine.data(),   positions.data(),
                             shape.heads, shape.head_dim, shape.dim,     shape.columns, neighbours,
                             sign}
              .Run({0, shape.rows});
          ExpectNear(got, want, ToleranceOf(element()));
        }
      }
    }
  }
}

TEST_P(ElementwiseKernels, DropsWhatTheCpuDrops) {
  constexpr cpu::DropoutRow kChoices{.key = 77, .threshold = 1U << 30, .scale = 4.0F / 3};
  for (const auto& [rows, columns, first_column] : {std::tuple{3, 64, 0}, std::tuple{5, 13, 4}, std::tuple{7, 40, 6}}) {
    constexpr std::int64_t kFirstToken = 5, kRowLength = 4;
    constexpr std::uint64_t kFirstSample = (std::uint64_t{1} << 32) - 1;
    const auto count = static_cast<std::size_t>(rows * columns);
    const Numbers x = Values(count, 8);
    Numbers want = x;
    for (int row = 0; row < rows; ++row) {
      const std::int64_t token = kFirstToken + row;
      const std::uint64_t sample = kFirstSample + static_cast<std::uint64_t>(token / kRowLength);
      float* const at = want.data() + static_cast<std::ptrdiff_t>(row) * columns;
      kChoices.Run(at, at, first_column, columns, static_cast<std::uint32_t>(token % kRowLength),
                   static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32));
    }
    for (const bool misaligned : {false, true}) {
      const Numbers got = Run(
          count, misaligned,
          [&](void* in, void* out) {
            Dropout(element(),
                    {.x = in,
                     .out = out,
                     .rows = rows,
                     .columns = columns,
                     .first_column = first_column,
                     .first_token = kFirstToken,
                     .row_length = kRowLength,
                     .first_sample = kFirstSample,
                     .choices = kChoices},
                    nullptr);
          },
          x);
      EXPECT_EQ(got, Rounded(element(), want)) << rows << " x " << columns;
    }
  }
}

TEST(RandomKernels, KeptProbabilitiesAreThoseOfPhilox) {
  const KeptProbabilities of{.key = 9,
                             .threshold = 1U << 29,
                             .sample = 3,
                             .scale = 2,
                             .first_head = 4,
                             .heads = 3,
                             .first_position = 2,
                             .length = 37};
  const Numbers got = InEveryOrder([&] {
    Numbers out(static_cast<std::size_t>(of.heads * of.length * of.length), NAN);
    FillKeptProbabilities(of, out.data(), nullptr);
    return out;
  });
  std::size_t at = 0, dropped = 0;
  for (std::uint32_t head = 0; head < 3; ++head) {
    for (std::uint32_t query = 0; query < 37; ++query) {
      for (std::uint32_t key = 0; key < 37; ++key, ++at) {
        const std::uint32_t word = cpu::Philox(of.key, key / 4, 2 + query, of.sample, 4 + head).words[key % 4];
        ASSERT_EQ(got[at], word < of.threshold ? 0 : 2) << head << ", " << query << ", " << key;
        dropped += got[at] == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(at), 1.0 / 8, 0.02);
}

TEST(RandomKernels, InitialValuesDoNotDependOnTheSlice) {
  constexpr std::int64_t kCount = 10'001;
  for (const auto& fill : {FillNormal, FillUniform}) {
    const Numbers whole = InEveryOrder([&] {
      Numbers out(kCount, NAN);
      fill(5, 0.02, 0, out.data(), kCount, nullptr);
      return out;
    });
    for (const auto& [first, count] : {std::pair{0, 7}, std::pair{1, 8}, std::pair{300, 701}, std::pair{9'999, 2}}) {
      Numbers part(static_cast<std::size_t>(count), NAN);
      fill(5, 0.02, first, part.data(), count, nullptr);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << first;
    }
    double sum = 0, squares = 0;
    for (const float value : whole) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    EXPECT_NEAR(sum / kCount, 0, 5 * 0.02 / std::sqrt(kCount));
    EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 0.02 * 0.04);
    fill(5, 0.02, 0, nullptr, 0, nullptr);  // nothing to do
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
