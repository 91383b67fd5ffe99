// Finds a model in a saved Python state, and gives its tensors Hugging Face's names. Trainers save a state_dict of a
// model of transformers or of torchtitan alone, below a key ("model"), or beside the optimizer's state.
#pragma once

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"

namespace millrace::checkpoint {

/// Keeps of `source` the tensors of the model that `config`, a Hugging Face config.json, describes, as kModelGroup.
/// Notes what else the state has, which is not imported. The names may be Hugging Face's, or those of Meta's Llama and
/// of torchtitan, whose rows of queries and keys are put in Hugging Face's order. Names may have the prefixes of
/// torch.compile, DDP and FSDP.
/// Errors: those of engine::ParseModelConfig(); kNotFound, with its name, if a parameter is missing; kUnsupported if
/// the model has a tensor that is no parameter, or if the state has the model twice; kCorrupt if rows do not divide
/// into the configuration's heads.
Status TakeModel(const Json& config, ImportSource& source);

}  // namespace millrace::checkpoint
