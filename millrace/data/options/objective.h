// The objective of a model that learns from rows of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::data {

/// The task of the model.
enum class Objective : std::uint8_t {
  kCausalLm,        ///< each token from those in front of it; SequenceMode says how rows are made
  kMlm,             ///< masked tokens from the whole row, and whether one text follows another: BERT's pre-training
  kClassification,  ///< one class a row
  kDpo,             ///< the better one of a row's two answers to a prompt (direct preference optimization)
};

std::string_view ObjectiveName(Objective objective);  ///< "causal_lm", "mlm", "classification", "dpo"
/// Returns nothing if no objective has that name.
std::optional<Objective> ParseObjective(std::string_view name);

}  // namespace millrace::data
