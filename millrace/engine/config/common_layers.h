// Layers that several families of models have, for the lists of their shapes.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "millrace/engine/config/model_shape.h"

namespace millrace::plan {

using Layers = std::vector<Layer>;

/// Returns a linear layer from the hidden states to the vocabulary, with its cross-entropy.
Layer TokenHead(const ModelShape& model, std::string name, bool bias, bool tied);
/// Names of the first and the last linear layer, and of the first one's outputs if these are modules of their own.
struct LinearNames {
  std::string in, out;
  std::vector<std::string> outputs = {};
};
// An attention, and an MLP with an activation, as GPT-2, GPT-J and BERT have them.
Layers PlainAttention(const ModelShape& model, const LinearNames& names, bool bias, bool cheap_input);
Layers PlainMlp(const ModelShape& model, const LinearNames& names, bool cheap_input);
Layers Join(std::initializer_list<Layers> parts);

}  // namespace millrace::plan
