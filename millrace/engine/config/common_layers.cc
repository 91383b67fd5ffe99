#include "millrace/engine/config/common_layers.h"

namespace millrace::plan {

using Kind = LayerKind;

Layer TokenHead(const ModelShape& model, std::string name, bool bias, bool tied) {
  return {.kind = Kind::kTokenHead,
          .in = model.hidden_size,
          .outputs = {model.vocab_size},
          .bias = bias,
          .cheap_input = true,
          .tied = tied,
          .predicts = true,
          .name = std::move(name)};
}

Layers PlainAttention(const ModelShape& model, const LinearNames& names, bool bias, bool cheap_input) {
  const std::int64_t h = model.hidden_size;
  return {{.kind = Kind::kColumns,
           .in = h,
           .outputs = {h, h, h},
           .bias = bias,
           .cheap_input = cheap_input,
           .name = names.in,
           .output_names = names.outputs},
          {.kind = Kind::kAttention},
          {.kind = Kind::kRows, .in = h, .outputs = {h}, .bias = bias, .name = names.out}};
}
Layers PlainMlp(const ModelShape& model, const LinearNames& names, bool cheap_input) {
  const std::int64_t h = model.hidden_size, inner = model.intermediate_size;
  return {
      {.kind = Kind::kColumns, .in = h, .outputs = {inner}, .bias = true, .cheap_input = cheap_input, .name = names.in},
      {.kind = Kind::kActivation, .in = inner},
      {.kind = Kind::kRows, .in = inner, .outputs = {h}, .bias = true, .cheap_input = true, .name = names.out}};
}
Layers Join(std::initializer_list<Layers> parts) {
  Layers all;
  for (const Layers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace millrace::plan
