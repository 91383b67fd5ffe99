// Collective operations on tensors: at::Tensor as elements that ranks exchange.
#pragma once

#include <ATen/ATen.h>

#include "millrace/collectives/collective.h"

namespace millrace::engine {

using collectives::Collective;
using collectives::Elements;
using collectives::Reduction;

/// Returns the elements as a tensor of one dimension, which shares their memory and keeps it. Elements of a type that
/// has no name among ranks are bytes. REQUIRES: elements.fault is null.
at::Tensor TensorOf(const Elements& elements);

}  // namespace millrace::engine

/// A contiguous tensor. The elements keep its memory. They are in the order of the memory, so shapes do not matter.
template <>
struct millrace::collectives::ElementsOf<at::Tensor> {
  static Elements View(const at::Tensor& tensor);
};
