// Cross-entropy over logits and the gradient of embeddings, against the CPU's kernels and plain sums.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

namespace millrace::engine::cuda::emulator {
namespace {

class LossKernels : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Elements, LossKernels, testing::ValuesIn(kElements));

constexpr std::int64_t kIgnored = -100;

struct Logits {
  std::int64_t rows, columns, stride;
  std::vector<std::int64_t> labels;
  Numbers values;  ///< rows, `stride` apart; behind a row's columns they are NaN
};
Logits MakeLogits(Element element, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  Logits logits{rows, columns, stride, {}, Rounded(element, Random(static_cast<std::size_t>(rows * stride), 3, 1))};
  for (std::int64_t row = 0; row < rows; ++row) {
    logits.labels.push_back(row % 5 == 3 ? kIgnored : row * 37 % columns);
    for (std::int64_t at = columns; at < stride; ++at) logits.values[static_cast<std::size_t>(row * stride + at)] = NAN;
  }
  return logits;
}
Numbers RowOf(const Numbers& numbers, const Logits& logits, std::int64_t row) {
  const auto begin = numbers.begin() + row * logits.stride;
  return {begin, begin + logits.columns};
}

TEST_P(LossKernels, CrossEntropyIsTheCpus) {
  const Element element = GetParam();
  for (const auto& [rows, columns, stride] : {std::tuple{1, 1, 1}, std::tuple{6, 17, 17}, std::tuple{7, 130, 136},
                                              std::tuple{3, 4'097, 4'104}, std::tuple{2, 40'000, 40'000}}) {
    const Logits logits = MakeLogits(element, rows, columns, stride);
    for (const auto& [smoothing, z_loss] : {std::pair{0.0F, 0.0F}, std::pair{0.1F, 1e-3F}}) {
      for (const bool gradient : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", smoothing " << smoothing);
        Numbers got = InEveryOrder([&] {
          Memory memory(element, logits.values);
          std::vector<double> losses(logits.labels.size(), NAN);
          std::vector<std::int32_t> correct(logits.labels.size(), -1);
          CrossEntropy(element,
                       {.logits = memory.data(),
                        .stride = stride,
                        .labels = logits.labels.data(),
                        .rows = rows,
                        .columns = columns,
                        .vocab = columns,
                        .ignored = kIgnored,
                        .label_smoothing = smoothing,
                        .z_loss = z_loss},
                       gradient, losses.data(), correct.data(), nullptr);
          return Join(Numbers(losses.begin(), losses.end()), Numbers(correct.begin(), correct.end()), memory.values());
        });
        const Numbers losses = Take(got, logits.labels.size()), correct = Take(got, logits.labels.size());
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto at = static_cast<std::size_t>(row);
          const std::int64_t label = logits.labels[at];
          if (label == kIgnored) {
            EXPECT_EQ(losses[at], 0);
            EXPECT_EQ(correct[at], 0);
            if (gradient) {
              EXPECT_EQ(RowOf(got, logits, row), Numbers(static_cast<std::size_t>(columns)));
            }
            continue;
          }
          Numbers want = RowOf(logits.values, logits, row);
          EXPECT_EQ(correct[at], want[static_cast<std::size_t>(label)] == *std::ranges::max_element(want) ? 1 : 0);
          double loss = 0;
          cpu::CrossEntropy<float>{want.data(), &label, &loss, columns, gradient, smoothing, z_loss}.Run({0, 1});
          EXPECT_NEAR(losses[at], loss, 1e-5 * (1 + loss));
          if (gradient) ExpectNear(RowOf(got, logits, row), want, ToleranceOf(element));
        }
        if (gradient) {
          for (std::int64_t i = columns; i < stride; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 0);
        }
      }
    }
  }
}

TEST_P(LossKernels, ALabelOutsideTheVocabularyMakesTheLossNan) {
  Logits logits = MakeLogits(GetParam(), 1, 16, 16);
  for (const std::int64_t label : {std::int64_t{-1}, std::int64_t{16}, std::int64_t{1} << 40}) {
    double loss = 0;
    Memory memory(GetParam(), logits.values);
    CrossEntropy(GetParam(),
                 {.logits = memory.data(),
                  .stride = 16,
                  .labels = &label,
                  .rows = 1,
                  .columns = 16,
                  .vocab = 16,
                  .ignored = kIgnored},
                 false, &loss, nullptr, nullptr);
    EXPECT_TRUE(std::isnan(loss)) << label;
  }
}

/// The columns are divided between two ranks. Together they have what one rank has.
TEST_P(LossKernels, DividedColumnsHaveTheSameLoss) {
  const Element element = GetParam();
  constexpr std::int64_t kRows = 7, kColumns = 96, kHalf = kColumns / 2;
  const Logits logits = MakeLogits(element, kRows, kColumns, kColumns);
  std::vector<cpu::PartialSoftmax> partial[2];
  Numbers halves[2], lse(kRows);
  const auto args_of = [&](int rank, void* memory) {
    return CrossEntropyArgs{.logits = memory,
                            .stride = kHalf,
                            .labels = logits.labels.data(),
                            .rows = kRows,
                            .columns = kHalf,
                            .first_column = rank * kHalf,
                            .vocab = kColumns,
                            .ignored = kIgnored,
                            .label_smoothing = 0.05F,
                            .z_loss = 1e-3F};
  };
  for (int rank = 0; rank < 2; ++rank) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto begin = logits.values.begin() + row * kColumns + rank * kHalf;
      halves[rank].insert(halves[rank].end(), begin, begin + kHalf);
    }
    partial[rank].resize(kRows);
    Memory memory(element, halves[rank]);
    CrossEntropyScan(element, args_of(rank, memory.data()), partial[rank].data(), nullptr);
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    const cpu::PartialSoftmax &a = partial[0][row], &b = partial[1][row];
    const float most = std::max(a.most, b.most);
    lse[row] = most + std::log(a.sum * std::exp(a.most - most) + b.sum * std::exp(b.most - most));
    const std::int64_t label = logits.labels[row];
    if (label == kIgnored) continue;
    EXPECT_EQ(a.label + b.label, logits.values[row * kColumns + static_cast<std::size_t>(label)]);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Numbers got = InEveryOrder([&] {
      Memory memory(element, halves[rank]);
      CrossEntropyGradient(element, args_of(rank, memory.data()), lse.data(), nullptr);
      return memory.values();
    });
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::int64_t label = logits.labels[row];
      Numbers want(kColumns);
      if (label != kIgnored) {
        want = RowOf(logits.values, logits, static_cast<std::int64_t>(row));
        double loss = 0;
        cpu::CrossEntropy<float>{want.data(), &label, &loss, kColumns, true, 0.05F, 1e-3F}.Run({0, 1});
      }
      const auto begin = got.begin() + static_cast<std::ptrdiff_t>(row * kHalf);
      const auto expected = want.begin() + rank * kHalf;
      ExpectNear(Numbers(begin, begin + kHalf), Numbers(expected, expected + kHalf), ToleranceOf(element));
    }
  }
}

TEST_P(LossKernels, EqualIdsAreSummedWhateverWindowsTheyCross) {
  const Element element = GetParam();
  constexpr std::int64_t kIds = 6;
  for (const std::int64_t columns : {1, 24, 700}) {
    for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{1, 0, 0, 0, 0, 0},
                                                    {10, 20, 2, 0, 1, 0},
                                                    {5, 200, 3, 64, 0, 1},
                                                    {0, 32, 32, 1, 31, 96}}) {
      std::vector<std::int64_t> ids, order;
      for (std::int64_t id = 0; id < kIds; ++id)
        ids.insert(ids.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(id)]), id);
      const auto count = static_cast<std::int64_t>(ids.size());
      for (std::int64_t i = 0; i < count; ++i) order.push_back((i * 7 + 3) % count);
      if (count % 7 == 0) std::iota(order.begin(), order.end(), 0);
      const Numbers dout = Rounded(element, Random(static_cast<std::size_t>(count * columns), 1, 3));
      const Numbers got = InEveryOrder([&] {
        Memory memory(element, dout);
        Numbers into(static_cast<std::size_t>(kIds * columns), 0.25F);
        Numbers scratch(static_cast<std::size_t>(AddRowsScratchRows(count) * columns), NAN);
        AddRows(element,
                {.dout = memory.data(),
                 .ids = ids.data(),
                 .order = order.data(),
                 .into = into.data(),
                 .scratch = scratch.data(),
                 .count = count,
                 .columns = columns},
                nullptr);
        return into;
      });
      Numbers want(static_cast<std::size_t>(kIds * columns), 0.25F);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        for (std::int64_t at = 0; at < columns; ++at) {
          want[static_cast<std::size_t>(ids[i] * columns + at)] +=
              dout[static_cast<std::size_t>(order[i] * columns + at)];
        }
      }
      ExpectNear(got, want, 1e-5);
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
