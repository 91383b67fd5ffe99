// How a family of models is found, and what families say their layers with.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/plan/model/model_shape.h"

namespace millrace::plan {

using Layers = std::vector<Layer>;

/// What a plan knows of a family of models. Each file families/NAME.cc defines a function NameLayers() that returns its
/// own; CMakeLists.txt finds it by the file's name.
struct FamilyLayers {
  std::span<const std::string_view> model_types;  ///< values of config.json's model_type
  /// Reads the sizes of a config.json, and lists the layers. Sizes that are missing stay 0.
  void (*describe)(const Json& json, ModelShape& model);
};

/// Returns all families. Valid as long as the process.
std::span<const FamilyLayers> PlannedFamilies();

/// What a config.json calls its sizes.
struct SizeNames {
  std::string_view hidden = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
                   inner = "intermediate_size", positions = "max_position_embeddings";
};
inline constexpr SizeNames kGptNames = {"n_embd", "n_layer", "n_head", "n_inner", "n_positions"};

/// Reads the sizes, with a key-value head for each head, and heads that divide the hidden size.
/// `positions`: of a config.json that does not say how many.
void ReadSizes(const Json& json, const SizeNames& names, std::int64_t positions, ModelShape& model);

// A key of a config.json, or `absent`.
std::int64_t IntOr(const Json& json, std::string_view key, std::int64_t absent);
bool FlagOr(const Json& json, std::string_view key, bool absent);
/// Returns whether the probability of a dropout is above 0.
bool Drops(const Json& json, std::string_view key, double absent);

Layer TokenHead(const ModelShape& model, bool bias, bool tied);
// An attention, and an MLP with an activation, as GPT-2, GPT-J and BERT have them.
Layers PlainAttention(const ModelShape& model, bool bias, bool cheap_input);
Layers PlainMlp(const ModelShape& model, bool cheap_input);
Layers Join(std::initializer_list<Layers> parts);

}  // namespace millrace::plan
