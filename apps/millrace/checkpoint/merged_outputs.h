// Reports how a merge of an adapter into weights of 4 or 8 bits changed the model's outputs.
#pragma once

#include <optional>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/quantized/quantization.h"

namespace millrace::cli::ckpt {

/// A finished merge: an adapter, its base model and the merged model, by URL.
struct MadeMerge {
  const checkpoint::ModelSource& adapter;
  std::string adapter_url, base_url, merged_url;
  engine::Quantization quantization;
};

/// Runs `millrace-train outputs`, which has libtorch, on the merge. Returns the figures that it prints. Blocks. Errors:
/// those of AskEngine.
Result<Json> MeasureOutputs(const Context& context, const MadeMerge& merge);

/// Returns the figures of MeasureOutputs() as sentences for the terminal.
std::string OutputsText(const Json& outputs);

}  // namespace millrace::cli::ckpt
