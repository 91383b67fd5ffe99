// What a merge over weights of 4 or 8 bits did to the model's outputs.
#pragma once

#include <optional>
#include <string>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/engine/quantized/quantization.h"

namespace millrace::cli::ckpt {

/// A merge that was made.
struct MadeMerge {
  const checkpoint::ModelSource& adapter;
  std::string adapter_url, base_url, merged_url;
  engine::Quantization quantization;
};

/// Runs `millrace-train outputs`, which has libtorch, and returns what it prints. Blocks. Errors: those of AskEngine.
Result<Json> MeasureOutputs(const Context& context, const MadeMerge& merge);

/// Returns MeasureOutputs()' figures for people.
std::string OutputsText(const Json& outputs);

}  // namespace millrace::cli::ckpt
