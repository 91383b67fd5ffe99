// The loss of pairs of answers on a whole model, against its formula on each answer alone.
#include "millrace/engine/models/preference.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "millrace/engine/testing/train_ranks.h"

namespace millrace::engine {
namespace {

constexpr std::int64_t kLength = 12, kPrompt = 2;

/// Rows of answers behind prompts of two tokens. The last row has no pair.
struct Pairs {
  at::Tensor inputs = at::randint(20, {3, kLength}, at::detail::createCPUGenerator(1), at::kLong);
  at::Tensor labels = at::full({3, kLength}, ops::kIgnoreLabel, at::kLong);
  at::Tensor row_labels = at::tensor({0L, 0L, -100L});
  std::vector<std::int32_t> documents = {0, 5, 9, 12, 18, 24, 36};  // with padding, without it, no pair
  std::vector<std::int32_t> answers = {0, 1, -1, 2, 3, -1};

  Pairs() {
    for (std::size_t i : {0, 1, 3, 4}) {
      for (std::int64_t t = documents[i] + kPrompt - 1; t + 1 < documents[i + 1]; ++t) {
        labels.view(-1)[t].copy_(inputs.view(-1)[t + 1]);
      }
    }
  }
  ModelBatch Batch(Preferences& preferences) const {
    return {.inputs = inputs,
            .labels = labels,
            .documents = documents,
            .row_labels = row_labels,
            .preferences = &preferences,
            .answers = answers};
  }
  /// Returns the log-probability of the answer that document i has.
  double LogP(Model& model, std::size_t i) const {
    const std::int64_t begin = documents[i], tokens = documents[i + 1] - begin;
    const at::Tensor ids = inputs.view(-1).narrow(0, begin, tokens);
    const at::Tensor log_p = at::log_softmax(model.Logits(ids.view({1, -1}))[0].to(at::kDouble), 1);
    double sum = 0;
    for (std::int64_t t = kPrompt; t < tokens; ++t) sum += log_p[t - 1][ids[t].item<std::int64_t>()].item<double>();
    return sum;
  }
  double Answer(std::size_t i) const { return documents[i + 1] - documents[i] - kPrompt; }
};

/// A model with an adapter that changes it. Its base is that of Plain().
std::unique_ptr<Model> Adapted() {
  auto model = MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 5, {.lora = LoraOptions{.rank = 4}}).value();
  const at::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(3);
  for (const NamedParameter& parameter : model->Parameters()) {
    if (parameter.name.ends_with(kLoraUp)) parameter.tensor.detach().normal_(0, 0.3, generator);
  }
  model->buffer().EnableGradients();
  return model;
}
std::unique_ptr<Model> Plain() { return MakeModel(TinyConfig("llama"), at::kFloat, at::kCPU, 5).value(); }

double LossOf(const DpoOptions& options, double chosen, double rejected, double chosen_tokens, double rejected_tokens) {
  if (options.loss == DpoOptions::Loss::kIpo) {
    return std::pow(chosen / chosen_tokens - rejected / rejected_tokens - 1 / (2 * options.beta), 2);
  }
  const double margin = options.beta * (chosen - rejected);
  return std::log1p(std::exp(-margin)) * (1 - options.label_smoothing) +
         std::log1p(std::exp(margin)) * options.label_smoothing;
}

class PreferenceTest : public ::testing::TestWithParam<DpoOptions> {
 protected:
  /// Makes the reference's pass and then one that learns.
  at::Tensor Pass(Model& model, Preferences& preferences) {
    ModelBatch batch = pairs_.Batch(preferences);
    batch.as_reference = true;
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(model.LossSum(batch).item<float>(), 0);
    }
    batch.as_reference = false;
    return model.LossSum(batch);
  }

  const Pairs pairs_;
};

TEST_P(PreferenceTest, IsTheFormulaOfEachAnswerAlone) {
  const auto model = Adapted(), plain = Plain();
  Preferences preferences{.options = GetParam()};
  const double got = Pass(*model, preferences).item<double>();
  double want = 0, chosen_rewards = 0, rejected_rewards = 0, correct = 0;
  for (const std::size_t chosen : {0, 3}) {
    const std::size_t rejected = chosen + 1;
    const double better = pairs_.LogP(*model, chosen) - pairs_.LogP(*plain, chosen);
    const double worse = pairs_.LogP(*model, rejected) - pairs_.LogP(*plain, rejected);
    want += LossOf(GetParam(), better, worse, pairs_.Answer(chosen), pairs_.Answer(rejected));
    chosen_rewards += GetParam().beta * better;
    rejected_rewards += GetParam().beta * worse;
    correct += better > worse ? 1 : 0;
  }
  EXPECT_GT(std::abs(chosen_rewards), 1e-2) << "the adapter changes something";
  EXPECT_NEAR(got, want, 1e-5 * want);
  const auto& sums = preferences.sums.of;
  EXPECT_EQ(sums[PreferenceSums::kPairs], 2);
  EXPECT_NEAR(sums[PreferenceSums::kChosenReward], chosen_rewards, 1e-5);
  EXPECT_NEAR(sums[PreferenceSums::kRejectedReward], rejected_rewards, 1e-5);
  EXPECT_EQ(sums[PreferenceSums::kCorrect], correct);
  EXPECT_NEAR(preferences.sums.Means().at("rewards/margins"), (chosen_rewards - rejected_rewards) / 2, 1e-5);
}

TEST_P(PreferenceTest, ItsGradientIsTheSlope) {
  const auto model = Adapted();
  Preferences preferences{.options = GetParam()};
  model->Backward(0, Pass(*model, preferences), {});
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = model->buffer().gradients().clone();
  const double norm = gradient.norm().item<double>();
  ASSERT_GT(norm, 1e-4);
  std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // weights, and their part of the step
  // Small beside the weights, whose deviation is 0.02, and large enough for the losses of float32.
  const double step = 5e-4;
  for (const NamedParameter& parameter : model->Parameters()) {
    if (parameter.trainable) moved.emplace_back(parameter.tensor.detach(), parameter.gradient.clone() * (step / norm));
  }
  const auto loss_at = [&](double steps) {
    for (const auto& [weight, part] : moved) weight.add_(part, steps);
    Preferences again{.options = GetParam()};
    const double loss = Pass(*model, again).item<double>();
    for (const auto& [weight, part] : moved) weight.sub_(part, steps);
    return loss;
  };
  EXPECT_NEAR((loss_at(1) - loss_at(-1)) / (2 * step), norm, 0.01 * norm);
}

INSTANTIATE_TEST_SUITE_P(Losses, PreferenceTest,
                         ::testing::Values(DpoOptions{.beta = 0.5}, DpoOptions{.beta = 0.5, .label_smoothing = 0.2},
                                           DpoOptions{.loss = DpoOptions::Loss::kIpo, .beta = 0.3}),
                         [](const auto& info) {
                           return info.param.loss == DpoOptions::Loss::kIpo ? "Ipo"
                                  : info.param.label_smoothing > 0          ? "Smoothed"
                                                                            : "Sigmoid";
                         });

/// Both pairs in one row of 24 tokens, the second one first.
TEST_P(PreferenceTest, PairsOfOneRowAreThoseOfTheirOwnRows) {
  Pairs packed;
  const auto move = [&](const at::Tensor& from, std::int64_t padding) {
    const auto part = [&](std::size_t first, std::size_t last) {
      return from.view(-1).narrow(0, pairs_.documents[first], pairs_.documents[last] - pairs_.documents[first]);
    };
    return at::cat({part(3, 5), part(0, 2), at::full({3}, padding, at::kLong)}).view({1, 24});
  };
  packed.inputs = move(pairs_.inputs, 7);
  packed.labels = move(pairs_.labels, ops::kIgnoreLabel);
  packed.row_labels = at::tensor({0L, 0L});
  packed.documents = {0, 6, 12, 17, 21, 24};
  packed.answers = {2, 3, 0, 1, -1};
  const auto model = Adapted();
  const auto pass = [&](const Pairs& pairs, Preferences& preferences) {
    ModelBatch batch = pairs.Batch(preferences);
    batch.as_reference = true;
    {
      const at::NoGradGuard no_grad;
      model->LossSum(batch);
    }
    batch.as_reference = false;
    model->buffer().gradients().zero_();
    const at::Tensor loss = model->LossSum(batch);
    model->Backward(0, loss, {});
    return std::pair(loss.item<double>(), model->buffer().gradients().clone());
  };
  Preferences alone{.options = GetParam()}, together{.options = GetParam()};
  const auto [want, gradient] = pass(pairs_, alone);
  const auto [got, other] = pass(packed, together);
  EXPECT_NEAR(got, want, 1e-6 * want);
  EXPECT_LE((other - gradient).norm().item<double>(), 1e-5 * gradient.norm().item<double>());
  EXPECT_LE((together.reference - alone.reference.narrow(0, 0, 2)).abs().max().item<double>(), 1e-5);
  for (std::size_t i = 0; i < together.sums.of.size(); ++i) {
    EXPECT_NEAR(together.sums.of[i], alone.sums.of[i], 1e-5 * (1 + std::abs(alone.sums.of[i])));
  }
}

TEST(Preference, ARowWithoutAPairAddsNothing) {
  const auto model = Adapted();
  Pairs pairs;
  pairs.row_labels.fill_(ops::kIgnoreLabel);
  pairs.labels.fill_(ops::kIgnoreLabel);
  Preferences preferences{.reference = at::zeros({3, 2}, at::kDouble)};
  const at::Tensor loss = model->LossSum(pairs.Batch(preferences));
  model->Backward(0, loss, {});
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(model->buffer().gradients().abs().sum().item<float>(), 0);
  EXPECT_EQ(preferences.sums.of[PreferenceSums::kPairs], 0);
}

}  // namespace
}  // namespace millrace::engine
