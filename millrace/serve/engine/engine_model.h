// A model of engine/ behind the server's interface, and how it comes out of a bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"
#include "millrace/serve/chat/chat_template.h"
#include "millrace/serve/language_model.h"
#include "millrace/serve/models/adapter_store.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::engine {
class Model;
}

namespace millrace::serve {

enum class PoolingMode : std::uint8_t { kMean, kFirst, kLast, kMax, kMeanSqrt, kWeightedMean };

/// The pooling of a text's hidden states into its vector.
struct Pooling {
  std::vector<PoolingMode> modes = {PoolingMode::kMean};  ///< the vectors of several are joined
  bool normalizes = true;                                 ///< the vector has length 1
};

/// Has no cache if the model does not generate texts. `vocab_size`: of the tokenizer, where the model has more rows
/// than there are tokens; 0: the model's. `cache_bytes`: of the KV cache; 0: as much as 8 texts of full length take. On
/// a CPU, memory is used as blocks are. `int8_cache`: keys and values are 8-bit integers, with a scale for each token
/// and head. Errors: kInvalidArgument if the cache is smaller than a block; kResourceExhausted if memory does not
/// suffice; kUnsupported for int8_cache on a GPU, or with other weights than f32 and bf16.
Result<std::unique_ptr<LanguageModel>> MakeEngineModel(std::unique_ptr<engine::Model> model, int vocab_size = 0,
                                                       std::uint64_t cache_bytes = 0, bool int8_cache = false,
                                                       Pooling pooling = {});

struct LoadOptions {
  std::string model_url;              ///< a run's checkpoints, an imported one, or a Hugging Face folder
  std::optional<std::uint64_t> step;  ///< of a run; nothing: the newest
  std::string tokenizer_url;          ///< of its file or of a model; empty: the one that the model came with
  std::string precision = "f32";      ///< f32 | tf32 | bf16 | fp16
  /// f32 | bf16: replaces `precision`. int8 | nf4: linear layers compute with codes of 8 or 4 bits, on a CPU also the
  /// one that predicts tokens, in int8. Empty: as the model's files have them.
  std::string weights;
  std::string device = "auto";          ///< auto | cpu | cuda
  std::string kv_cache_dtype = "auto";  ///< auto: as the computation; int8
  std::uint64_t kv_cache_bytes = 0;     ///< 0: as MakeEngineModel()
  /// Another checkpoint will soon replace the model: its codes (`weights`) are not left for later loads.
  bool is_followed = false;
};

struct LoadedModel {
  std::unique_ptr<LanguageModel> model;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string source;                      ///< "s3://runs/demo/step-00000300"
  std::optional<std::uint64_t> step = {};  ///< of a run's checkpoint
  std::int64_t parameters = 0;
  std::string device;     ///< "cpu", "cuda:0"
  bool generates = true;  ///< texts; else only embeddings
  bool add_bos = false;   ///< the model's training texts began with the beginning-of-text token
  /// What texts get before they are embedded: the tokens of the tokenizer's post-processor.
  bool embeds_bos = false, embeds_eos = false;
  std::vector<TokenId> ends = {};  ///< tokens that end a text
  ChatTemplateSource chat = {};    ///< its text is empty if the model has no template
  /// Loads adapters of the model from runs and PEFT folders. Uses `model` and the connection. Empty if the model is one
  /// with an adapter itself. Errors: kUnsupported, kNotFound, kCorrupt and kInvalidArgument if it is no adapter, or
  /// none of such a model; kPreconditionFailed if a run trained it over other weights or with another tokenizer.
  LoadAdapter load_adapter = {};
};

/// Reads and checks everything; a checkpoint is kept from collectors meanwhile. Blocks. kNotFound when there is neither
/// a committed checkpoint nor a model folder; kPreconditionFailed when the tokenizer is not the one the model was
/// trained with.
Result<LoadedModel> LoadModel(object::Connection& connection, const LoadOptions& options, Logger log,
                              object::Call call = {});

}  // namespace millrace::serve
