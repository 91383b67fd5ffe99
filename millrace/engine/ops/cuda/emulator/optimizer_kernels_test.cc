// The updates of optimizers, against the CPU's kernels.
#include <cmath>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

namespace millrace::engine::cuda::emulator {
namespace {

using cpu::RoundedNumber;

/// How the numbers of a model are kept.
struct Form {
  Element weights = Element::kFloat;
  bool has_master = true, bf16_moments = false;
  bool rounds() const { return !has_master || bf16_moments; }
};
const Form kForms[] = {{Element::kFloat},
                       {Element::kBfloat16},
                       {Element::kHalf},
                       {Element::kBfloat16, true, true},
                       {Element::kBfloat16, false, false},
                       {Element::kBfloat16, false, true},
                       {Element::kFloat, true, true}};

/// The numbers of some runs of elements, end to end.
struct ParameterState {
  Numbers weights, master, gradients, moment1, moment2;
};
struct Run {
  std::int64_t count;
  float lr, decay;
};
/// Some are empty, some are longer than a block of threads updates, and some do not end with a vector.
constexpr Run kRuns[] = {{5, 0.1F, 0}, {0, 1, 1}, {9000, 0.01F, 0.1F}, {16'384, 0.02F, 0}, {1, 0.3F, 0.1F}, {0, 1, 1}};
constexpr std::size_t kRunCount = std::size(kRuns);
std::size_t All() {
  std::size_t all = 0;
  for (const Run& run : kRuns) all += static_cast<std::size_t>(run.count);
  return all;
}

ParameterState MakeParameterState(const Form& form) {
  const Element moments = form.bf16_moments ? Element::kBfloat16 : Element::kFloat;
  ParameterState state{.weights = Rounded(form.weights, Random(All(), 1, 1)),
                       .gradients = Random(All(), 0.1, 2),
                       .moment1 = Rounded(moments, Random(All(), 0.1, 3)),
                       .moment2 = Rounded(moments, Random(All(), 0.1, 4))};
  for (float& moment : state.moment2) moment = std::abs(moment);
  state.master = state.weights;
  return state;
}

cpu::RoundedElements ElementsOf(std::size_t run) {
  // Columns that ranks divide: 12 of 40 consecutive elements are here.
  return {.key = 100 + run, .first = 24, .numbers = {.run = 12, .stride = 40, .offset = 8}};
}

/// Runs update(runs) over the state in memory and returns all of it end to end.
template <class Update>
Numbers OnGpu(const Form& form, const ParameterState& state, bool misaligned, bool has_momentum, Update&& update) {
  return InEveryOrder([&] {
    const Element of_moments = form.bf16_moments ? Element::kBfloat16 : Element::kFloat;
    const bool is_float = form.weights == Element::kFloat;
    ParameterState left = state;
    std::vector<Memory> weights, masters, moment1, moment2;
    std::vector<Numbers> gradients;
    for (const Run& run : kRuns) {
      const auto count = static_cast<std::size_t>(run.count);
      weights.emplace_back(form.weights, Take(left.weights, count), misaligned);
      masters.emplace_back(Element::kFloat, Take(left.master, count), misaligned);
      gradients.push_back(Take(left.gradients, count));
      moment1.emplace_back(of_moments, Take(left.moment1, count), misaligned);
      moment2.emplace_back(of_moments, Take(left.moment2, count), misaligned);
    }
    std::vector<OptimizerRun> runs;
    for (std::size_t i = 0; i < kRunCount; ++i) {
      if (is_float) weights[i] = Memory(Element::kFloat, std::size_t{0});
      void* const master = masters[i].data();
      runs.push_back({.weights = is_float ? master : weights[i].data(),
                      .master = form.has_master ? static_cast<float*>(master) : nullptr,
                      .gradients = gradients[i].data(),
                      .moment1 = has_momentum ? moment1[i].data() : nullptr,
                      .moment2 = moment2[i].data(),
                      .count = kRuns[i].count,
                      .lr = kRuns[i].lr,
                      .decay = kRuns[i].decay,
                      .rounded = ElementsOf(i)});
    }
    const std::int64_t blocks = SetBlocks(form.weights, form.bf16_moments, runs.data(), kRunCount);
    update(OptimizerRuns{runs.data(), kRunCount, blocks, form.bf16_moments});
    Numbers all;
    for (std::size_t i = 0; i < kRunCount; ++i) {
      const Numbers master = form.has_master ? masters[i].values() : Numbers();
      all = Join(all, is_float ? master : weights[i].values(), is_float ? Numbers() : master, gradients[i],
                 moment1[i].values(), moment2[i].values());
    }
    return all;
  });
}

Numbers RoundedOnCpu(const Numbers& numbers, std::size_t run, RoundedNumber number) {
  std::vector<cpu::Bf16> codes(numbers.size());
  cpu::RoundStochastically(ElementsOf(run), number, numbers.data(), codes.data(),
                           static_cast<std::int64_t>(numbers.size()));
  Numbers rounded(numbers.size());
  cpu::Widen(codes.data(), rounded.data(), static_cast<std::int64_t>(codes.size()));
  return rounded;
}

/// Runs update(run's number, master, gradients, moments) of the CPU over each run, and keeps the numbers as `form`
/// does.
template <class Update>
Numbers OnCpu(const Form& form, const ParameterState& state, Update&& update) {
  ParameterState left = state;
  Numbers all;
  for (std::size_t i = 0; i < kRunCount; ++i) {
    const auto count = static_cast<std::size_t>(kRuns[i].count);
    Take(left.weights, count);
    Numbers master = Take(left.master, count), gradients = Take(left.gradients, count);
    Numbers moment1 = Take(left.moment1, count), moment2 = Take(left.moment2, count);
    if (count > 0) update(i, master, gradients, moment1, moment2);
    if (form.bf16_moments) {
      moment1 = RoundedOnCpu(moment1, i, RoundedNumber::kMoment1);
      moment2 = RoundedOnCpu(moment2, i, RoundedNumber::kMoment2);
    }
    const Numbers weights =
        form.has_master ? Rounded(form.weights, master) : RoundedOnCpu(master, i, RoundedNumber::kWeight);
    const bool is_float = form.weights == Element::kFloat;
    all = Join(all, weights, is_float || !form.has_master ? Numbers() : master, gradients, moment1, moment2);
  }
  return all;
}

/// Where float32 sums differ by a rounding, a number may be rounded to its neighbour in bfloat16.
void ExpectTheSame(const Form& form, const Numbers& got, const Numbers& want) {
  ASSERT_EQ(got.size(), want.size());
  std::size_t neighbours = 0;
  const bool has_short = form.rounds() || form.weights != Element::kFloat;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float difference = std::abs(got[i] - want[i]);
    if (difference <= 1e-6F + 2e-6F * std::abs(want[i])) continue;
    ASSERT_TRUE(has_short && difference <= 0.0079F * std::abs(want[i])) << i << ": " << got[i] << ", " << want[i];
    ++neighbours;
  }
  EXPECT_LE(static_cast<double>(neighbours), 2e-3 * static_cast<double>(want.size()));
}

constexpr cpu::AdamwStep kAdamw{.lr = 0,
                                .beta1 = 0.9F,
                                .beta2 = 0.95F,
                                .eps = 1e-8F,
                                .weight_decay = 0,
                                .correction1 = 0.19F,
                                .correction2 = 0.0975F,
                                .gradient_scale = 0.5F};

TEST(OptimizerKernels, AdamwIsTheCpus) {
  for (const Form& form : kForms) {
    const ParameterState state = MakeParameterState(form);
    const Numbers want =
        OnCpu(form, state, [](std::size_t i, Numbers& master, Numbers& gradients, Numbers& m1, Numbers& m2) {
          cpu::AdamwStep step = kAdamw;
          step.lr = kRuns[i].lr;
          step.weight_decay = kRuns[i].decay;
          cpu::Adamw<float>(step, master.data(), master.data(), gradients.data(), m1.data(), m2.data(), kRuns[i].count);
        });
    for (const bool misaligned : {false, true}) {
      ExpectTheSame(form,
                    OnGpu(form, state, misaligned, true,
                          [&](const OptimizerRuns& runs) { Adamw(form.weights, runs, kAdamw, nullptr); }),
                    want);
    }
  }
}

TEST(OptimizerKernels, SgdIsTheCpus) {
  for (const Form& form : kForms) {
    for (const auto& [momentum, nesterov] : {std::pair{0.0F, false}, std::pair{0.9F, false}, std::pair{0.9F, true}}) {
      const cpu::SgdStep shared{
          .lr = 0, .momentum = momentum, .weight_decay = 0, .gradient_scale = 2, .nesterov = nesterov};
      const ParameterState state = MakeParameterState(form);
      Numbers want = OnCpu(form, state, [&](std::size_t i, Numbers& master, Numbers& gradients, Numbers& m1, Numbers&) {
        cpu::SgdStep step = shared;
        step.lr = kRuns[i].lr;
        step.weight_decay = kRuns[i].decay;
        cpu::Sgd<float>(step, master.data(), master.data(), gradients.data(), momentum > 0 ? m1.data() : nullptr,
                        kRuns[i].count);
      });
      Numbers got = OnGpu(form, state, false, momentum > 0,
                          [&](const OptimizerRuns& runs) { Sgd(form.weights, runs, shared, nullptr); });
      if (form.bf16_moments) continue;  // moments that SGD leaves alone are not rounded again
      ExpectTheSame(form, got, want);
    }
  }
}

TEST(OptimizerKernels, LambIsTheCpus) {
  constexpr cpu::LambStep kStep{.beta1 = 0.9F,
                                .beta2 = 0.95F,
                                .eps = 1e-6F,
                                .correction1 = 0.19F,
                                .correction2 = 0.0975F,
                                .gradient_scale = 0.5F};
  for (const Form& form : {kForms[0], kForms[1], kForms[3]}) {
    const ParameterState state = MakeParameterState(form);
    std::vector<cpu::LambSquares> squares(kRunCount);
    const Numbers want =
        OnCpu(form, state, [&](std::size_t i, Numbers& master, Numbers& gradients, Numbers& m1, Numbers& m2) {
          squares[i] = cpu::LambDirection(kStep, kRuns[i].decay, master.data(), gradients.data(), m1.data(), m2.data(),
                                          kRuns[i].count);
          cpu::LambApply<float>(kRuns[i].lr, master.data(), master.data(), gradients.data(), kRuns[i].count);
        });
    ExpectTheSame(form,
                  OnGpu(form, state, false, true,
                        [&](const OptimizerRuns& runs) {
                          std::vector<cpu::LambSquares> of_blocks(static_cast<std::size_t>(runs.blocks));
                          LambDirection(form.weights, runs, kStep, of_blocks.data(), nullptr);
                          for (std::size_t i = 0; i < kRunCount; ++i) {
                            const auto first = static_cast<std::size_t>(runs.runs[i].first_block);
                            const std::size_t end = i + 1 < kRunCount
                                                        ? static_cast<std::size_t>(runs.runs[i + 1].first_block)
                                                        : of_blocks.size();
                            cpu::LambSquares sum;
                            for (std::size_t block = first; block < end; ++block) {
                              sum.weight += of_blocks[block].weight;
                              sum.update += of_blocks[block].update;
                            }
                            EXPECT_NEAR(sum.weight, squares[i].weight, 1e-5 * squares[i].weight);
                            EXPECT_NEAR(sum.update, squares[i].update, 1e-4 * squares[i].update);
                          }
                          LambApply(form.weights, runs, nullptr);
                        }),
                  want);
  }
}

TEST(OptimizerKernels, SquaresAreSummedInDouble) {
  for (const std::size_t count : {1U, 1000U, 65'536U, 150'000U}) {
    for (const bool misaligned : {false, true}) {
      const Numbers x = Random(count, 1, 5);
      const auto size = static_cast<std::int64_t>(count);
      const Numbers got = InEveryOrder([&] {
        Memory memory(Element::kFloat, x, misaligned);
        std::vector<double> sums(static_cast<std::size_t>(SumOfSquaresBlocks(size)), NAN);
        SumOfSquares(static_cast<const float*>(memory.data()), size, sums.data(), nullptr);
        double sum = 0;
        for (const double of_block : sums) sum += of_block;
        return Numbers{static_cast<float>(sum)};
      });
      const double want = cpu::SumOfSquares(x.data(), size);
      EXPECT_NEAR(got[0], want, 1e-6 * want);
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
