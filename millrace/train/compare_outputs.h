// Measures what merging an adapter does to a model's outputs. The adapter was trained over codes of 4 or 8 bits; the
// merged model has weights of the base's type. Both compute the same tokens, and their logits are compared.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/dataset.h"
#include "millrace/engine/config/model_config.h"
#include "millrace/engine/quantized/quantization.h"
#include "millrace/object/connection.h"

namespace millrace::train {

/// An adapter, the model under it, and what a merge made of both. Plain data.
struct MergedAdapter {
  std::string adapter_url;            ///< a run's checkpoints, an imported one, or a PEFT folder
  std::optional<std::uint64_t> step;  ///< of a run; nothing: the newest
  std::string base_url;
  std::optional<engine::Quantization> quantization;  ///< of the base while the adapter was trained
  std::string merged_url;
};

/// Tokens on which models are compared.
struct ComparedTokens {
  at::Tensor inputs;  ///< [sequences, length] int64
  at::Tensor counts;  ///< [sequences, length] bool: the logits at this token count
};

/// Returns tokens that are drawn with equal probability from a vocabulary. The same ones in each call.
ComparedTokens RandomTokens(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length);

/// Returns the beginnings of the first samples of a data set, up to `length` tokens each. Tokens count where the
/// training would learn what follows. Blocks. Errors: those of Dataset::ReadSample; kInvalidArgument if no token
/// counts.
Result<ComparedTokens> TokensOf(data::Dataset& dataset, std::int64_t sequences, std::int64_t length,
                                const object::Call& call = {});

struct ComparisonOptions {
  /// Weights that are in memory at once. At least one block, the embedding or the head is.
  std::uint64_t weight_bytes = std::uint64_t{4} << 30;
  /// Where quantized models are kept: checkpoint::OpenQuantizedModel. Empty: in the user's cache.
  std::filesystem::path quantized_folder = {};
  Logger log = {};
};

/// The distance of the merged model's logits from those of the adapter over the codes.
struct OutputDifference {
  std::int64_t tokens = 0;    ///< that were compared
  double relative_error = 0;  ///< |merged - trained| / |trained|, over all logits
  double equal_share = 0;     ///< of the tokens: both models predict the same next token
  double divergence = 0;      ///< mean over the tokens of KL(trained || merged), in nats
  Json ToJson() const;
};

/// Computes both models in float32 on the CPU, and compares them. Blocks. Errors: kUnsupported if the model predicts no
/// next tokens; those of reading the models.
Result<OutputDifference> CompareOutputs(object::Connection& connection, const MergedAdapter& merged,
                                        const ComparedTokens& tokens, const ComparisonOptions& options,
                                        const object::Call& call = {});

/// Returns the sizes of the merged model. Errors: as CompareOutputs().
Result<engine::ModelSizes> SizesOf(object::Connection& connection, const MergedAdapter& merged, const Logger& log,
                                   const object::Call& call = {});

}  // namespace millrace::train
