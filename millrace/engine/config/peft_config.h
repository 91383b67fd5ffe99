// PEFT's adapter_config.json. The keys are those of its LoraConfig (peft 0.21).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/lora_options.h"

namespace millrace::engine {

/// Before the names of parameters in PEFT's files.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// In the names of an adapted module's own parameters in PEFT's files.
inline constexpr std::string_view kPeftBase = ".base_layer.";

/// The contents of an adapter_config.json beside LoRA's options.
struct PeftFacts {
  std::string base;                     ///< where the adapted model is
  std::string task;                     ///< "CAUSAL_LM", "SEQ_CLS"; empty: none
  bool transposed = false;              ///< the model's weights are [in, out] in its files (GPT-2)
  std::vector<std::string> whole = {};  ///< modules that are trained whole (modules_to_save)
};

/// Returns the content of adapter_config.json.
Json PeftConfig(const LoraOptions& options, const PeftFacts& facts);

/// Reads LoRA's options from one.
/// Leaves LoraOptions::whole empty: the adapter's tensors say it (engine/config/whole_weights.h).
/// Errors: kUnsupported, with the key, if it asks for more than LoraOptions say, or has a member that is not known and
/// not neutral; kInvalidArgument if a key is missing or of another type.
Result<LoraOptions> ReadPeftConfig(const Json& json, std::string_view what);

}  // namespace millrace::engine
