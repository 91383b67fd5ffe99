// Direct preference optimization (DPO: Rafailov et al. 2023): the model learns which of two answers is better. A
// reference model, which does not change, is the standard of comparison.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "millrace/engine/models/model.h"
#include "millrace/engine/options/loss_options.h"

namespace millrace::engine {

/// The sums over pairs. The reward of an answer is beta · r.
struct PreferenceSums {
  enum Number : std::uint8_t {
    kPairs,
    kChosenReward,
    kRejectedReward,
    kCorrect,  ///< pairs whose chosen answer has the larger reward
    kChosenLogP,
    kRejectedLogP,
    kNumbers
  };
  std::array<double, kNumbers> of{};

  void Add(std::span<const double> numbers);
  /// Returns the means over the pairs under trl's names: "rewards/chosen", "rewards/rejected", "rewards/accuracies",
  /// "rewards/margins", "logps/chosen", "logps/rejected".
  std::map<std::string, double> Means() const;
};

/// The state that all passes over one batch of pairs share. Each answer of a pair is a document behind its prompt;
/// ModelBatch::answers has their places. Pair p counts if row_labels[p] is not -100.
struct Preferences {
  DpoOptions options;
  /// The log-probabilities of the answers by the reference: float64 [pairs, 2]. A pass with ModelBatch::as_reference
  /// sets this on ranks that have the head, and has the loss 0. All other passes need it.
  at::Tensor reference = {};
  PreferenceSums sums = {};  ///< every pass adds to the sums, except that of the reference
};

/// Returns the sum of the pairs' losses: a float32 scalar. `losses` are float64 [rows · length], the cross-entropies of
/// the batch's tokens. REQUIRES: batch.preferences, and batch.row_labels with an element for each pair.
at::Tensor PreferenceLossSum(const at::Tensor& losses, const ModelBatch& batch);

}  // namespace millrace::engine
