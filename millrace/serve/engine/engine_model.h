// A model of engine/ behind the server's interface, and how it comes out of a bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"
#include "millrace/serve/language_model.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::engine {
class Model;
}

namespace millrace::serve {

/// Sequences keep a KV cache of their full capacity. `vocab_size`: of the tokenizer, where the model has more rows than
/// there are tokens; 0: the model's.
std::unique_ptr<LanguageModel> MakeEngineModel(std::unique_ptr<engine::Model> model, int vocab_size = 0);

struct LoadOptions {
  std::string model_url;              ///< a run's checkpoints, an imported one, or a Hugging Face folder
  std::optional<std::uint64_t> step;  ///< of a run; nothing: the newest
  std::string tokenizer_url;          ///< of its file or of a model; empty: the one that the model came with
  std::string precision = "f32";      ///< f32 | bf16
};

struct LoadedModel {
  std::unique_ptr<LanguageModel> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string source;  ///< "s3://runs/demo/step-00000300"
  std::int64_t parameters = 0;
  bool add_bos = false;  ///< the model's training texts began with the beginning-of-text token
};

/// Reads and checks everything; a checkpoint is kept from collectors meanwhile. Blocks. kNotFound when there is neither
/// a committed checkpoint nor a model folder; kPreconditionFailed when the tokenizer is not the one the model was
/// trained with.
Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call = {});

}  // namespace millrace::serve
