// The terms of the training loss beside the plain cross-entropy. Plain data, without libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::engine::ops {

/// Changes what is minimised. With p = softmax(logits) over C classes, the objective of a token is
///   (1 - label_smoothing) · -log p[label] + label_smoothing/C · sum of -log p + z_loss · logsumexp(logits)²:
/// label smoothing as in torch.nn.functional.cross_entropy, z-loss as in PaLM (Chowdhery et al. 2022).
struct LossOptions {
  double label_smoothing = 0;  ///< 0 to 1
  double z_loss = 0;           ///< PaLM: 1e-4
  bool operator==(const LossOptions&) const = default;
};

}  // namespace millrace::engine::ops

namespace millrace::engine {

/// The options of direct preference optimization. With r the sum of log-probabilities of an answer's tokens minus that
/// of the reference, and d = r(chosen) - r(rejected), the loss of a pair is
///   kSigmoid: -(1 - label_smoothing) · log sigmoid(beta · d) - label_smoothing · log sigmoid(-beta · d)
///   kIpo:     (r(chosen)/tokens of chosen - r(rejected)/tokens of rejected - 1/(2 · beta))²
/// as in trl 1.16. Its label_smoothing (conservative DPO) is as in trl before 1.0.
struct DpoOptions {
  enum class Loss : std::uint8_t { kSigmoid, kIpo };
  Loss loss = Loss::kSigmoid;
  double beta = 0.1;
  double label_smoothing = 0;  ///< of kSigmoid: the share of pairs that may be the wrong way round; 0 to 0.5
  bool operator==(const DpoOptions&) const = default;
};
std::string_view DpoLossName(DpoOptions::Loss loss);  ///< "sigmoid", "ipo"
std::optional<DpoOptions::Loss> ParseDpoLoss(std::string_view name);

}  // namespace millrace::engine
