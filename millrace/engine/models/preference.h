// Direct preference optimization (DPO: Rafailov et al. 2023): the model learns which of two answers is better, compared
// with a reference that stays as it is.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "millrace/engine/models/model.h"

namespace millrace::engine {

/// With r the sum of log-probabilities of an answer's tokens minus that of the reference, and d = r(chosen) -
/// r(rejected), the loss of a pair is
///   kSigmoid: -(1 - label_smoothing) · log sigmoid(beta · d) - label_smoothing · log sigmoid(-beta · d)
///   kIpo:     (r(chosen)/tokens of chosen - r(rejected)/tokens of rejected - 1/(2 · beta))²
/// as in trl 1.16. Its label_smoothing (conservative DPO) is as in trl before 1.0.
struct DpoOptions {
  enum class Loss : std::uint8_t { kSigmoid, kIpo };
  Loss loss = Loss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0;  ///< of kSigmoid: the share of pairs that may be the wrong way round; 0 to 0.5
};

/// What pairs add up to. The reward of an answer is beta · r.
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

/// What the passes of one batch of pairs share. An answer of a pair is a document, behind its prompt;
/// ModelBatch::answers says which. Pair p counts if row_labels[p] is not -100.
struct Preferences {
  DpoOptions options;
  /// float64 [pairs, 2]: the log-probabilities of the answers by the reference. A pass with ModelBatch::as_reference
  /// sets it, on ranks that have the head, and has the loss 0. Other passes need it.
  at::Tensor reference = {};
  PreferenceSums sums = {};  ///< passes that are not the reference's add to it
};

/// Returns the sum of the pairs' losses: a float32 scalar. `losses` are float64 [rows · length], the cross-entropies of
/// the batch's tokens. REQUIRES: batch.preferences, and batch.row_labels with an element for each pair.
at::Tensor PreferenceLossSum(const at::Tensor& losses, const ModelBatch& batch);

}  // namespace millrace::engine
