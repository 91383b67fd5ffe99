#include "millrace/engine/models/preference.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>

#include "millrace/engine/ops/cross_entropy.h"

namespace millrace::engine {
namespace {

/// Returns for each token the number of its answer (ModelBatch::answers), int64 [rows · length]; `none` if it is of no
/// answer.
at::Tensor AnswersOf(const ModelBatch& batch, std::int64_t none) {
  at::Tensor answers = at::full({batch.inputs.numel()}, none, at::kLong);
  auto* answer = answers.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < batch.answers.size(); ++i) {
    if (batch.answers[i] >= 0)
      std::fill(answer + batch.documents[i], answer + batch.documents[i + 1], batch.answers[i]);
  }
  return answers;
}

at::Tensor LossOfPairs(const at::Tensor& ratios, const at::Tensor& tokens, const DpoOptions& options) {
  if (options.loss == DpoOptions::Loss::kIpo) {
    const at::Tensor means = ratios / tokens.clamp_min(1);
    return (means.select(1, 0) - means.select(1, 1) - 1 / (2 * options.beta)).square();
  }
  const at::Tensor margins = options.beta * (ratios.select(1, 0) - ratios.select(1, 1));
  return -at::log_sigmoid(margins) * (1 - options.label_smoothing) -
         at::log_sigmoid(-margins) * options.label_smoothing;
}

}  // namespace

void PreferenceSums::Add(std::span<const double> numbers) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] += numbers[i];
}

std::map<std::string, double> PreferenceSums::Means() const {
  const auto mean = [&](double sum) { return sum / std::max(1.0, of[kPairs]); };
  return {
      {"rewards/chosen", mean(of[kChosenReward])}, {"rewards/rejected", mean(of[kRejectedReward])},
      {"rewards/accuracies", mean(of[kCorrect])},  {"rewards/margins", mean(of[kChosenReward] - of[kRejectedReward])},
      {"logps/chosen", mean(of[kChosenLogP])},     {"logps/rejected", mean(of[kRejectedLogP])}};
}

at::Tensor PreferenceLossSum(const at::Tensor& losses, const ModelBatch& batch) {
  Preferences& preferences = *batch.preferences;
  TORCH_CHECK(batch.answers.empty() || batch.documents.size() == batch.answers.size() + 1, batch.answers.size(),
              " documents have answers, ", batch.documents.size(), " bounds");
  const std::int64_t pairs = batch.row_labels.numel();
  const at::Tensor answers = AnswersOf(batch, 2 * pairs);
  const auto sum_by_answer = [&](const at::Tensor& of_tokens) {
    const at::Tensor sums = at::zeros({2 * pairs + 1}, at::kDouble).index_add(0, answers, of_tokens);
    return sums.narrow(0, 0, 2 * pairs).view({pairs, 2});
  };
  // On the CPU: a GPU would add the tokens of an answer in any order. So these passes wait for it.
  const at::Tensor log_p = sum_by_answer(-losses.cpu());
  if (batch.as_reference) {
    preferences.reference = log_p.detach();
    return at::zeros({}, at::kFloat);
  }
  TORCH_CHECK(preferences.reference.defined(), "pairs need log-probabilities of the reference");
  const at::Tensor labelled = (batch.labels.reshape({-1}) != ops::kIgnoreLabel).to(at::kDouble);
  const at::Tensor tokens = sum_by_answer(labelled);
  const at::Tensor counts = (batch.row_labels != ops::kIgnoreLabel).to(at::kDouble);
  const at::Tensor ratios = log_p - preferences.reference;
  const at::Tensor loss = (LossOfPairs(ratios, tokens, preferences.options) * counts).sum().to(at::kFloat);

  const at::NoGradGuard no_grad;
  const auto sum = [&](const at::Tensor& of_pairs) { return (of_pairs * counts).sum().item<double>(); };
  const at::Tensor rewards = preferences.options.beta * ratios;
  const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  // In the order of PreferenceSums::Number.
  preferences.sums.Add(std::array{counts.sum().item<double>(), sum(chosen), sum(rejected),
                                  sum((chosen > rejected).to(at::kDouble)), sum(log_p.select(1, 0)),
                                  sum(log_p.select(1, 1))});
  return loss;
}

}  // namespace millrace::engine
