// Loading the weights of a model.
#pragma once

#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/models/model.h"
#include "millrace/object/store.h"

namespace millrace::engine {

/// Fills the parameters that this rank owns with the weights of a checkpoint or a Hugging Face folder. Converts their
/// types, and transposes the matrices that Hugging Face stores so. Weights that need neither are read in place. Others
/// pass through a buffer of about 256 MiB. Ranks that hold more than they own then call DataExchange::ShareValues().
/// Blocks.
/// Skips LoRA's adapters: they are not of the model.
/// UnusedWeights() returns what the checkpoint has beside the model's weights.
/// If `absent` is not null, weights of the model's head may be missing: they keep their values, and their names are
/// added to it. So a pre-trained model gets a new head.
/// Errors: kNotFound if a weight is missing; kCorrupt if a weight has another shape; those of Reader::ReadMany.
Status ReadWeights(checkpoint::Reader& reader, Model& model, std::vector<std::string>* absent = nullptr,
                   const object::Call& call = {});

/// Fills the trained parameters of a model with adapters (ModelShare::lora) that this rank owns, from an adapter's
/// checkpoint or PEFT folder, and those of the base that it has beside them. Otherwise as ReadWeights().
/// REQUIRES: FindWhole() of the adapter made the options of the model.
/// Errors: kNotFound if an adapter of the model is missing; kCorrupt if a weight has another shape; those of
/// Reader::ReadMany.
Status ReadAdapter(checkpoint::Reader& reader, Model& model, const object::Call& call = {});

}  // namespace millrace::engine
