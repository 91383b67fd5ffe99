// Norms of rows and sums of columns, against the CPU's kernels.
#include <cmath>
#include <utility>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

namespace millrace::engine::cuda::emulator {
namespace {

constexpr float kEps = 1e-5F;

struct Size {
  std::int64_t rows, columns;
  std::size_t all() const { return static_cast<std::size_t>(rows * columns); }
};
/// Rows of a part of a warp, of a warp, of a block with one to eight vectors a thread, and of more than registers hold.
constexpr Size kSizes[] = {{1, 3},    {7, 17},   {67, 48},  {33, 64},   {20, 256},  {9, 255},  {3, 1023},
                           {5, 2048}, {3, 4100}, {2, 8192}, {2, 16384}, {1, 16383}, {2, 9000}, {1, 70000}};

std::size_t Columns(const Size& size) { return static_cast<std::size_t>(size.columns); }
std::size_t Rows(const Size& size) { return static_cast<std::size_t>(size.rows); }

struct Operands {
  Numbers x, delta, weight, bias, dout, dsum;
};
Operands OperandsOf(Element element, const Size& size) {
  const auto random = [&](std::size_t count, double scale, unsigned seed) {
    return Rounded(element, Random(count, scale, seed));
  };
  return {random(size.all(), 2, 1),    random(size.all(), 1, 2), random(Columns(size), 1, 3),
          random(Columns(size), 1, 4), random(size.all(), 1, 5), random(size.all(), 1, 6)};
}

/// The offset that is added to the weight: not 0 for half of the norms that can have one.
float OffsetOf(bool has_mean, bool adds) { return has_mean || adds ? 0 : 1; }

/// The results of the forward pass, end to end: sum (with `adds`), output, mean (with `has_mean`), rstd.
Numbers ForwardOnCpu(const Operands& in, const Size& size, bool has_mean, bool adds) {
  Numbers sum(size.all()), out(size.all()), mean(Rows(size)), rstd(Rows(size));
  const float* const delta = adds ? in.delta.data() : nullptr;
  float* const into = adds ? sum.data() : nullptr;
  const cpu::Rows rows{0, size.rows};
  if (has_mean) {
    cpu::LayerNormForward<float>{in.x.data(), delta,       in.weight.data(), in.bias.data(), into,
                                 out.data(),  mean.data(), rstd.data(),      size.columns,   kEps}
        .Run(rows);
  } else {
    cpu::RmsNormForward<float>{in.x.data(),  delta, in.weight.data(),        into, out.data(), rstd.data(),
                               size.columns, kEps,  OffsetOf(has_mean, adds)}
        .Run(rows);
  }
  return Join(adds ? sum : Numbers(), out, has_mean ? mean : Numbers(), rstd);
}

Numbers ForwardOnGpu(Element element, const Operands& in, const Size& size, bool has_mean, bool adds, bool misaligned) {
  return InEveryOrder([&] {
    Memory x(element, in.x, misaligned), delta(element, in.delta, misaligned), weight(element, in.weight, misaligned),
        bias(element, in.bias), sum(element, size.all()), out(element, size.all());
    Numbers mean(Rows(size)), rstd(Rows(size));
    NormForward(element,
                {.x = x.data(),
                 .delta = adds ? delta.data() : nullptr,
                 .weight = weight.data(),
                 .bias = has_mean ? bias.data() : nullptr,
                 .sum = adds ? sum.data() : nullptr,
                 .out = out.data(),
                 .mean = has_mean ? mean.data() : nullptr,
                 .rstd = rstd.data(),
                 .rows = size.rows,
                 .columns = size.columns,
                 .eps = kEps,
                 .offset = OffsetOf(has_mean, adds)},
                nullptr);
    return Join(adds ? sum.values() : Numbers(), out.values(), has_mean ? mean : Numbers(), rstd);
  });
}

/// The gradients of x, of the weight and, with a mean, of the bias. `mean` and `rstd` are those of x.
Numbers BackwardOnCpu(const Operands& in, const Size& size, const Numbers& mean, const Numbers& rstd, bool adds) {
  Numbers dx(size.all()), dweight(Columns(size) * (mean.empty() ? 1 : 2));
  const float* const dsum = adds ? in.dsum.data() : nullptr;
  const cpu::Rows rows{0, size.rows};
  if (mean.empty()) {
    cpu::RmsNormBackward<float>{in.dout.data(), dsum,      in.x.data(),  in.weight.data(),
                                rstd.data(),    dx.data(), size.columns, OffsetOf(false, adds)}
        .Run(rows, dweight.data());
  } else {
    cpu::LayerNormBackward<float>{in.dout.data(), dsum,        in.x.data(), in.weight.data(),
                                  mean.data(),    rstd.data(), dx.data(),   size.columns}
        .Run(rows, dweight.data());
  }
  return Join(dx, dweight);
}

Numbers BackwardOnGpu(Element element, const Operands& in, const Size& size, const Numbers& mean, const Numbers& rstd,
                      bool adds, bool misaligned) {
  return InEveryOrder([&] {
    Memory x(element, in.x, misaligned), dout(element, in.dout), dsum(element, in.dsum, misaligned),
        weight(element, in.weight), dx(element, size.all());
    NormBackwardArgs args{.dout = dout.data(),
                          .dsum = adds ? dsum.data() : nullptr,
                          .x = x.data(),
                          .weight = weight.data(),
                          .mean = mean.empty() ? nullptr : mean.data(),
                          .rstd = rstd.data(),
                          .dx = dx.data(),
                          .rows = size.rows,
                          .columns = size.columns,
                          .offset = OffsetOf(!mean.empty(), adds)};
    const NormGrid grid = NormBackwardGrid(element, args);
    const std::int64_t width = size.columns * (mean.empty() ? 1 : 2);
    Numbers partial(static_cast<std::size_t>(grid.partial_rows() * width), NAN),
        dweight(static_cast<std::size_t>(width));
    args.partial = partial.data();
    NormBackward(element, args, grid, nullptr);
    Numbers scratch(static_cast<std::size_t>(ColumnSumSlices(grid.partial_rows(), width) * width), NAN);
    ColumnSum(Element::kFloat,
              {.x = partial.data(),
               .stride = width,
               .out = dweight.data(),
               .scratch = scratch.data(),
               .rows = grid.partial_rows(),
               .columns = width},
              nullptr);
    return Join(dx.values(), dweight);
  });
}

class NormKernels : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Elements, NormKernels, testing::ValuesIn(kElements));

TEST_P(NormKernels, AreTheCpus) {
  const Element element = GetParam();
  for (const Size& size : kSizes) {
    const Operands in = OperandsOf(element, size);
    for (const auto& [has_mean, adds, misaligned] :
         {std::tuple{false, false, false}, std::tuple{false, true, true}, std::tuple{true, true, false}}) {
      SCOPED_TRACE(testing::Message() << size.rows << " x " << size.columns << ", mean " << has_mean << ", delta "
                                      << adds << ", misaligned " << misaligned);
      Numbers got = ForwardOnGpu(element, in, size, has_mean, adds, misaligned);
      Numbers want = ForwardOnCpu(in, size, has_mean, adds);
      ExpectNear(Take(got, adds ? 2 * size.all() : size.all()), Take(want, adds ? 2 * size.all() : size.all()),
                 ToleranceOf(element));
      ExpectNear(got, want, adds ? ToleranceOf(element) : 5e-5);
      // The backward pass takes the norm's input and its statistics.
      Numbers statistics = ForwardOnCpu(in, size, has_mean, false);
      Take(statistics, size.all());
      const Numbers mean = Take(statistics, has_mean ? Rows(size) : 0);
      got = BackwardOnGpu(element, in, size, mean, statistics, adds, misaligned);
      want = BackwardOnCpu(in, size, mean, statistics, adds);
      ExpectNear(Take(got, size.all()), Take(want, size.all()), ToleranceOf(element));
      ExpectNear(got, want, 2e-5);
      if (HasFailure()) return;
    }
  }
}

TEST_P(NormKernels, ColumnsAreSummed) {
  const Element element = GetParam();
  for (const auto& [rows, columns, stride] : {std::tuple{1, 1, 1}, std::tuple{5, 16, 16}, std::tuple{200, 40, 48},
                                              std::tuple{700, 257, 264}, std::tuple{3, 1000, 1001}}) {
    const Numbers x = Rounded(element, Random(static_cast<std::size_t>(rows * stride), 1, 7));
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", adds " << adds);
      const Numbers got = InEveryOrder([&] {
        Memory memory(element, x);
        Numbers out(static_cast<std::size_t>(columns), 0.5F);
        Numbers scratch(static_cast<std::size_t>(ColumnSumSlices(rows, columns) * columns), NAN);
        ColumnSum(element,
                  {.x = memory.data(),
                   .stride = stride,
                   .out = out.data(),
                   .scratch = scratch.data(),
                   .rows = rows,
                   .columns = columns,
                   .adds = adds},
                  nullptr);
        return out;
      });
      Numbers want(static_cast<std::size_t>(columns), adds ? 0.5F : 0.0F);
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
          want[static_cast<std::size_t>(column)] += x[static_cast<std::size_t>(row * stride + column)];
        }
      }
      ExpectNear(got, want, 1e-5);
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
