// Finds the tensors of a checkpoint or a folder that its model leaves out.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/quantized/quantized_matrix.h"
#include "millrace/object/store.h"

namespace millrace::engine {

/// Returns the tensors of the checkpoint's model that `config` leaves out, and that may be left out: heads of other
/// classes and, of a model that does not generate, all others. Tensors that are computed, and copies of an embedding
/// for a head that is tied to it, are no such tensors. `quantized`: weights in place of parameters; may be null. Reads
/// both of a tied pair. Blocks.
/// Errors: kUnsupported, with the name, if a model that generates has no place for a tensor, or if a tied head's own
/// weights are not the embedding's; those of Reader::Read.
Result<std::vector<std::string>> UnusedWeights(checkpoint::Reader& reader, const ModelConfig& config,
                                               const QuantizedWeights* quantized, const object::Call& call = {});

}  // namespace millrace::engine
