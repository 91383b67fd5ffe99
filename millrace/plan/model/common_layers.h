// Layers that several families of models have, for the lists of their shapes.
#pragma once

#include <initializer_list>
#include <vector>

#include "millrace/plan/model/model_shape.h"

namespace millrace::plan {

using Layers = std::vector<Layer>;

/// Returns a linear layer from the hidden states to the vocabulary, with its cross-entropy.
Layer TokenHead(const ModelShape& model, bool bias, bool tied);
// An attention, and an MLP with an activation, as GPT-2, GPT-J and BERT have them.
Layers PlainAttention(const ModelShape& model, bool bias, bool cheap_input);
Layers PlainMlp(const ModelShape& model, bool cheap_input);
Layers Join(std::initializer_list<Layers> parts);

}  // namespace millrace::plan
