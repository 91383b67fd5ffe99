// LoRA on a whole model.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/state_ranks.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::engine {

/// Returns which parameters a run with LoRA trains: the adapters, LoraOptions::whole and, of a classifier, the layer
/// that makes the scores. That one is new in most runs, and PEFT trains it, too (modules_to_save of TaskType.SEQ_CLS).
TrainedNames TrainedWithLora(const ModelConfig& config, const LoraOptions& options);

/// Sets the magnitudes of DoRA that this rank owns to the norms of the rows of the weights, as PEFT does. A, whose
/// product with B is zero, does not count. `quantized`: the weights that are no parameters; may be null. All ranks of
/// ranks.stage call it. Ranks that hold more than they own then call DataExchange::ShareValues(). Does nothing without
/// magnitudes. Errors: kUnavailable if a rank is lost.
Status InitializeMagnitudes(const ParameterBuffer& parameters, const QuantizedWeights* quantized,
                            const StateRanks& ranks);

/// Returns a fingerprint of the frozen weights: a sum of hashes of some elements of each of them (frozen_sample.h). It
/// is the same in every layout and differs between models whose weights differ throughout, such as fine-tuned ones. All
/// ranks of ranks.model call it. Errors: kUnavailable if a rank is lost.
Result<std::uint64_t> FrozenFingerprint(const ParameterBuffer& parameters, const StateRanks& ranks);

/// Checks that each target names a layer of the model, on some rank. All ranks of ranks.model call it.
/// Errors: kInvalidArgument, with `key` and the target; kUnavailable if a rank is lost.
Status CheckTargets(std::string_view key, const ParameterBuffer& parameters, const std::vector<std::string>& targets,
                    const StateRanks& ranks);

}  // namespace millrace::engine
