#include "millrace/plan/model/family_layers.h"

#include <array>

namespace millrace::plan {

using Kind = LayerKind;

// CMakeLists.txt writes the list from the names of the files.
#define MILLRACE_FAMILY(Name) FamilyLayers Name##Layers();
#include "plan_family_list.inc"
#undef MILLRACE_FAMILY

std::span<const FamilyLayers> PlannedFamilies() {
#define MILLRACE_FAMILY(Name) Name##Layers(),
  static const std::array kFamilies = {
#include "plan_family_list.inc"
  };
#undef MILLRACE_FAMILY
  return kFamilies;
}

void ReadSizes(const Json& json, const SizeNames& names, std::int64_t positions, ModelShape& model) {
  model.vocab_size = IntOr(json, "vocab_size", 0);
  model.hidden_size = IntOr(json, names.hidden, 0);
  model.num_layers = IntOr(json, names.layers, 0);
  model.num_heads = model.num_kv_heads = IntOr(json, names.heads, 0);
  model.intermediate_size = IntOr(json, names.inner, 0);
  model.max_positions = IntOr(json, names.positions, positions);
  model.head_dim = model.num_heads > 0 ? model.hidden_size / model.num_heads : 0;
}

std::int64_t IntOr(const Json& json, std::string_view key, std::int64_t absent) {
  const Json* value = JsonFind(json, key);
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : absent;
}
bool FlagOr(const Json& json, std::string_view key, bool absent) {
  const Json* value = JsonFind(json, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : absent;
}
bool Drops(const Json& json, std::string_view key, double absent) {
  const Json* value = JsonFind(json, key);
  return (value != nullptr && value->is_number() ? value->get<double>() : absent) > 0;
}

Layer TokenHead(const ModelShape& model, bool bias, bool tied) {
  return {.kind = Kind::kTokenHead,
          .in = model.hidden_size,
          .outputs = {model.vocab_size},
          .bias = bias,
          .cheap_input = true,
          .tied = tied};
}

Layers PlainAttention(const ModelShape& model, bool bias, bool cheap_input) {
  const std::int64_t h = model.hidden_size;
  return {{.kind = Kind::kColumns, .in = h, .outputs = {h, h, h}, .bias = bias, .cheap_input = cheap_input},
          {.kind = Kind::kAttention},
          {.kind = Kind::kRows, .in = h, .outputs = {h}, .bias = bias}};
}
Layers PlainMlp(const ModelShape& model, bool cheap_input) {
  const std::int64_t h = model.hidden_size, inner = model.intermediate_size;
  return {{.kind = Kind::kColumns, .in = h, .outputs = {inner}, .bias = true, .cheap_input = cheap_input},
          {.kind = Kind::kActivation, .in = inner},
          {.kind = Kind::kRows, .in = inner, .outputs = {h}, .bias = true, .cheap_input = true}};
}
Layers Join(std::initializer_list<Layers> parts) {
  Layers all;
  for (const Layers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace millrace::plan
