// The mapping of rows of Megatron's tensors to rows of Hugging Face's. Megatron stacks queries, keys and values group
// by group, and the two halves of a gated MLP. Sources: megatron/core/models/gpt, megatron/core/transformer/mlp.py, and
// megatron/bridge/models/conversion/param_mapping.py. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/checkpoint/convert/megatron/megatron_model.h"

namespace millrace::checkpoint {

/// Rows of a tensor of Megatron that are rows of one of Hugging Face.
struct RowSpan {
  std::uint64_t from = 0;  ///< the first row in Megatron's tensor
  std::uint64_t to = 0;    ///< the first row in Hugging Face's tensor
  std::uint64_t rows = 0;
};
/// A tensor of Hugging Face and its rows.
struct MappedTensor {
  std::string name;         ///< without the layers' prefix if it belongs to a layer
  std::uint64_t rows = 0;   ///< of the whole tensor
  bool transposed = false;  ///< whether Hugging Face's files hold the transpose
  std::vector<RowSpan> spans;
};
/// A tensor's name in Megatron, taken apart.
struct MegatronName {
  bool is_of_layer = false;
  std::optional<std::uint64_t> layer;  ///< if the layers are not stacked in one tensor
  std::string rest;                    ///< behind "decoder.layers.", and behind the layer
};
/// Takes a name apart, such as "decoder.layers.self_attention.linear_qkv.weight". Drops the prefix "module.".
MegatronName ParseMegatronName(std::string_view name);

/// Returns the tensors that a tensor is stacked of. All rows have a place, but those that pad the vocabulary.
/// `rows`: of Megatron's tensor, without the dimension of stacked layers.
/// Errors: kUnsupported if the family has no such tensor; kCorrupt if the number of rows is not the model's.
Result<std::vector<MappedTensor>> MapMegatronTensor(const MegatronModel& model, const MegatronName& name,
                                                    std::uint64_t rows);
/// Returns the prefix of a layer's tensors: "model.layers.3." or "transformer.h.3.".
std::string LayerPrefix(MegatronFamily family, std::uint64_t layer);

}  // namespace millrace::checkpoint
