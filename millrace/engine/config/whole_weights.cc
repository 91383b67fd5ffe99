#include "millrace/engine/config/whole_weights.h"

#include <algorithm>
#include <set>

#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"

namespace millrace::engine {
namespace {

/// Returns what a folder with a head calls the embedding of tokens.
std::string EmbeddingName(const ModelConfig& config) {
  const FolderNames& names = FindFamily(config.family())->names;
  return std::string(names.prefix) + std::string(names.embedding);
}

/// Returns the names of parameters that can be trained whole beside adapters. Matrices of blocks cannot: several of
/// them are one product, which is frozen as a whole.
std::set<std::string> WholeCandidates(const plan::ModelShape& shape) {
  using Kind = plan::LayerKind;
  plan::ModelShape kept = shape;
  const auto keep = [](std::vector<plan::Layer>& layers) {
    std::erase_if(layers, [](const plan::Layer& layer) {
      const bool is_table = layer.kind == Kind::kTokenTable || layer.kind == Kind::kTable;
      return !is_table && layer.kind != Kind::kNorm && layer.kind != Kind::kHeadNorm &&
             layer.kind != Kind::kAllHeadsNorm && !layer.predicts;
    });
  };
  for (auto* part : {&kept.embedding, &kept.block, &kept.head}) keep(*part);
  for (auto& block : kept.marked_blocks) keep(block);
  const std::vector<std::string> names = kept.ParameterNames();
  return {names.begin(), names.end()};
}

}  // namespace

std::string BaseLayerWeight(std::string_view tensor, const ModelConfig& config) {
  const std::size_t at = tensor.find(kPeftBase);
  if (at == tensor.npos) return "";
  const std::string name = std::string(tensor.substr(0, at)) + "." + std::string(tensor.substr(at + kPeftBase.size()));
  const auto& tied = FindFamily(config.family())->names.tied_names;
  const bool is_tied = config.Shape().tied() && std::ranges::find(tied, std::string_view(name)) != tied.end();
  return is_tied ? EmbeddingName(config) : name;
}

Result<std::vector<std::string>> FindWholeWeights(std::span<const std::string> tensors, const ModelConfig& config,
                                                  const LoraOptions& options, std::string_view what) {
  plan::ModelShape shape = config.Shape();
  const std::set<std::string> candidates = WholeCandidates(shape);
  const std::string embedding = EmbeddingName(config);
  shape.Adapt(options);
  const std::vector<std::string> all = shape.ParameterNames();
  const std::set<std::string> known(all.begin(), all.end());
  std::vector<std::string> whole;
  for (const std::string& tensor : tensors) {
    const std::string base = BaseLayerWeight(tensor, config);
    if (IsOfAdapter(tensor) ? known.contains(tensor) : known.contains(base)) continue;
    if (!candidates.contains(tensor)) {
      return Fail(Code::kUnsupported,
                  "{} has {}, for which this model has no place: it adapts no layer that target_modules name, nor is "
                  "it an embedding, a norm or a head of the model",
                  what, tensor);
    }
    if (tensor == embedding && shape.tied()) {
      return Fail(Code::kUnsupported,
                  "{} has {} for the embedding alone, and the head of this model has the same weights; an adapter of "
                  "a model without tie_word_embeddings can be used",
                  what, tensor);
    }
    whole.push_back(tensor);
  }
  return whole;
}

}  // namespace millrace::engine
