// The pooling of a text's hidden states into its vector (embedding), as the files of sentence-transformers say.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/serve/engine/engine_model.h"

namespace millrace::serve {

/// Reads modules.json and the configuration of the pooling that it names ("1_Pooling/config.json"). Without these files
/// it returns the default: the mean, at length 1. Blocks.
/// Errors: kUnsupported if the model wants more than a transformer, poolings and a normalization; kInvalidArgument for
/// broken files.
Result<Pooling> ReadPooling(const checkpoint::ModelSource& model, const object::Call& call);

/// Returns whether the post-processor of the model's tokenizer.json puts a special token behind texts. Blocks.
/// Errors: kInvalidArgument for a broken file.
Result<bool> PostProcessorEndsTexts(const checkpoint::ModelSource& model, const object::Call& call);

/// Returns the vector of a text: float32, on the CPU. `hidden`: float32 [tokens, hidden], of its tokens.
at::Tensor Pool(const Pooling& pooling, const at::Tensor& hidden);

}  // namespace millrace::serve
